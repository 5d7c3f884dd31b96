"""POST …/start, POST …/stop and DELETE of a workspace"""

from __future__ import annotations

from typing import Any

import pytest

from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace, WorkspaceStatus
from tests.api.conftest import problem
from tests.factories import WorkspaceFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def running(make: Any, bob: Any, pool: Any, settle: Any, sent: Any) -> Workspace:
    workspace = make(bob, "sim-cpu")
    settle()
    workspace.refresh_from_db()
    assert workspace.state == State.RUNNING
    return workspace


def test_stop_start_and_delete(api: Any, bob: Any, running: Workspace, settle: Any) -> None:
    program, path = api(bob), f"workspaces/{running.pk}"

    stopping = program.post(f"{path}/stop")
    assert (stopping.status_code, stopping.json()["state"], stopping.json()["desired_state"]) == (
        *(202, "stopping", "stopped"),
    )
    settle()
    assert program.get(path).json()["state"] == "stopped"
    assert program.get(path).json()["nodes"] == []
    starting = program.post(f"{path}/start/")
    assert (starting.status_code, starting.json()["state"]) == (202, "provisioning")
    settle()
    assert program.get(path).json()["state"] == "running"
    ending = program.delete(path)
    assert (ending.status_code, ending.json()["state"]) == (202, "terminating")
    settle()
    assert program.get(path).json()["state"] == "terminated"


def test_repeated_actions_succeed(api: Any, bob: Any, running: Workspace, settle: Any) -> None:
    program, path = api(bob), f"workspaces/{running.pk}"

    assert program.post(f"{path}/start").status_code == 202
    assert [program.post(f"{path}/stop").status_code for _ in range(2)] == [202, 202]
    settle()
    assert [program.delete(path).status_code for _ in range(2)] == [202, 202]
    settle()
    response = program.delete(path)
    assert (response.status_code, response.content) == (204, b"")


def test_queued_workspace_is_deleted_at_once(api: Any, bob: Any, team: Any) -> None:
    waiting = WorkspaceFactory(owner=bob, team=team)

    assert api(bob).delete(f"workspaces/{waiting.pk}").status_code == 204


@pytest.mark.parametrize(("method", "action"), [("POST", "/stop"), ("POST", "/start"), ("DELETE", "")])
def test_permissions(
    api: Any,
    alice: Any,
    charlie: Any,
    olga: Any,
    bob: Any,
    running: Workspace,
    method: str,
    action: str,
) -> None:
    path = f"workspaces/{running.pk}{action}"

    problem(api(None).send(method, path), 401, "not_authenticated")
    problem(api(charlie).send(method, path), 404, "not_found")
    problem(api(bob, "workspaces:read").send(method, path), 403, "permission_denied")
    for user in (alice, olga):
        assert api(user).send(method, path).status_code == 202


def test_outdated_etag_is_refused(api: Any, bob: Any, running: Workspace, settle: Any) -> None:
    program, path = api(bob), f"workspaces/{running.pk}"
    tag = program.get(path)["ETag"]
    WorkspaceStatus.objects.filter(pk=running.pk).update(activity={"kernels": 2})

    assert program.post(f"{path}/stop", **{"If-Match": tag}).status_code == 202

    for late in (
        program.post(f"{path}/start", **{"If-Match": tag}),
        program.delete(path, **{"If-Match": tag}),
    ):
        assert problem(late, 412, "precondition_failed")["state"] == "stopping"
    assert program.delete(path, **{"If-Match": "*"}).status_code == 202


@pytest.mark.parametrize("if_match", ["not a tag", '"other"', 'W/"other.1", "another"'])
def test_unmatched_etag_is_refused(api: Any, bob: Any, running: Workspace, if_match: str) -> None:
    path = f"workspaces/{running.pk}"
    body = problem(api(bob).post(f"{path}/stop", **{"If-Match": if_match}), 412, "precondition_failed")
    assert (body["state"], body["reason"]["code"]) == ("running", "version_changed")
    assert api(bob).get(path).json()["state"] == "running"


def test_one_matching_etag_of_several_is_enough(api: Any, bob: Any, running: Workspace) -> None:
    path = f"workspaces/{running.pk}"
    tags = f'"other", {api(bob).get(path)["ETag"]}'
    assert api(bob).post(f"{path}/stop", **{"If-Match": tags}).status_code == 202
