"""Rendered pages: content by state, and refusals."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.template.loader import render_to_string
from django.test import Client
from django.utils import timezone

from portal.catalog.models import Flavor
from portal.fleet.inventory.models import Pool
from portal.people.accounts.models import ApiToken, Role, Team, User
from portal.workspaces import views
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.results import driver_reason
from provisioning.types import LimitedResource
from tests.factories import PASSWORD, WorkspaceFactory, local_pool_with, node_info
from tests.ui.conftest import LONG_NAME

Browse = Callable[..., Client]
Make = Callable[..., Workspace]


def text_of(response: object) -> str:
    """Return the text of a page without markup."""
    body = response.content.decode()  # type: ignore[attr-defined]
    body = re.sub(r"<(script|style|head)\b.*?</\1>", " ", body, flags=re.S)
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


# --- Sign-in ------------------------------------------------------------------------------------


def test_sign_in_redirects_to_the_requested_page(alice: User, client: Client) -> None:
    away = client.get("/teams/")
    assert away.status_code == 302
    page = client.get(away["Location"])
    assert page.status_code == 200
    answer = client.post("/sign-in/", {"username": "alice", "password": PASSWORD, "next": "/teams/"})
    assert (answer.status_code, answer["Location"]) == (302, "/teams/")


@pytest.mark.parametrize(
    "elsewhere",
    ["https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:alert(1)", "teams/"],
)
def test_sign_in_does_not_redirect_to_another_site(alice: User, client: Client, elsewhere: str) -> None:
    answer = client.post("/sign-in/", {"username": "alice", "password": PASSWORD, "next": elsewhere})
    assert (answer.status_code, answer["Location"]) == (302, "/")


def test_wrong_password_is_reported_and_keeps_the_name(alice: User, client: Client) -> None:
    page = client.post("/sign-in/", {"username": "alice", "password": "wrong"})
    assert "Wrong name or password" in text_of(page)
    assert 'value="alice"' in page.content.decode()


def test_too_many_wrong_passwords_show_the_waiting_time(
    alice: User, client: Client, settings: object
) -> None:
    for _ in range(settings.AXES_FAILURE_LIMIT):  # type: ignore[attr-defined]
        page = client.post("/sign-in/", {"username": "alice", "password": "wrong"})
    assert page.status_code == 429
    assert page["Retry-After"] == "900"
    assert "Wait 15 minutes" in text_of(page)
    right = client.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    assert right.status_code == 429


def test_partial_without_a_session_redirects_the_whole_page(client: Client, db: None) -> None:
    answer = client.get(
        "/sign-in/?next=/",
        headers={"HX-Request": "true", "HX-Target": "list", "HX-Current-URL": "http://testserver/?q=a"},
    )
    assert answer["HX-Redirect"] == "/sign-in/?next=%2F%3Fq%3Da"


def test_theme_is_stored_and_rendered(alice: User, as_user: Browse) -> None:
    client = as_user(alice)
    assert "data-theme=" not in client.get("/").content.decode()
    answer = client.post("/theme/", {"theme": "dark", "next": "/teams/"})
    assert (answer.status_code, answer["Location"]) == (302, "/teams/")
    assert '<html lang="en" data-theme="dark">' in client.get("/").content.decode()
    client.post("/theme/", {"theme": ""})
    assert "data-theme=" not in client.get("/").content.decode()


# --- Home ---------------------------------------------------------------------------------------


def test_empty_home_page_shows_the_next_step(alice: User, team: Team, as_user: Browse) -> None:
    page = text_of(as_user(alice).get("/"))
    assert "No workspaces yet" in page
    assert "No pools yet" in page


def test_home_page_offers_the_last_choice(
    alice: User, team: Team, local_pool: Pool, make: Make, as_user: Browse
) -> None:
    make(alice, "cpu-large")
    client = as_user(alice)
    assert "Start JupyterLab · Large CPU · Vision" in text_of(client.get("/"))
    answer = client.post(
        "/workspaces/new/", {"template": "jupyterlab", "flavor": "cpu-large", "team": "vision", "again": "1"}
    )
    made = Workspace.objects.get(name="jupyterlab-2")
    assert (answer.status_code, answer["Location"]) == (302, f"/workspaces/{made.pk}/?open=1")


@pytest.mark.parametrize("state", [state for state in State if state != State.TERMINATED])
def test_card_shows_its_state_and_possible_actions(
    alice: User, as_user: Browse, workspace_in: Make, state: State
) -> None:
    workspace = workspace_in(state.value, alice, name="mine")
    body = as_user(alice).get("/").content.decode()
    card = body[body.index(f'id="ws-{workspace.pk}"') :].split("</li>")[0]
    assert str(state.label) in card
    offered = {verb for verb in ("open", "start", "stop") if f"/workspaces/{workspace.pk}/{verb}/" in card}
    possible = {
        State.PENDING: {"stop"},
        State.PROVISIONING: {"stop"},
        State.RUNNING: {"open", "stop"},
        State.STOPPED: {"start"},
        State.FAILED: {"start"},
    }
    assert offered == possible.get(state, set())


def test_two_hundred_workspaces_are_paged_filtered_and_searched(
    alice: User, as_user: Browse, workspace_in: Make
) -> None:
    for number in range(200):
        workspace_in("running" if number % 2 else "stopped", alice, name=f"number-{number}")
    client = as_user(alice)
    first = client.get("/")
    assert first.content.count(b'class="card ws"') == 24
    assert "1–24 of 200 workspaces" in text_of(first)
    last = client.get("/?state=stopped&page=999")
    assert "97–100 of 100 workspaces" in text_of(last)
    one = client.get("/?q=number-137+jupyter")
    assert one.content.count(b'class="card ws"') == 1
    none = client.get("/?q=nothing-like-it")
    assert "All 200 workspaces are hidden" in text_of(none)


def test_queries_of_the_list_do_not_grow_with_workspaces(
    alice: User, as_user: Browse, workspace_in: Make, django_assert_max_num_queries: Callable[..., object]
) -> None:
    for number in range(24):
        workspace_in("running", alice, name=f"number-{number}")
    client = as_user(alice)
    client.get("/")
    with django_assert_max_num_queries(50):  # type: ignore[attr-defined]
        client.get("/")


def test_filter_for_all_needs_permission_to_see_others(
    alice: User, bob: User, team: Team, as_user: Browse, workspace_in: Make
) -> None:
    workspace_in("running", bob, name="of-bob")
    assert "of-bob" not in text_of(as_user(alice).get("/"))
    assert "All workspaces" in text_of(as_user(alice).get("/"))
    assert "All workspaces" not in text_of(as_user(bob).get("/"))


# --- Workspace ----------------------------------------------------------------------------------


def test_page_of_a_running_workspace(alice: User, team: Team, as_user: Browse, workspace_in: Make) -> None:
    workspace = workspace_in(
        "running",
        alice,
        name=LONG_NAME,
        status__activity={
            "kernels": {"count": 2, "busy": 1},
            "terminals": None,
            "rss_mib": 2048,
            "processes": 7,
        },
    )
    page = as_user(alice).get(f"/workspaces/{workspace.pk}/")
    words = text_of(page)
    assert "Open JupyterLab" in words
    assert "3.0 s from request to ready" in words
    assert "Kernels 2, 1 busy" in words
    assert "Memory used 2 GiB" in words
    assert "Terminals" not in words, "what was not measured is not shown"
    assert "placed the workspace on node-1: it fits" in words
    assert page.content.count(b'class="stage done"') == 5


def test_stages_of_a_running_and_a_failed_start(alice: User, as_user: Browse, workspace_in: Make) -> None:
    client = as_user(alice)
    starting = workspace_in("provisioning", alice)
    body = client.get(f"/workspaces/{starting.pk}/?open=1").content.decode()
    assert body.count('class="stage done"') == 3
    assert body.count('class="stage current"') == 1
    assert "The workspace opens here when it is ready." in body
    assert '<noscript><meta http-equiv="refresh" content="3"></noscript>' in body
    failed = workspace_in(
        "failed",
        alice,
        termination_reason="start_timeout",
        status__reason=driver_reason("start_timeout", "No answer.").as_json(),
        status__log_tail="last line",
    )
    body = client.get(f"/workspaces/{failed.pk}/").content.decode()
    assert body.count('class="stage failed"') == 1
    assert "Not ready in time" in body
    assert "last line" in body


def test_workspace_opens_automatically_only_on_request(
    alice: User, as_user: Browse, workspace_in: Make
) -> None:
    workspace = workspace_in("running", alice)
    client = as_user(alice)
    assert "data-open-now" not in client.get(f"/workspaces/{workspace.pk}/").content.decode()
    assert "data-open-now" in client.get(f"/workspaces/{workspace.pk}/?open=1").content.decode()


def test_workspace_opens_despite_the_form_action_policy(
    alice: User, as_user: Browse, workspace_in: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chromium applies the policy of the sign-in page, `form-action 'self'`, to all redirects of its form."""
    workspace = workspace_in("running", alice)
    monkeypatch.setattr(views.publishing, "issue_ticket", lambda **_: "t")
    path, target = f"/workspaces/{workspace.pk}/open/?next=/lab", f"{workspace.origin}/.berth/enter"
    client = as_user(alice)
    after_form = client.get(path, headers={"sec-fetch-site": "same-origin"})
    assert (after_form.status_code, after_form["Refresh"]) == (200, f"0; url={target}?ticket=t&next=%2Flab")
    assert f'href="{target}?ticket=t&amp;next=%2Flab"' in after_form.content.decode()
    assert client.get(path)["Location"] == f"{target}?ticket=t&next=%2Flab"


