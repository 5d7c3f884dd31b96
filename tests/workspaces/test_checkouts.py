"""Repositories of workspaces: requests, credentials and reports."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from portal.catalog.models import Template
from portal.catalog.repositories.codes import RepositoryCode
from portal.catalog.repositories.rules import Source
from portal.catalog.repositories.services import set_dotfiles
from portal.common.errors import InvalidInput
from portal.common.events.models import Event
from portal.fleet.inventory.models import Node, Pool
from portal.people.accounts.models import Team
from portal.people.accounts.tokens import create_token
from portal.workspaces import checkout_reports, checkouts
from portal.workspaces.codes import GitCode
from portal.workspaces.models import Workspace
from portal.workspaces.secrets import services as secrets
from portal.workspaces.tokens import agent_token
from tests import sites

pytestmark = pytest.mark.django_db
WORLD = sites.one_machine
URL = "https://git.example/berth/lib.git"
TOKEN = "planted-token-77aa"
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----"


def source(url: str = URL, ref: str = "", secret: str = "") -> Source:
    return Source(url=url, ref=ref, secret=secret)


def put(actor: Any, holder: Any, name: str, value: str = TOKEN, **more: Any) -> None:
    secrets.put_secret(actor=actor, holder=holder, name=name, value=value, **more)


def tell(workspace: Workspace, name: str = "checkout", **body: Any) -> Any:
    token = agent_token(workspace.pk, workspace.generation)
    client = Client(headers={"Authorization": f"Bearer {token}"})
    return client.post(f"/agent/v1/{name}", json.dumps(body), content_type="application/json")


@pytest.fixture
def template(catalog: None) -> Template:
    return Template.objects.get(slug="jupyterlab")


def test_repository_is_stored_and_sent_to_the_node(clock, make, bob, local_pool, sent):
    put(bob, bob, "GIT_SECRET_X".replace("GIT_", "MY_"))
    workspace = make(bob, git=source(ref="main", secret="MY_SECRET_X"))
    assert workspace.git == {"url": URL, "ref": "main", "secret": "MY_SECRET_X", "by": "user"}
    (command,) = sent.commands
    (spec,) = command.spec.checkouts
    assert (spec.kind, spec.url, spec.ref, spec.credential) == ("repository", URL, "main", True)
    assert command.spec.secrets
    assert TOKEN not in str(sent.messages[0].kwargs)


@pytest.mark.parametrize(
    ("given", "field", "code"),
    [
        (source("file:///etc"), "git.url", RepositoryCode.URL_SCHEME),
        (source("https://a:b@h/x"), "git.url", RepositoryCode.URL_CREDENTIALS),
        (source("", "main"), "git.url", RepositoryCode.URL_MISSING),
        (source(ref="-f"), "git.ref", RepositoryCode.REF_INVALID),
        (source(secret="NOBODYS"), "git.secret", GitCode.SECRET_UNKNOWN),
    ],
)
def test_unsupported_value_is_refused_at_its_field(clock, make, bob, local_pool, given, field, code):
    with pytest.raises(InvalidInput) as refused:
        make(bob, git=given)
    assert refused.value.reason.code is code
    assert refused.value.field_errors[field]
    assert not Workspace.objects.exists()


def test_own_repository_is_refused_if_no_node_has_git(clock, make, bob, local_pool, template):
    for node in Node.objects.all():
        Node.objects.filter(pk=node.pk).update(programs={**node.programs, "git": ""})
    with pytest.raises(InvalidInput) as refused:
        make(bob, git=source())
    assert refused.value.reason.code is GitCode.NOT_INSTALLED
    Template.objects.filter(pk=template.pk).update(git_url=URL)
    assert make(bob).git["by"] == "template"


def test_template_repository_is_used_unless_overridden(clock, make, bob, local_pool, template):
    Template.objects.filter(pk=template.pk).update(git_url=URL, git_ref="v1")
    assert make(bob, name="a").git == {"url": URL, "ref": "v1", "secret": "", "by": "template"}
    assert make(bob, name="b", git=source("https://h/other")).git["url"] == "https://h/other"
    assert make(bob, name="c", git=source("")).git == {}


# --- credentials ----------------------------------------------------------------------------------


def test_token_secret_is_passed_to_git_only(clock, make, bob, local_pool):
    put(bob, bob, "MY_TOKEN")
    workspace = make(bob, git=source(secret="MY_TOKEN"))
    given = tell(workspace, "secrets").json()
    assert given["secrets"] == []
    assert given["git"] == [
        {"what": "repository", "host": "git.example", "origin": "https://git.example",
         "username": "oauth2", "password": TOKEN},
    ]  # fmt: skip
    event = Event.objects.get(kind="workspace.secrets_given")
    assert event.data["secrets"][0]["kind"] == "git" and TOKEN not in str(event.data)


@pytest.mark.parametrize(
    ("url", "value", "expected"),
    [
        (URL, "ada:word", {"username": "ada", "password": "word"}),
        (URL, "a\nb", {"problem": "wrong_secret"}),
        (URL, KEY, {"problem": "wrong_secret"}),
        ("git@h:a/b", TOKEN, {"problem": "wrong_secret"}),
        ("git@h:a/b", KEY + "\nh ssh-ed25519 AAAA", {"key": KEY, "known_hosts": "h ssh-ed25519 AAAA"}),
    ],
)
def test_secret_is_a_token_for_https_and_a_key_for_ssh(url, value, expected):
    found = checkouts._credential(url, value)
    assert {name: found.get(name) for name in expected} == expected


def test_template_repository_never_uses_a_user_secret(clock, make, alice, bob, team, local_pool, template):
    """The maintainer of a template could send it to their own server."""
    put(bob, bob, "HUB_TOKEN", everywhere=True)
    Template.objects.filter(pk=template.pk).update(git_url="https://evil.example/x", git_secret="HUB_TOKEN")
    workspace = make(bob)
    given = tell(workspace, "secrets").json()
    assert given["git"] == [{"what": "repository", "problem": "no_secret"}]
    put(alice, team, "HUB_TOKEN", "the-teams-token")
    assert tell(workspace, "secrets").json()["git"][0]["password"] == "the-teams-token"


def test_missing_secret_does_not_prevent_the_start(clock, make, bob, local_pool):
    put(bob, bob, "MY_TOKEN")
    workspace = make(bob, git=source(secret="MY_TOKEN"))
    bob.secrets.all().delete()
    assert tell(workspace, "secrets").json()["git"] == [{"what": "repository", "problem": "no_secret"}]


# --- reports --------------------------------------------------------------------------------------


def rows(workspace: Workspace) -> list[checkout_reports.CheckoutRow]:
    return checkout_reports.note_of(Workspace.objects.get(pk=workspace.pk))


def test_page_shows_clone_progress_and_events_record_the_commit(clock, make, bob, local_pool, client):
    workspace = make(bob, git=source())
    assert [row.state for row in rows(workspace)] == ["waiting"]
    assert tell(workspace, what="repository", state="cloning", percent=45).status_code == 204
    assert rows(workspace)[0].text == "Cloning, 45 %"
    assert not Event.objects.filter(kind="workspace.cloned").exists()
    assert (
        tell(workspace, what="repository", state="cloned", commit="abc1234def" + "0" * 30).status_code == 204
    )
    assert rows(workspace)[0].text == "Cloned into ~/lib at abc1234"
    event = Event.objects.get(kind="workspace.cloned")
    assert event.message == f"cloned {URL} into ~/lib at abc1234"
    client.force_login(bob)
    page = client.get(f"/workspaces/{workspace.pk}/").content.decode()
    assert "Cloned into ~/lib at abc1234" in page


def test_clone_failure_shows_cause_and_next_step_while_the_workspace_runs(
    clock, make, bob, local_pool, client
):
    workspace = make(bob, git=source())
    tell(workspace, what="repository", state="failed", code="egress", detail="<b>CONNECT</b> 403")
    (row,) = rows(workspace)
    assert row.message == (
        f"Could not clone {URL}: the network setting BERTH_EGRESS of the node blocks git.example."
    )
    assert row.next_action == "Ask an operator to allow git.example there."
    workspace.refresh_from_db()
    assert workspace.state == "provisioning"
    client.force_login(bob)
    page = client.get(f"/workspaces/{workspace.pk}/").content.decode()
    assert "BERTH_EGRESS of the node blocks git.example" in page and "&lt;b&gt;CONNECT" in page
    shown = client.get(f"/api/v1/workspaces/{workspace.pk}").json()
    assert shown["git"] == {"url": URL, "ref": "", "secret": ""}
    assert [(checkout["state"], checkout["code"]) for checkout in shown["checkouts"]] == [
        ("failed", "not_cloned_egress")
    ]
    listed = client.get("/api/v1/workspaces").json()["results"]
    assert listed[0]["checkouts"] == shown["checkouts"]


@pytest.mark.parametrize(
    ("template_rule", "team_rule", "pool_rule", "address", "message", "next_action"),
    [
        (
            *(("list", "pypi.org"), ("list", "pypi.org"), {}, ""),
            "the network setting of the template “Notebook” blocks git.example.",
            "Ask an operator or a maintainer of the template to allow git.example there.",
        ),
        (
            *(("list", "git.example"), ("none", ""), {}, ""),
            "the network setting of the team “Vision” blocks git.example.",
            "Ask an operator to allow git.example there.",
        ),
        (
            *(("", ""), ("", ""), {"egress": "open"}, "10.1.2.3"),
            "the network setting of the pool “Pool this-machine” blocks git.example (10.1.2.3).",
            "Ask an operator to allow 10.1.2.3 there.",
        ),
        (
            *(("", ""), ("", ""), {"egress": "open", "egress_allow": "10.1.0.0/16"}, "10.1.2.3"),
            "the network setting BERTH_EGRESS of the node blocks git.example (10.1.2.3).",
            "Ask an operator to allow 10.1.2.3 there.",
        ),
    ],
)
def test_blocked_server_names_the_setting_and_who_can_change_it(
    clock, make, bob, local_pool, template, team, template_rule, team_rule, pool_rule, address, message,
    next_action,
):  # fmt: skip
    names = ("egress", "egress_allow")
    Template.objects.filter(pk=template.pk).update(
        name="Notebook", **dict(zip(names, template_rule, strict=True))
    )
    Team.objects.filter(pk=team.pk).update(name="Vision", **dict(zip(names, team_rule, strict=True)))
    Pool.objects.filter(pk=local_pool.pk).update(config={**local_pool.config, **pool_rule})
    workspace = make(bob, git=source())
    tell(workspace, what="repository", state="failed", code="egress", address=address)
    (row,) = rows(workspace)
    assert (row.message, row.next_action) == (f"Could not clone {URL}: {message}", next_action)


def test_an_invalid_address_in_a_report_is_ignored(clock, make, bob, local_pool):
    workspace = make(bob, git=source())
    assert (
        tell(workspace, what="repository", state="failed", code="egress", address="1::2::3").status_code
        == 204
    )
    assert rows(workspace)[0].message.endswith("blocks git.example.")


def test_reports_after_the_final_state_are_ignored(clock, make, bob, local_pool):
    workspace = make(bob, git=source())
    for state in ("cloned", "failed", "cloning", "cloned"):
        assert tell(workspace, what="repository", state=state).status_code == 204
    assert rows(workspace)[0].state == "cloned"
    assert Event.objects.filter(kind__in=["workspace.cloned", "workspace.not_cloned"]).count() == 1


@pytest.mark.parametrize(
    "body",
    [{}, {"what": "other", "state": "cloned"}, {"what": "repository", "state": "pwned"},
     {"what": "repository", "state": "cloned", "commit": "<script>"},
     {"what": "repository", "state": "cloning", "percent": 101},
     {"what": "repository", "state": "installed", "note": "rm -rf ~"},
     {"what": "repository", "state": "failed", "code": "X" * 40}],
)  # fmt: skip
def test_invalid_checkout_report_is_refused(clock, make, bob, local_pool, body):
    workspace = make(bob, git=source())
    assert tell(workspace, **body).status_code == 400
    assert rows(workspace)[0].state == "waiting"


def test_no_notice_for_unrequested_or_earlier_checkouts(clock, make, bob, local_pool):
    workspace = make(bob)
    assert tell(workspace, what="dotfiles", state="cloned").status_code == 204
    assert rows(workspace) == []
    workspace.generation += 1
    assert tell(workspace, what="repository", state="cloned").status_code == 410


# --- dotfiles -------------------------------------------------------------------------------------


def test_user_dotfiles_replace_those_of_the_template(clock, make, bob, local_pool, template, sent):
    Template.objects.filter(pk=template.pk).update(dotfiles_url="https://h/site-dots")
    make(bob, name="a")
    put(bob, bob, "DOTS_TOKEN")
    set_dotfiles(actor=bob, url="https://h/dots", ref="main", secret="DOTS_TOKEN")
    mine = make(bob, name="b")
    first, second = (command.spec.checkouts for command in sent.commands)
    assert [(each.kind, each.url, each.credential) for each in first] == [
        ("dotfiles", "https://h/site-dots", False)
    ]
    assert [(each.kind, each.url, each.ref) for each in second] == [("dotfiles", "https://h/dots", "main")]
    assert tell(mine, "secrets").json()["git"][0]["password"] == TOKEN
    tell(mine, what="dotfiles", state="installed", note="install.sh", commit="a" * 40)
    assert rows(mine)[0].text == "Installed by install.sh"


def test_dotfiles_changes_are_audited(bob):
    with pytest.raises(InvalidInput):
        set_dotfiles(actor=bob, url="http://h/dots")
    set_dotfiles(actor=bob, url="https://h/dots")
    set_dotfiles(actor=bob, url="https://h/dots")
    set_dotfiles(actor=bob, url="")
    assert Event.objects.filter(kind="account.dotfiles").count() == 2


def test_secret_for_a_repository_requires_the_open_scope(clock, bob, team, template, local_pool):
    """Otherwise `workspaces:write` alone could read every secret through a repository."""
    put(bob, bob, "MY_TOKEN")
    git = {"url": URL, "secret": "MY_TOKEN"}
    body = {"template": "jupyterlab", "flavor": "cpu-small", "team": team.slug, "git": git}
    for scopes, status in ((["workspaces:write"], 403), (["workspaces:write", "workspaces:connect"], 201)):
        token = create_token(actor=bob, user=bob, name=str(status), scopes=scopes).secret
        client = Client(headers={"Authorization": f"Bearer {token}"})
        answer = client.post("/api/v1/workspaces", json.dumps(body), content_type="application/json")
        assert answer.status_code == status, answer.content
    token = create_token(actor=bob, user=bob, name="x", scopes=["workspaces:write"]).secret
    dots = Client(headers={"Authorization": f"Bearer {token}"})
    refused = dots.put("/api/v1/me/dotfiles", '{"url": "https://h/d"}', content_type="application/json")
    assert refused.status_code == 403
