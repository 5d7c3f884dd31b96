"""PATCH of a workspace: name, expected hours and priority."""

from __future__ import annotations

from typing import Any

import pytest

from portal.common.events.models import Event
from portal.scheduling.models import SnapshotChange
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests import sites
from tests.api.conftest import problem
from tests.factories import WorkspaceFactory

pytestmark = pytest.mark.django_db
WORLD = sites.people


@pytest.fixture
def waiting(bob: Any, team: Any) -> Workspace:
    return WorkspaceFactory(owner=bob, team=team, name="first")


def patch(program: Any, workspace: Workspace, body: dict[str, Any], **headers: str) -> Any:
    return program.send("PATCH", f"workspaces/{workspace.pk}", body, **headers)


def test_only_given_fields_change(api: Any, bob: Any, waiting: Workspace) -> None:
    answer = patch(api(bob), waiting, {"name": "Second", "expected_hours": 1.5, "priority": -10})

    assert answer.status_code == 200, answer.json()
    shown = answer.json()
    assert (shown["name"], shown["expected_hours"], shown["priority"]) == ("second", 1.5, -10)
    assert patch(api(bob), waiting, {"priority": -20}).json()["name"] == "second"
    entry = Event.objects.filter(kind="workspace.changed").order_by("pk")[0]
    assert entry.message == "changed the name and expected time and priority of the workspace"
    assert entry.data["before"] == {"name": "first", "expected_s": 28_800, "priority": 0}


def test_priority_changes_update_the_queue_and_another_name_does_not(
    api: Any, bob: Any, waiting: Workspace
) -> None:
    def told() -> int:
        return SnapshotChange.objects.filter(key=waiting.pk).count()

    before = told()
    patch(api(bob), waiting, {"name": "other"})
    assert told() == before
    patch(api(bob), waiting, {"priority": -1})
    assert told() == before + 1


def test_unchanged_values_keep_the_etag_and_write_no_event(api: Any, bob: Any, waiting: Workspace) -> None:
    tag = api(bob).get(f"workspaces/{waiting.pk}")["ETag"]
    answer = patch(api(bob), waiting, {"name": "first", "priority": 0}, **{"If-Match": tag})
    assert (answer.status_code, answer["ETag"]) == (200, tag)
    assert patch(api(bob), waiting, {}).status_code == 200
    assert not Event.objects.filter(kind="workspace.changed").exists()


def test_outdated_etag_is_refused(api: Any, bob: Any, waiting: Workspace) -> None:
    tag = api(bob).get(f"workspaces/{waiting.pk}")["ETag"]
    changed = patch(api(bob), waiting, {"priority": -1}, **{"If-Match": tag})
    assert (changed.status_code, changed["ETag"] != tag) == (200, True)
    problem(patch(api(bob), waiting, {"priority": -2}, **{"If-Match": tag}), 412, "precondition_failed")
    waiting.refresh_from_db()
    assert waiting.priority == -1


def test_only_team_owners_and_operators_raise_priority(
    api: Any, alice: Any, bob: Any, olga: Any, waiting: Workspace
) -> None:
    body = problem(patch(api(bob), waiting, {"priority": 1}), 403, "not_allowed")
    assert body["reason"]["code"] == "priority_not_allowed"
    assert patch(api(alice), waiting, {"priority": 50}).status_code == 200
    # Its owner can still change other fields, and lower the priority.
    assert patch(api(bob), waiting, {"priority": 50, "name": "first-of-all"}).status_code == 200
    assert patch(api(bob), waiting, {"priority": 0}).status_code == 200
    assert patch(api(olga), waiting, {"priority": 100}).status_code == 200


def test_permissions(api: Any, bob: Any, charlie: Any, waiting: Workspace) -> None:
    problem(patch(api(None), waiting, {"name": "x"}), 401, "not_authenticated")
    problem(patch(api(charlie), waiting, {"name": "x"}), 404, "not_found")
    problem(patch(api(bob, "workspaces:read"), waiting, {"name": "x"}), 403, "permission_denied")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "Not a name!"}, "name"),
        ({"name": "x" * 61}, "name"),
        ({"name": None}, "name"),
        ({"expected_hours": 0}, "expected_hours"),
        ({"expected_hours": 721}, "expected_hours"),
        ({"priority": 101}, "priority"),
        ({"flavor": "sim-cpu"}, "flavor"),
    ],
)
def test_invalid_fields_are_named(api: Any, bob: Any, waiting: Workspace, body: Any, field: str) -> None:
    assert field in problem(patch(api(bob), waiting, body), 400, "invalid")["errors"]
    waiting.refresh_from_db()
    assert (waiting.name, waiting.expected_s, waiting.priority) == ("first", 28_800, 0)


def test_duplicate_name_is_refused(api: Any, bob: Any, team: Any, waiting: Workspace) -> None:
    WorkspaceFactory(owner=bob, team=team, name="taken")
    problem(patch(api(bob), waiting, {"name": "taken"}), 409, "name_taken")
    waiting.refresh_from_db()
    assert waiting.name == "first"


def test_only_stopped_workspaces_can_be_renamed(
    api: Any, make: Any, bob: Any, pool: Any, settle: Any, sent: Any
) -> None:
    workspace, program = make(bob, "sim-cpu"), api(bob)
    settle()
    body = problem(patch(program, workspace, {"name": "other"}), 409, "conflict")
    assert (body["state"], body["reason"]["code"]) == ("running", "workspace_not_renameable")
    assert patch(program, workspace, {"priority": -1}).json()["state"] == "running"

    program.post(f"workspaces/{workspace.pk}/stop")
    body = problem(patch(program, workspace, {"priority": -2}), 409, "conflict")
    assert (body["state"], body["reason"]["code"]) == ("stopping", "workspace_not_changeable")
    settle()
    assert patch(program, workspace, {"name": "other"}).json()["name"] == "other"
    program.post(f"workspaces/{workspace.pk}/start")
    settle()
    assert program.get(f"workspaces/{workspace.pk}").json()["state"] == State.RUNNING


def test_workspace_with_an_end_is_extended_instead(
    api: Any, make: Any, bob: Any, pool: Any, settle: Any, sent: Any
) -> None:
    workspace = make(bob, "sim-cpu", lifetime_s=7200)
    waiting = patch(api(bob), workspace, {"expected_hours": 5})
    # Expected hours cannot exceed the lifetime.
    assert waiting.json()["expected_hours"] == 2
    settle()
    body = problem(patch(api(bob), workspace, {"expected_hours": 1}), 409, "conflict")
    assert body["reason"]["code"] == "expected_by_end"