@pytest.mark.parametrize(
    ("host", "domain", "public", "says"),
    [
        ("localhost:8000", "localhost", "http://localhost:8000", "in Chrome, Edge or Firefox"),
        ("localhost:9000", "localhost", "http://localhost:8000", "ssh -N -L 8000:localhost:8000 USER@SERVER"),
        ("127.0.0.1:8000", "localhost", "http://localhost:8000", "Then open http://localhost:8000"),
        ("b.example", "b.example", "http://b.example", "DNS, certificate and proxy for *.b.example"),
        ("localhost:9000", "b.example", "http://b.example", "Open http://b.example instead"),
    ],
)
def test_unreachable_workspace_domain_is_explained(
    alice: User,
    as_user: Browse,
    workspace_in: Make,
    settings: Any,
    host: str,
    domain: str,
    public: str,
    says: str,
) -> None:
    settings.ALLOWED_HOSTS = [host.partition(":")[0]]
    settings.BERTH_DOMAIN, settings.BERTH_PUBLIC_ORIGIN = domain, public
    for path in ("/", f"/workspaces/{workspace_in('running', alice).pk}/"):
        page = as_user(alice).get(path, headers={"host": host})
        assert says in text_of(page)
        assert 'data-probe="http://probe.localhost:8000/"' in page.content.decode()
        assert "connect-src 'self' http://probe.localhost:8000" in page["Content-Security-Policy"]


