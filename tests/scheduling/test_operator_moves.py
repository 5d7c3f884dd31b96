"""Moves that an operator requests: the same verdicts in the preview, over REST and on the page."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from portal.common.errors import NotAllowed, StateConflict
from portal.common.events.models import Event, Notification
from portal.fleet.inventory.models import Node
from portal.scheduling import (
    bulk_acts,
    evictions,
    moving,
    operator_moves,
    placement_request,
    snapshot_cache,
)
from portal.scheduling.bulk_acts import Act, Terms
from portal.scheduling.codes import MoveCode
from portal.scheduling.models import Move, MoveOutcome
from portal.workspaces.domain_events import PreemptionDue
from portal.workspaces.homes import places as home_places
from portal.workspaces.homes.places import HomeLocation
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Preemption, Workspace
from portal.workspaces.transitions import lock_workspace
from tests import sites
from tests.factories import WorkspaceFactory
from tests.rows import preempt_cause, reloaded
from tests.workspace_list.test_acts import ACT, form, ids, lines, post
from tests.workspaces.helpers import active, check_invariants

pytestmark = pytest.mark.django_db
WORLD = sites.simulated_machines


@pytest.fixture(autouse=True)
def _notice(settings):
    settings.BERTH_PREEMPTION_GRACE_S, settings.BERTH_MOVE_NOTICE_MINUTES = 60, 2


def node_of(row: Workspace) -> str:
    return active(row)[0].node.name


@pytest.fixture
def rows(make, alice, pool, settle) -> list[Workspace]:
    """Two workspaces with one GPU each on one of the two nodes with four."""
    made = [make(alice, "sim-h100-x1", name=f"one-{number}") for number in range(2)]
    settle(90, resting=lambda: all(reloaded(row).state == State.RUNNING for row in made))
    rows = [reloaded(row) for row in made]
    assert node_of(rows[0]) == node_of(rows[1])
    return rows


def verdicts(olga: Any, rows: list[Workspace], node: str = "") -> dict[str, str]:
    """The target of each workspace, or the code of its refusal."""
    plan = operator_moves.preview(actor=olga, workspaces=rows, node=node)
    return {
        row.name: verdict.target.nodes[0].node
        if isinstance(verdict := plan.verdicts[row.pk], moving.PlannedMove)
        else str(verdict.reason.code)
        for row in rows
    }


def test_workspaces_move_to_another_node_and_start_there(rows, olga, alice, settle):
    one, other = rows
    source, target = node_of(one), verdicts(olga, [one])["one-0"]
    assert target != source
    assert not Preemption.objects.exists() and not Event.objects.filter(kind="workspace.preempting").exists()
    results = operator_moves.request(
        actor=olga, workspaces=[one.pk, other.pk, one.pk], node=target, reason="gpu-1 gets a new fan."
    )
    assert results == {one.pk: None, other.pk: None}
    assert preempt_cause(reloaded(one)) == "move"
    notices = Notification.objects.filter(kind="workspace.preempting")
    assert [notice.user for notice in notices] == [alice, alice]
    assert all(notice.body.startswith("gpu-1 gets a new fan.") for notice in notices)
    assert Event.objects.filter(kind="workspace.preempting", actor=olga).count() == 2
    assert set(verdicts(olga, [reloaded(one), reloaded(other)]).values()) == {MoveCode.MOVES_ALREADY}
    settle(300, resting=lambda: Move.objects.filter(outcome=MoveOutcome.ARRIVED).count() == 2)
    assert {node_of(reloaded(row)) for row in rows} == {target}
    check_invariants()


def test_each_refusal_names_its_rule(rows, olga, make, alice, team, monkeypatch):
    one, other = rows
    waits = WorkspaceFactory(owner=alice, team=team, name="waits", state=State.PENDING)
    source, free = node_of(one), verdicts(olga, [one])["one-0"]
    assert verdicts(olga, [one, waits], "no-such") == {
        "one-0": MoveCode.NO_SUCH_NODE,
        "waits": MoveCode.NOT_RUNNING,
    }
    assert verdicts(olga, [one], source) == {"one-0": MoveCode.SAME_NODE}
    # Two cannot have one place, and the queue has to start them there.
    with monkeypatch.context() as patch:
        patch.setattr(moving, "arriving", lambda _snapshot, planned: planned[1:])
        assert verdicts(olga, [one, other]) == {
            "one-0": MoveCode.OTHERS_FIRST,
            "one-1": MoveCode.OTHERS_FIRST,
        }
        patch.setattr(
            moving,
            "arriving",
            lambda _snapshot, planned: [move for move in planned if move.workspace != one.pk],
        )
        assert verdicts(olga, [one, other]) == {"one-0": MoveCode.OTHERS_FIRST, "one-1": free}
    with monkeypatch.context() as patch:
        homes = {(alice.pk, team.pk): {one.pool_id: HomeLocation(source)}}
        patch.setattr(home_places, "home_places_by_user", lambda _pairs: homes)
        patch.setattr(placement_request, "has_separate_homes", lambda _pool: True)
        assert verdicts(olga, [one]) == {"one-0": MoveCode.HOME_STAYS}
    Node.objects.filter(name=free).update(cordoned=True)
    snapshot_cache.forget()
    assert verdicts(olga, [one]) == {"one-0": MoveCode.NO_OTHER_NODE}
    plan = bulk_acts.plan(olga, Act.MOVE, [one.pk], Terms(node=free))
    (refused,) = plan.refused
    assert str(refused.refusal.sentence) == f"{free} is cordoned by an operator. Choose another node."


def test_rest_previews_and_moves_once_per_key(rows, olga, alice, with_token):
    one, _other = rows
    program, unknown = with_token(olga), "00000000-0000-4000-8000-000000000000"
    body = {"workspaces": [str(one.pk), unknown]}

    def send(to: Any, path: str, more: dict[str, Any] | None = None, **headers: str) -> Any:
        sent = {**body, **(more or {})}
        return to.post(f"/api/v1/workspaces/{path}", sent, content_type="application/json", **headers)

    planned = send(program, "preview", {"act": "move"}).json()["results"]
    assert planned[0]["outcome"].startswith("Stops at ") and planned[0]["problem"] is None
    assert (planned[1]["name"], planned[1]["problem"]["status"]) == (None, 404)
    for _ in range(2):
        answer = send(program, "move", HTTP_IDEMPOTENCY_KEY="once")
        assert [row["status"] for row in answer.json()["results"]] == [202, 404]
    refused = send(program, "move").json()["results"][0]["problem"]
    assert (refused["status"], refused["reason"]["code"]) == (409, MoveCode.MOVES_ALREADY)
    assert Move.objects.count() == 1
    member = with_token(alice)
    assert send(member, "move").status_code == send(member, "preview", {"act": "move"}).status_code == 403


def test_the_page_previews_then_moves(rows, olga, alice, as_user):
    one, other = rows
    browser = as_user(olga)
    target = verdicts(olga, [one])["one-0"]
    preview = post(browser, {"act": "move", "workspace": ids(*rows), "node": target})
    assert "Move 2 workspaces?" in preview
    assert lines(preview)["one-0"].endswith(f"then starts on {target}")
    assert not Move.objects.exists()
    Workspace.objects.filter(pk=other.pk).update(generation=7)
    filled = {**form(preview), "node": target, "text": "A new fan."}
    results = lines(post(browser, filled))
    assert results["one-0"] == "Owner notified, moves after the notice"
    assert "changed after the preview" in results["one-1"]
    # The same form once more.
    assert lines(post(browser, filled))["one-0"] == results["one-0"]
    assert Move.objects.count() == 1
    assert 'id="act-move"' in browser.get("/workspaces/").content.decode()
    member = as_user(alice)
    assert 'id="act-move"' not in member.get("/workspaces/").content.decode()
    assert member.post(ACT, {"act": "move", "workspace": ids(one)}).status_code == 403


def test_a_cancelled_move_leaves_the_workspace_where_it_is(rows, olga, alice, settle):
    one, other = rows
    source = node_of(one)
    operator_moves.request(actor=olga, workspaces=[one.pk, other.pk])
    for _ in range(2):
        operator_moves.cancel(actor=olga, workspace_id=one.pk)
    notice = Notification.objects.get(kind="workspace.may_stay")
    assert (notice.user, notice.body) == (alice, "The move was cancelled: an operator cancelled the move.")
    assert Event.objects.get(kind="workspace.may_stay").actor == olga
    settle(300, resting=lambda: Move.objects.filter(outcome=MoveOutcome.ARRIVED).exists())
    assert node_of(reloaded(one)) == source != node_of(reloaded(other))
    assert reloaded(one).generation == one.generation
    assert cancel_code(olga, other) == MoveCode.NO_MOVE
    check_invariants()


def cancel_code(actor: Any, row: Workspace) -> str:
    with pytest.raises(StateConflict) as refused:
        operator_moves.cancel(actor=actor, workspace_id=row.pk)
    return refused.value.reason.code


def test_a_move_that_has_begun_is_not_cancelled(rows, olga, alice):
    one, other = rows
    assert cancel_code(olga, one) == MoveCode.NO_MOVE
    operator_moves.request(actor=olga, workspaces=[one.pk, other.pk])
    Preemption.objects.filter(workspace=other).update(preempted_by="a request")
    assert cancel_code(olga, other) == MoveCode.MOVES_FOR_REQUEST
    evict_now(one)
    assert cancel_code(olga, one) == MoveCode.MOVE_BEGUN
    with pytest.raises(NotAllowed):
        operator_moves.cancel(actor=alice, workspace_id=other.pk)
    assert Move.objects.filter(ended_at=None).count() == 2


def evict_now(row: Workspace) -> None:
    Preemption.objects.filter(workspace=row).update(preempt_at=timezone.now())
    with transaction.atomic():
        evictions.evict(PreemptionDue(lock_workspace(row.pk)))


def test_rest_and_the_pages_cancel(rows, olga, alice, with_token, as_user):
    one, other = rows
    program, browser = with_token(olga), as_user(olga)
    page, cancel = f"/workspaces/{one.pk}/", f"/workspaces/{one.pk}/move/cancel/"
    assert 'id="act-cancel-move"' not in browser.get("/workspaces/").content.decode()
    operator_moves.request(actor=olga, workspaces=[one.pk, other.pk])
    assert 'id="act-cancel-move"' in browser.get(page).content.decode()
    assert 'id="act-cancel-move"' not in as_user(alice).get(page).content.decode()
    assert "stays where it is" in browser.post(cancel, follow=True).content.decode()
    assert 'id="act-cancel-move"' not in browser.get(page).content.decode()
    answer = program.post(f"/api/v1/workspaces/{one.pk}/move/cancel")
    assert (answer.status_code, answer.json()["preempting"]) == (200, None)
    # The rest from the list, with a preview.
    assert 'id="act-cancel-move"' in browser.get("/workspaces/").content.decode()
    preview = post(browser, {"act": "cancel_move", "workspace": ids(other)})
    assert "Cancel 1 move?" in preview and lines(preview) == {"one-1": "Stays where it is"}
    assert lines(post(browser, form(preview))) == {"one-1": "Stays where it is"}
    many = program.post(
        "/api/v1/workspaces/move/cancel", {"workspaces": ids(*rows)}, content_type="application/json"
    )
    assert [row["status"] for row in many.json()["results"]] == [202, 202]
    assert not Preemption.objects.exists()
