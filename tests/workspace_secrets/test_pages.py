"""Pages of secrets: typed values are in no response; and the workspace form."""

from __future__ import annotations

import time
from typing import Any

import pytest

from portal.catalog.models import Template
from portal.common.encrypted_fields import decrypt
from portal.people.accounts.models import Role
from portal.people.accounts.session_store import PROVEN_AT
from portal.workspaces.models import Workspace
from portal.workspaces.secrets import services
from portal.workspaces.secrets.models import Secret, purpose_of
from tests.factories import MembershipFactory
from tests.workspaces.helpers import run_until_ready

pytestmark = pytest.mark.django_db
VALUE = "planted-value-0f8a7c"


def put(actor: Any, holder: Any, name: str, **more: Any) -> Secret:
    return services.put_secret(actor=actor, holder=holder, name=name, **{"value": VALUE, **more}).secret


def value_of(secret: Secret) -> str:
    secret.refresh_from_db()
    return decrypt(secret.sealed, purpose=purpose_of(secret))


def test_secret_is_created_changed_and_deleted(as_user, alice):
    browser = as_user(alice)
    typed = {"name": "DEPLOY_KEY", "kind": "file", "value": f"{VALUE}\r\nline two\r\n", "everywhere": "on"}
    assert browser.post("/account/secrets/", typed).status_code == 302
    row = Secret.objects.get()
    assert (row.user, row.kind, row.everywhere) == (alice, "file", True)
    assert value_of(row) == f"{VALUE}\nline two\n"
    url = f"/secrets/{row.pk}/"
    for page in (browser.get("/account/secrets/"), browser.get(url)):
        assert b"DEPLOY_KEY" in page.content and b"planted" not in page.content
    assert browser.post(url, {"value": "", "description": "For CI"}).status_code == 302
    row.refresh_from_db()
    assert (row.version, row.description, row.everywhere) == (1, "For CI", False)
    assert browser.post(url, {"value": "another"}).status_code == 302
    assert value_of(row) == "another"
    assert browser.post(f"{url}delete/").status_code == 302
    assert not Secret.objects.exists()


def test_typed_secret_is_not_shown_again_after_an_error(as_user, alice):
    browser = as_user(alice)
    for name in ("PATH", "A-B", ""):
        page = browser.post("/account/secrets/", {"name": name, "kind": "env", "value": VALUE})
        assert page.status_code == 400 and VALUE.encode() not in page.content
    put(alice, alice, "API_KEY")
    taken = browser.post("/account/secrets/", {"name": "API_KEY", "kind": "env", "value": VALUE + "2"})
    assert taken.status_code == 400 and VALUE.encode() not in taken.content
    assert value_of(Secret.objects.get()) == VALUE


def test_reauthentication_does_not_keep_the_typed_secret(as_user, alice):
    browser = as_user(alice)
    session = browser.session
    session[PROVEN_AT] = time.time() - 10**6
    session.save()
    answer = browser.post("/account/secrets/", {"name": "API_KEY", "kind": "env", "value": VALUE})
    assert (
        answer.status_code == 302 and answer["Location"] == "/account/confirm/?next=%2Faccount%2Fsecrets%2F"
    )
    assert VALUE.encode() not in browser.get(answer["Location"]).content
    assert not Secret.objects.exists()


def test_concurrent_change_names_the_editor(as_user, team, alice):
    row = put(alice, team, "API_KEY")
    browser = as_user(alice)
    version = browser.get(f"/secrets/{row.pk}/").context["version"]
    put(alice, team, "API_KEY", value="meanwhile")
    answer = browser.post(f"/secrets/{row.pk}/", {"value": VALUE, "version": version})
    assert answer.status_code == 400 and b"alice" in answer.content and VALUE.encode() not in answer.content
    assert value_of(row) == "meanwhile"


def test_members_and_viewers_see_secret_names_without_forms(as_user, team, alice, bob, charlie):
    row = put(alice, team, "API_KEY")
    viewer = MembershipFactory(team=team, role=Role.VIEWER).user
    for reader in (bob, viewer):
        browser = as_user(reader)
        for url in ("/teams/vision/secrets/", f"/secrets/{row.pk}/"):
            page = browser.get(url).content
            assert b"API_KEY" in page and b'name="value"' not in page and b"planted" not in page
        assert browser.post(f"/secrets/{row.pk}/", {"value": "x"}).status_code == 403
        assert browser.get(f"/secrets/{row.pk}/delete/").status_code == 403
    assert as_user(charlie).get(f"/secrets/{row.pk}/").status_code == 404


def test_workspace_form_lists_secrets_and_remembers_the_choice(
    as_user, team, local_pool, alice, bob, olga, sent
):
    template = Template.objects.get(slug="jupyterlab")
    put(bob, bob, "OWN")
    put(alice, team, "OWN")
    put(alice, team, "ALWAYS", everywhere=True)
    put(olga, template, "ALWAYS")
    browser = as_user(bob)
    page = browser.get("/workspaces/new/")
    shown = [(c.name, c.source, c.hides, c.automatic, c.chosen) for c in page.context["secrets"]]
    assert shown == [
        ("OWN", "yours", "the team's", False, False),
        ("ALWAYS", "the team's", "the template's", True, False),
    ]
    chosen = {"template": "jupyterlab", "flavor": "cpu-small", "team": "vision", "name": "paper"}
    part = browser.get(
        "/workspaces/new/",
        {**chosen, "secrets": ["OWN"]},
        headers={"HX-Request": "true", "HX-Target": "choice"},
    )
    assert b'value="OWN" checked' in part.content.replace(b"\n    ", b" ")
    refused = browser.post("/workspaces/new/", {**chosen, "secrets": ["NONE"]})
    assert refused.status_code == 400 and b"NONE" in refused.content
    assert browser.post("/workspaces/new/", {**chosen, "secrets": ["OWN"]}).status_code == 302
    made = Workspace.objects.get()
    assert made.secrets == ["OWN"]
    assert [c.chosen for c in browser.get("/workspaces/new/").context["secrets"]] == [True, False]
    run_until_ready(sent, made)
    page = browser.get(f"/workspaces/{made.pk}/")
    # No secrets were delivered, as this start has no agent.
    assert b"Secrets have changed since this start" in page.content
    services.delete(actor=bob, secret=Secret.objects.get(user=bob))
    services.delete(actor=alice, secret=Secret.objects.get(team=team, name="OWN"))
    assert b"Missing secrets: OWN." in browser.get(f"/workspaces/{made.pk}/").content