def test_team_owner_can_stop_but_not_open_a_workspace(
    alice: User, bob: User, as_user: Browse, workspace_in: Make
) -> None:
    workspace = workspace_in("running", bob)
    body = as_user(alice).get(f"/workspaces/{workspace.pk}/?open=1").content.decode()
    assert f"/workspaces/{workspace.pk}/stop/" in body
    assert f"/workspaces/{workspace.pk}/open/" not in body
    assert as_user(alice).get(f"/workspaces/{workspace.pk}/open/").status_code == 403


@pytest.mark.parametrize("verb", ["", "logs/", "open/", "stop/", "delete/", "events/"])
def test_outsider_gets_not_found(charlie: User, alice: User, as_user: Browse, make: Make, verb: str) -> None:
    stranger = as_user(charlie)
    workspace = WorkspaceFactory(owner=alice)
    page = stranger.get(f"/workspaces/{workspace.pk}/{verb}")
    assert page.status_code == 404
    assert workspace.name not in page.content.decode()


def test_stop_and_delete_ask_for_confirmation(
    alice: User, team: Team, local_pool: Pool, make: Make, as_user: Browse
) -> None:
    workspace = make(alice, "cpu-small")
    client = as_user(alice)
    for verb, words in (("stop", "everything in memory"), ("delete", "your home folder in Vision")):
        question = client.get(f"/workspaces/{workspace.pk}/{verb}/")
        assert words in text_of(question)
    workspace.refresh_from_db()
    assert workspace.state == State.PROVISIONING, "asking changes nothing"
    client.post(f"/workspaces/{workspace.pk}/stop/")
    workspace.refresh_from_db()
    assert workspace.state == State.STOPPING
    answer = client.post(f"/workspaces/{workspace.pk}/delete/", follow=True)
    assert f"{workspace.name} is being deleted. Your home folder is kept." in text_of(answer)


