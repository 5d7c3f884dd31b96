"""The workspace page and the way to it: refreshes, messages, and repeated starts."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape

import pytest
from django.test import Client
from django.utils import timezone

from portal.catalog.models import Flavor
from portal.common.actors import SYSTEM
from portal.common.events.services import record
from portal.fleet.inventory.models import Pool
from portal.people.accounts.models import Team, User
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace, WorkspaceStatus
from portal.workspaces.results import driver_reason
from tests.ui.test_pages import text_of

Browse = Callable[..., Client]
Make = Callable[..., Workspace]
CHOICE = {"template": "jupyterlab", "flavor": "cpu-small", "team": "vision"}


def part(client: Client, path: str, target: str, **query: str) -> str:
    answer = client.get(path, query, headers={"HX-Request": "true", "HX-Target": target})
    assert answer.status_code == 200
    body: str = answer.content.decode()
    assert "<html" not in body
    return body


# --- One workspace --------------------------------------------------------------------------------


def test_figures_of_a_workspace_are_a_refreshed_partial(
    alice: User, as_user: Browse, workspace_in: Make
) -> None:
    workspace = workspace_in(
        "running", alice, status__heartbeat_at=timezone.now(), status__activity={"kernels": {"count": 1}}
    )
    client = as_user(alice)
    path = f"/workspaces/{workspace.pk}/"
    whole = client.get(path).content.decode()
    activity = whole[whole.index('id="activity"') :].split("</dl>")[0]
    assert 'hx-trigger="every 15s"' in activity
    assert "<dd>1</dd>" in activity
    activity_now = {"kernels": {"count": 3, "busy": 2}, "rss_mib": 512}
    WorkspaceStatus.objects.filter(workspace=workspace).update(activity=activity_now)
    again = part(client, path, "activity")
    assert "<dd>3, 2 busy</dd>" in again
    assert "512 MiB" in again
    assert "Last heartbeat" in again
    workspace.state = State.STOPPED
    workspace.save(update_fields=["state"])
    assert 'id="activity"' not in client.get(path).content.decode()


def test_failed_start_offers_a_retry_and_shows_attempts(
    alice: User, as_user: Browse, workspace_in: Make
) -> None:
    workspace = workspace_in(
        "failed", alice, status__reason=driver_reason("exited", "It ended at once. Try again.").as_json()
    )
    for _ in range(3):
        record(actor=SYSTEM, kind="workspace.fail", workspace=workspace, message="did not start")
    client = as_user(alice)
    body = client.get(f"/workspaces/{workspace.pk}/").content.decode()
    note = body[body.index('<div class="note bad">') :].split("</form>")[0]
    assert "tried 3 times" in note
    assert f'action="/workspaces/{workspace.pk}/start/"' in note
    assert ">Try again</span>" in note
    assert body.split("<dialog")[0].count("btn primary") == 1


def test_attempts_before_the_last_run_are_not_counted(
    alice: User, as_user: Browse, workspace_in: Make
) -> None:
    workspace = workspace_in("failed", alice, status__reason=driver_reason("exited", "It ended.").as_json())
    for kind in ("fail", "fail", "ready", "fail"):
        record(actor=SYSTEM, kind=f"workspace.{kind}", workspace=workspace, message="…")
    assert "tried once" in text_of(as_user(alice).get(f"/workspaces/{workspace.pk}/"))


def test_automatic_retry_shows_attempts_and_time(alice: User, as_user: Browse, workspace_in: Make) -> None:
    due = timezone.now() + timedelta(seconds=40)
    workspace = workspace_in(
        "provisioning",
        alice,
        attempts=2,
        next_reconcile_at=due,
        status__reason=driver_reason("busy", "The node is busy.").as_json(),
    )
    page = text_of(as_user(alice).get(f"/workspaces/{workspace.pk}/"))
    assert "The node is busy. Tried 2 times. The portal retries automatically" in page


def test_log_of_a_deleted_workspace_is_deleted(alice: User, as_user: Browse, workspace_in: Make) -> None:
    workspace = workspace_in("terminated", alice, generation=1)
    client = as_user(alice)
    path = f"/workspaces/{workspace.pk}/"
    for said in (
        text_of(client.get(path)),
        text_of(client.get(f"{path}logs/")),
        part(client, f"{path}logs/", "log"),
    ):
        assert "written nothing" not in said
        assert "The log was deleted with the workspace" in said
    assert "log-refresh" not in client.get(path).content.decode()


def test_its_owner_gets_a_form_with_the_same_choice(
    alice: User, olga: User, as_user: Browse, workspace_in: Make
) -> None:
    workspace = workspace_in("failed", alice, flavor=Flavor.objects.get(slug="cpu-large"))
    client = as_user(alice)
    page = client.get(f"/workspaces/{workspace.pk}/").content.decode()
    [link] = re.findall(r'id="act-duplicate" href="([^"]+)"', page)
    form = client.get(unescape(link)).content.decode()
    assert 'value="cpu-large" checked' in form and 'value="jupyterlab" checked' in form
    assert 'id="act-duplicate"' not in as_user(olga).get(f"/workspaces/{workspace.pk}/").content.decode()


# --- Home -----------------------------------------------------------------------------------------


def test_one_primary_button_remains_after_the_last_workspace(
    alice: User, as_user: Browse, workspace_in: Make
) -> None:
    client = as_user(alice)
    assert client.get("/").content.decode().count("btn primary") == 1
    workspace = workspace_in("running", alice)
    whole = client.get("/").content.decode()
    assert whole.count("btn primary") == 1
    Workspace.objects.filter(pk=workspace.pk).update(state=State.TERMINATED)
    emptied = part(client, "/", "list")
    assert "btn primary" not in emptied
    assert "No workspaces" in emptied
    assert client.get("/").content.decode().count("btn primary") == 1


# --- New ------------------------------------------------------------------------------------------


def test_form_choice_is_in_the_url(alice: User, team: Team, local_pool: Pool, as_user: Browse) -> None:
    client = as_user(alice)
    chosen = {**CHOICE, "flavor": "cpu-large"}
    answer = client.get(
        "/workspaces/new/",
        chosen | {"name": "mine", "suggested": "jupyterlab"},
        headers={"HX-Request": "true", "HX-Target": "choice"},
    )
    address = answer["HX-Replace-Url"]
    assert address == "/workspaces/new/?template=jupyterlab&flavor=cpu-large&team=vision&name=mine"
    body = client.get(address).content.decode()
    assert 'value="cpu-large" checked' in body
    assert 'value="mine"' in body


@pytest.mark.parametrize(("typed", "named"), [("jupyterlab", "marimo"), ("mine", "mine")])
def test_start_before_the_form_updates_uses_the_template_name(
    alice: User, team: Team, local_pool: Pool, as_user: Browse, typed: str, named: str
) -> None:
    form = {**CHOICE, "template": "marimo", "name": typed, "suggested": "jupyterlab", "once": "a1"}
    client = as_user(alice)
    assert client.post("/workspaces/new/", form).status_code == 302
    assert client.post("/workspaces/new/", form).status_code == 302
    assert Workspace.objects.get().name == named


def test_form_sent_twice_makes_one_workspace_and_redirects_to_it(
    alice: User, team: Team, local_pool: Pool, as_user: Browse
) -> None:
    client = as_user(alice)
    form = {**CHOICE, "name": "jupyterlab", "once": "a1b2c3"}
    assert (
        f'name="once" value="{form["once"]}"' in client.get("/workspaces/new/?once=a1b2c3").content.decode()
    )
    first = client.post("/workspaces/new/", form)
    again = client.post("/workspaces/new/", form)
    made = Workspace.objects.get()
    page = f"/workspaces/{made.pk}/"
    assert (first["Location"], again["Location"]) == (f"{page}?open=1", f"{page}?open=1")
    # As after going back to the form: not another form, and no automatic opening.
    assert client.get("/workspaces/new/?once=a1b2c3")["Location"] == page
    changed = client.post("/workspaces/new/", {**form, "name": "another"})
    assert Workspace.objects.count() == 2
    assert changed["Location"] != first["Location"]
    Workspace.objects.all().update(state=State.TERMINATED)
    assert client.get("/workspaces/new/?once=a1b2c3").status_code == 200


def test_form_of_another_user_is_not_found(
    alice: User, bob: User, team: Team, local_pool: Pool, as_user: Browse
) -> None:
    as_user(alice).post("/workspaces/new/", {**CHOICE, "name": "jupyterlab", "once": "a1b2c3"})
    assert as_user(bob).get("/workspaces/new/?once=a1b2c3").status_code == 200


# --- Teams ----------------------------------------------------------------------------------------


def test_removing_a_member_lists_their_workspaces(
    alice: User, bob: User, team: Team, as_user: Browse, workspace_in: Make
) -> None:
    workspace = workspace_in("running", bob, name="night-run")
    client = as_user(alice)
    path = "/teams/vision/members/bob/revoke/"
    body = client.get(path).content.decode()
    assert "night-run" in body
    assert "Delete them first." in body
    assert ">Remove bob</span>" not in body
    assert "/workspaces/?team=vision&amp;owner=bob" in body
    assert "night-run" in text_of(client.get("/workspaces/?team=vision&owner=bob"))
    Workspace.objects.filter(pk=workspace.pk).update(state=State.TERMINATED)
    free = client.get(path).content.decode()
    assert "night-run" not in free
    assert ">Remove bob</span>" in free


@pytest.mark.parametrize("username", ["nobody-has-this", "charlie"])
def test_removing_a_non_member_reveals_no_workspaces(
    alice: User, charlie: User, team: Team, as_user: Browse, username: str
) -> None:
    assert "still has" not in text_of(as_user(alice).get(f"/teams/vision/members/{username}/revoke/"))
