"""POST /api/v1/workspaces/stop, /delete, /extend and /message"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from portal.common import rate_limits
from portal.common.events.models import Notification
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests.api.conftest import Api, document, problem
from tests.factories import WorkspaceFactory

pytestmark = pytest.mark.django_db


def bulk(program: Api, act: str, *ids: Any, **more: Any) -> list[dict[str, Any]]:
    answer = program.post(f"workspaces/{act}", {"workspaces": [str(id_) for id_ in ids], **more})
    assert answer.status_code == 202, answer.content
    found: list[dict[str, Any]] = answer.json()["results"]
    assert set(found[0]) == set(document()["components"]["schemas"]["BulkResult"]["properties"])
    return found


def test_workspaces_are_stopped_or_refused_individually(
    api: Any, bob: Any, charlie: Any, team: Any, make: Any, pool: Any, settle: Any, sent: Any
) -> None:
    mine = make(bob, "sim-cpu")
    settle()
    stopped = WorkspaceFactory(owner=bob, team=team, state=State.STOPPED)
    terminated = WorkspaceFactory(owner=bob, team=team, state=State.TERMINATED)
    hidden = WorkspaceFactory(owner=charlie)

    found = bulk(api(bob), "stop", mine.pk, hidden.pk, terminated.pk, mine.pk, stopped.pk, unknown := uuid4())

    assert [row["id"] for row in found] == [
        str(each) for each in (mine.pk, hidden.pk, terminated.pk, stopped.pk, unknown)
    ]
    assert [row["status"] for row in found] == [202, 404, 409, 202, 404]
    assert [row["problem"] and row["problem"]["code"] for row in found] == [
        *(None, "not_found", "conflict", None, "not_found"),
    ]
    assert [row["workspace"] and row["workspace"]["desired_state"] for row in found] == [
        *("stopped", None, None, "stopped", None),
    ]
    assert Workspace.objects.get(pk=mine.pk).state == State.STOPPING
    # Hidden workspaces are refused like missing ones.
    other = {**found[1]["problem"], "request_id": ""}
    assert other == {**found[4]["problem"], "request_id": ""}


def test_several_workspaces_are_deleted(api: Any, bob: Any, team: Any, settle: Any, sent: Any) -> None:
    rows = [WorkspaceFactory(owner=bob, team=team, state=State.STOPPED) for _ in range(3)]
    found = bulk(api(bob), "delete", *(row.pk for row in rows))
    assert {row["status"] for row in found} <= {202, 204}
    assert {row["problem"] for row in found} == {None}
    settle()
    assert not Workspace.objects.exclude(state=State.TERMINATED).exists()
    assert {row["status"] for row in bulk(api(bob), "delete", *(row.pk for row in rows))} == {204}


def test_workspaces_are_extended_individually_and_a_replay_extends_nothing(
    api: Any, bob: Any, team: Any, local_pool: Any
) -> None:
    now = timezone.now()
    running = {"state": State.RUNNING, "pool": local_pool, "generation": 1, "ready_at": now}
    ends = WorkspaceFactory(owner=bob, team=team, **running, ends_at=now + timedelta(hours=5))
    endless = WorkspaceFactory(owner=bob, team=team, **running)
    body = {"workspaces": [str(ends.pk), str(endless.pk)], "hours": 2}
    for _ in range(2):
        answer = api(bob).post("workspaces/extend", body, **{"Idempotency-Key": "once"})
        assert [row["status"] for row in answer.json()["results"]] == [202, 409]
    assert answer.json()["results"][1]["problem"]["code"] == "has_no_end"
    assert Workspace.objects.get(pk=ends.pk).ends_at == ends.ends_at + timedelta(hours=2)


def test_owners_get_a_message(api: Any, alice: Any, bob: Any, charlie: Any, team: Any) -> None:
    mine, his = (WorkspaceFactory(owner=user, team=team) for user in (alice, bob))
    hidden = WorkspaceFactory(owner=charlie)
    found = bulk(api(alice), "message", mine.pk, his.pk, hidden.pk, text="Please save your work.")
    assert [row["status"] for row in found] == [202, 202, 404]
    assert {notice.user.username for notice in Notification.objects.all()} == {"alice", "bob"}
    assert Notification.objects.get(user=bob).body == "Please save your work."
    refused = bulk(api(bob), "message", mine.pk, text="x")
    assert [row["status"] for row in refused] == [404]
    for text in ("", "x" * 1001):
        problem(
            api(bob).post("workspaces/message", {"workspaces": [str(his.pk)], "text": text}), 400, "invalid"
        )


def test_messages_have_a_limit(api: Any, bob: Any, team: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    his = WorkspaceFactory(owner=bob, team=team)
    monkeypatch.setattr(rate_limits, "count", lambda *_: 30)
    problem(api(bob).post("workspaces/message", {"workspaces": [str(his.pk)], "text": "x"}), 429, "too_many")
    assert not Notification.objects.exists()


@pytest.mark.parametrize("given", [[], ["x"], ["00000000-0000-4000-8000-000000000000"] * 101, None])
def test_invalid_lists_are_refused(api: Any, bob: Any, given: Any) -> None:
    refused = problem(api(bob).post("workspaces/stop", {"workspaces": given}), 400, "invalid")
    assert list(refused["errors"]) == ["workspaces"]


def test_bulk_actions_need_write_scope(api: Any, bob: Any) -> None:
    for act in ("stop", "delete"):
        refused = api(bob, "workspaces:read").post(f"workspaces/{act}", {"workspaces": [str(uuid4())]})
        problem(refused, 403, "permission_denied")