def test_sign_in_during_an_action_redirects_to_its_page(
    alice: User, team: Team, as_user: Browse, workspace_in: Make
) -> None:
    workspace = workspace_in("stopped", alice)
    client = as_user(alice)
    for path, lands in (
        (f"/workspaces/{workspace.pk}/start/", f"/workspaces/{workspace.pk}/"),
        ("/teams/vision/members/bob/role/", "/teams/vision/"),
    ):
        answer = client.get(path)
        assert (answer.status_code, answer["Location"]) == (302, lands)
    workspace.refresh_from_db()
    assert workspace.state == State.STOPPED, "looking changes nothing"


def test_late_action_is_reported(alice: User, team: Team, as_user: Browse, workspace_in: Make) -> None:
    workspace = workspace_in("stopping", alice)
    answer = as_user(alice).post(f"/workspaces/{workspace.pk}/start/", follow=True)
    assert "cannot be started now. Wait until it is stopped" in text_of(answer)


def test_only_simulated_workspaces_are_marked_on_every_page(
    alice: User, team: Team, pool: Pool, make: Make, as_user: Browse, workspace_in: Make
) -> None:
    simulated = make(alice, "sim-cpu")
    real = workspace_in("running", alice, name="real")
    client = as_user(alice)
    badge = 'class="badge sim"'
    for path in (f"/workspaces/{simulated.pk}/", "/pools/sim/", "/pools/", "/", "/workspaces/new/"):
        assert badge in client.get(path).content.decode(), path
    assert badge not in client.get(f"/workspaces/{real.pk}/").content.decode()
    assert badge not in client.get("/pools/this-machine/").content.decode()
    body = client.get("/").content.decode()
    card = body[body.index(f'id="ws-{real.pk}"') :].split("</li>")[0]
    assert badge not in card


# --- Teams and tokens ---------------------------------------------------------------------------


def test_owner_adds_changes_and_removes_a_member(
    alice: User, charlie: User, team: Team, as_user: Browse
) -> None:
    client = as_user(alice)
    added = client.post("/teams/vision/", {"username": "charlie", "role": "member"}, follow=True)
    assert "charlie is now member of Vision." in text_of(added)
    client.post("/teams/vision/members/charlie/role/", {"role": "owner"})
    assert team.memberships.get(user=charlie).role == Role.OWNER
    question = client.get("/teams/vision/members/charlie/revoke/")
    assert "the files in their home folder" in text_of(question)
    client.post("/teams/vision/members/charlie/revoke/")
    assert not team.memberships.filter(user=charlie).exists()


def test_concurrently_changed_role_is_kept(alice: User, bob: User, team: Team, as_user: Browse) -> None:
    client, where = as_user(alice), "/teams/vision/members/bob/role/"
    page = client.get("/teams/vision/").content.decode()
    (read,) = re.findall(rf'action="{where}">.*?name="version" value="([0-9a-f]+)"', page, re.DOTALL)
    team.memberships.filter(user=bob).update(role=Role.VIEWER)
    refused = client.post(where, {"role": "owner", "version": read}, follow=True)
    assert "after you opened it" in text_of(refused)
    assert team.memberships.get(user=bob).role == Role.VIEWER


