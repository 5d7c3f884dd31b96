"""POST /api/v1/workspaces/stop and /delete"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests.api.conftest import Api, document, problem
from tests.factories import WorkspaceFactory

pytestmark = pytest.mark.django_db


def bulk(program: Api, act: str, *ids: Any) -> list[dict[str, Any]]:
    answer = program.post(f"workspaces/{act}", {"workspaces": [str(id_) for id_ in ids]})
    assert answer.status_code == 202, answer.content
    found: list[dict[str, Any]] = answer.json()["results"]
    assert set(found[0]) == set(document()["components"]["schemas"]["BulkResult"]["properties"])
    return found


def test_each_is_stopped_or_refused_by_itself(
    api: Any, bob: Any, charlie: Any, team: Any, make: Any, pool: Any, settle: Any, sent: Any
) -> None:
    mine = make(bob, "sim-cpu")
    settle()
    stopped = WorkspaceFactory(owner=bob, team=team, state=State.STOPPED)
    gone = WorkspaceFactory(owner=bob, team=team, state=State.TERMINATED)
    hidden = WorkspaceFactory(owner=charlie)

    found = bulk(api(bob), "stop", mine.pk, hidden.pk, gone.pk, mine.pk, stopped.pk, unknown := uuid4())

    assert [row["id"] for row in found] == [
        str(each) for each in (mine.pk, hidden.pk, gone.pk, stopped.pk, unknown)
    ]
    assert [row["status"] for row in found] == [202, 404, 409, 202, 404]
    assert [row["problem"] and row["problem"]["code"] for row in found] == [
        *(None, "not_found", "conflict", None, "not_found"),
    ]
    assert [row["workspace"] and row["workspace"]["desired_state"] for row in found] == [
        *("stopped", None, None, "stopped", None),
    ]
    assert Workspace.objects.get(pk=mine.pk).state == State.STOPPING
    # What is not to be seen is refused as what is not there.
    other = {**found[1]["problem"], "request_id": ""}
    assert other == {**found[4]["problem"], "request_id": ""}


def test_many_are_deleted(api: Any, bob: Any, team: Any, settle: Any, sent: Any) -> None:
    rows = [WorkspaceFactory(owner=bob, team=team, state=State.STOPPED) for _ in range(3)]
    found = bulk(api(bob), "delete", *(row.pk for row in rows))
    assert {row["status"] for row in found} <= {202, 204}
    assert {row["problem"] for row in found} == {None}
    settle()
    assert not Workspace.objects.exclude(state=State.TERMINATED).exists()
    assert {row["status"] for row in bulk(api(bob), "delete", *(row.pk for row in rows))} == {204}


@pytest.mark.parametrize("given", [[], ["x"], ["00000000-0000-4000-8000-000000000000"] * 101, None])
def test_what_cannot_be_meant(api: Any, bob: Any, given: Any) -> None:
    refused = problem(api(bob).post("workspaces/stop", {"workspaces": given}), 400, "invalid")
    assert list(refused["errors"]) == ["workspaces"]


def test_it_is_for_tokens_that_write(api: Any, bob: Any) -> None:
    for act in ("stop", "delete"):
        refused = api(bob, "workspaces:read").post(f"workspaces/{act}", {"workspaces": [str(uuid4())]})
        problem(refused, 403, "permission_denied")