def test_team_refusals_name_the_rule(alice: User, team: Team, as_user: Browse) -> None:
    client = as_user(alice)
    unknown = client.post("/teams/vision/", {"username": "nobody", "role": "member"})
    assert unknown.status_code == 400
    assert "User not found." in text_of(unknown)
    last = client.post("/teams/vision/members/alice/revoke/", follow=True)
    assert "alice is the only owner of Vision. Make another member an owner first." in text_of(last)


def test_member_sees_the_team_without_forms(bob: User, team: Team, as_user: Browse) -> None:
    client = as_user(bob)
    body = client.get("/teams/vision/").content.decode()
    assert "Add member" not in body
    assert "Leave" in body
    assert client.post("/teams/vision/", {"username": "alice", "role": "member"}).status_code == 403
    assert client.post("/teams/vision/members/alice/role/", {"role": "member"}).status_code == 403
    assert client.get("/teams/vision/members/alice/revoke/").status_code == 403


def test_operator_creates_a_team(olga: User, as_user: Browse) -> None:
    client = as_user(olga)
    bad = client.post("/teams/", {"name": "Robots", "slug": "Not a slug"})
    assert bad.status_code == 400
    assert "Use lower-case letters" in text_of(bad)
    good = client.post("/teams/", {"name": "Robots", "slug": "robots"}, follow=True)
    assert "Team created. You are the owner." in text_of(good)


def test_only_administrators_create_teams(alice: User, as_user: Browse) -> None:
    client = as_user(alice)
    assert "Create a team" not in text_of(client.get("/teams/"))
    assert client.post("/teams/", {"name": "Robots", "slug": "robots"}).status_code == 403


def test_a_token_is_shown_once(alice: User, as_user: Browse) -> None:
    client = as_user(alice)
    made = client.post(
        "/account/tokens/", {"name": "nightly", "expires": "30", "scopes": ["workspaces:read", "teams:read"]}
    )
    token = ApiToken.objects.get()
    secret = re.search(r'value="(berth_[\w-]+)"', made.content.decode())
    assert secret
    assert made["Cache-Control"].find("no-store") >= 0
    assert token.scopes == ["teams:read", "workspaces:read"]
    assert token.expires_at
    assert timedelta(days=29) < token.expires_at - timezone.now() <= timedelta(days=30)
    again = client.get("/account/tokens/").content.decode()
    assert secret.group(1) not in again
    assert "nightly" in again
    client.post(f"/account/tokens/{token.pk}/revoke/")
    assert "No tokens yet" in text_of(client.get("/account/tokens/"))


def test_token_without_scopes_is_refused_with_a_message(alice: User, as_user: Browse) -> None:
    page = as_user(alice).post("/account/tokens/", {"name": "x", "expires": "7"})
    assert page.status_code == 400
    assert "Choose at least one." in text_of(page)
    assert not ApiToken.objects.exists()


def test_password_change_keeps_the_session(alice: User, as_user: Browse) -> None:
    client = as_user(alice)
    new = "another-long-enough-one"
    bad = client.post("/account/", {"old_password": "no", "new_password": new, "repeated": new})
    assert bad.status_code == 400
    good = client.post(
        "/account/", {"old_password": PASSWORD, "new_password": new, "repeated": new}, follow=True
    )
    assert "Password changed" in text_of(good)
    alice.refresh_from_db()
    assert alice.check_password(new)


# --- Pools --------------------------------------------------------------------------------------


def test_pool_page_shows_warnings_limits_devices_and_missing_programs(
    alice: User, catalog: None, as_user: Browse
) -> None:
    local_pool_with(
        node_info(gpus=2, programs=("jupyter-lab",), warnings=("bubblewrap is missing. Install it.",))
    )
    words = text_of(as_user(alice).get("/pools/this-machine/"))
    assert "bubblewrap is missing. Install it. On node-1." in words
    assert "sandbox (bubblewrap) control groups" in words
    assert "GPU-node-1-1" in words
    assert "2 of 2 free" in words
    assert "VS Code not installed" in words


def test_pool_page_shows_enforced_limits(alice: User, catalog: None, as_user: Browse) -> None:
    local_pool_with(
        replace(node_info("bare"), limited=(LimitedResource.CPU,)),
        replace(node_info("held"), limited=(LimitedResource.CPU, LimitedResource.DISK)),
        replace(
            node_info("kernel"),
            limited=(LimitedResource.CPU, LimitedResource.DISK),
            facts={"home_hold": "project_quota"},
        ),
    )
    words = text_of(as_user(alice).get("/pools/this-machine/"))
    assert "control groups: CPU; home folder: measured" in words
    assert "control groups: CPU; home folder: project quota" in words


def test_device_users_are_shown_only_with_permission(
    alice: User, charlie: User, team: Team, catalog: None, make: Make, as_user: Browse
) -> None:
    local_pool_with(node_info(gpus=1))
    flavor = Flavor.objects.get(accelerator_count=1)
    workspace = make(alice, flavor.slug, name="secret-project")
    assert workspace.state == State.PROVISIONING
    assert "secret-project of alice" in text_of(as_user(alice).get("/pools/this-machine/"))
    foreign = text_of(as_user(charlie).get("/pools/this-machine/"))
    assert "another team" in foreign
    assert "secret-project" not in foreign
    assert "0 of 1 free" in foreign
    held = text_of(as_user(alice).get(f"/workspaces/{workspace.pk}/"))
    assert "Devices 1 × NVIDIA H100 80GB HBM3 GPU-node-1-0" in held


def test_hundred_nodes_are_paged(alice: User, as_user: Browse, catalog: None) -> None:
    local_pool_with(*(node_info(f"node-{number:03d}", gpus=8) for number in range(100)))
    page = as_user(alice).get("/pools/this-machine/?page=2")
    words = text_of(page)
    assert "26–50 of 100 nodes" in words
    assert "node-026" in words
    assert "800 of 800 free" in words
    assert page.content.count(b'<span class="slot ') == 200, "the overview of 800 is a bar, not 800 boxes"


# --- Errors -------------------------------------------------------------------------------------


def test_error_pages_have_code_request_id_and_one_next_action(client: Client, alice: User) -> None:
    client.force_login(alice, backend="django.contrib.auth.backends.ModelBackend")
    page = client.get(
        "/workspaces/0b0b0b0b-0000-4000-8000-000000000000/", headers={"X-Request-Id": "abc12345"}
    )
    words = text_of(page)
    assert page.status_code == 404
    assert "404" in words
    assert "abc12345" in words
    assert page.content.count(b"btn primary") == 1
    nowhere = client.get("/nowhere/")
    assert nowhere.status_code == 404
    assert "The page does not exist" in text_of(nowhere)


def test_server_error_page_needs_no_database(
    client: Client, monkeypatch: pytest.MonkeyPatch, alice: User
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken on purpose")

    client.force_login(alice, backend="django.contrib.auth.backends.ModelBackend")
    client.raise_request_exception = False
    monkeypatch.setattr("portal.web.fleet.presenters.pools.capacities", broken)
    page = client.get("/pools/", headers={"X-Request-Id": "abc12345"})
    assert page.status_code == 500
    assert "Internal error" in text_of(page)


@pytest.mark.parametrize("code", ["400", "403", "403_csrf", "404", "429", "500", "503"])
def test_every_error_template_renders_without_context(code: str) -> None:
    assert code[:3] in text_of_html(render_to_string(f"{code}.html"))


def text_of_html(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def test_cross_site_form_is_refused_with_a_page(alice: User) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(alice, backend="django.contrib.auth.backends.ModelBackend")
    page = strict.post("/teams/vision/", {"username": "bob", "role": "member"})
    assert page.status_code == 403
    assert "Form expired" in text_of(page)
