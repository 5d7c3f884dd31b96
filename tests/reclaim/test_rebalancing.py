"""Rebalancing proposals in the portal: passes, application and cancellation."""

from __future__ import annotations

import datetime as dt
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.errors import NotAllowed, NotFound, StateConflict
from portal.common.events.models import Event, Notification
from portal.fleet.inventory import pools
from portal.fleet.inventory.models import AllocatedDevice, Device, DeviceMinute, DeviceSeries, Node, Pool
from portal.fleet.inventory.services import set_cordon
from portal.reclaim.engine.codes import RebalanceCode
from portal.reclaim.models import BestClock, Discontent, ProposalState, RebalanceProposal, WorkspaceActivity
from portal.reclaim.rebalancing import proposing, reading, services
from portal.reclaim.rebalancing.movables import SnapshotMovables
from portal.scheduling import capacity, cycle, drains, moves, moving, placement_request, snapshot_cache
from portal.scheduling.models import Move, MoveOutcome
from portal.workspaces import services as workspaces
from portal.workspaces.homes import places as home_places
from portal.workspaces.lifecycle import State
from portal.workspaces.models import HomePlace, Preemption, Workspace
from tests import sites
from tests.rows import preempt_at, preempt_cause, preempted_by, reloaded
from tests.suite.choice import quick_of
from tests.sweeps import sweep
from tests.workspaces.helpers import active, check_invariants

pytestmark = pytest.mark.django_db
WORLD = sites.simulated_machines


@pytest.fixture(autouse=True)
def _notice(settings):
    settings.BERTH_PREEMPTION_GRACE_S, settings.BERTH_MOVE_NOTICE_MINUTES = 60, 2


def node_of(row: Workspace) -> Node:
    return active(row)[0].node


def devices_of(row: Workspace) -> list[Device]:
    held = AllocatedDevice.objects.filter(active=True, allocation__workspace=row)
    return [each.device for each in held.select_related("device")]


def proposals(state: str = ProposalState.OPEN) -> list[RebalanceProposal]:
    return list(RebalanceProposal.objects.filter(state=state))


@pytest.fixture
def fragmented(make, alice, pool, settle, clock):
    """One of four GPUs is used on each of two nodes; a request for four has waited for two minutes."""
    rows = [make(alice, "sim-h100-x1", name=f"one-{number}") for number in range(5)]
    settle(90, resting=lambda: all(reloaded(row).state == State.RUNNING for row in rows))
    alone = next(row for row in rows if list(map(node_of, rows)).count(node_of(row)) == 1)
    others = [row for row in rows if row != alone]
    for row in others[1:]:
        workspaces.stop(actor=alice, workspace_id=row.pk)
    settle(60, resting=lambda: all(reloaded(row).state == State.STOPPED for row in others[1:]))
    waits = make(alice, "sim-h100-x4", name="four")
    clock.shift(120)
    cycle.run()
    assert reloaded(waits).queue_entry.blocker["rule"] == "placement"
    return [reloaded(alone), reloaded(others[0]), reloaded(waits)]


# --- room for waiting requests --------------------------------------------------------------------


def test_pass_proposes_moves_without_asking(fragmented):
    *_, waits = fragmented
    assert proposing.run() == proposing.RebalancePassReport(0, 1, 0)
    (row,) = proposals()
    assert (row.waiting, len(row.moves), row.gain) == (waits, 1, 4000)
    assert row.reason["code"] == RebalanceCode.MAKES_ROOM
    assert not Preemption.objects.exists()
    assert proposing.run().proposed == 1
    assert RebalanceProposal.objects.count() == 1, "it is proposed twice"


@pytest.mark.thorough("`make test` has proposal, decision and move")
def test_unchanged_open_proposal_is_not_simulated_again(fragmented, monkeypatch, clock):
    proposing.run()
    (before,) = proposals()
    asked = []
    monkeypatch.setattr(moving, "is_feasible", lambda *given: asked.append(given))
    clock.shift(60)
    assert proposing.run().proposed == 1
    (row,) = proposals()
    assert (row.pk, row.proposed_at, asked) == (before.pk, before.proposed_at, [])
    # Other moves of the same workspaces are proposed.
    moves_other_way = [{**each, "generation": 7} for each in row.moves]
    RebalanceProposal.objects.update(moves=moves_other_way)
    assert proposing.run().proposed == 0
    assert len(asked) == 1


def test_pass_reads_no_workspaces_without_suspect_devices(make, alice, pool, settle, monkeypatch):
    row = make(alice, "sim-h100-x1", name="well")
    settle(90, resting=lambda: reloaded(row).state == State.RUNNING)
    minutes(devices_of(row), 1980, 0)
    read, seen = [], reading.read_snapshot
    monkeypatch.setattr(reading, "read_snapshot", lambda now: read.append(now) or seen(now))
    assert (proposing.run(), read) == (proposing.RebalancePassReport(0, 0, 0), [])
    DeviceMinute.objects.all().delete()
    minutes(devices_of(row), 1000, 60)
    assert (proposing.run().discontent, len(read)) == (1, 1)


def test_overcommitted_node_is_a_suspect(make, alice, pool, settle):
    row = make(alice, "sim-h100-x1", name="crowded")
    settle(90, resting=lambda: reloaded(row).state == State.RUNNING)
    assert proposing.run().discontent == 0
    Pool.objects.update(rebalancing="off")
    held = active(row)[0]
    Node.objects.filter(pk=held.node_id).update(cpu_milli=held.cpu_milli // 2)
    proposing.run()
    assert Discontent.objects.get().reason["code"] == RebalanceCode.OVERCOMMITTED


def test_neighbours_on_a_saturated_shared_gpu_are_scored(make, alice, pool, settle):
    row = make(alice, "sim-h100-x1", name="shares")
    other = make(alice, "sim-h100-x1", name="neighbour")
    settle(90, resting=lambda: all(reloaded(each).state == State.RUNNING for each in (row, other)))
    (device,) = devices_of(row)
    minutes([device], 1980, 0)
    DeviceMinute.objects.update(gpu_pct_s=60 * 99)
    held = AllocatedDevice.objects.filter(active=True)
    held.filter(allocation__workspace=row).update(milli=750)
    held.filter(allocation__workspace=other).update(device=device, milli=250)
    now = timezone.now()
    for each in (row, other):
        WorkspaceActivity.objects.update_or_create(
            workspace=each,
            defaults={"generation": reloaded(each).generation, "observed_at": now, "active": "cpu,gpu"},
        )
    proposing.run()
    found = Discontent.objects.get()
    assert (found.workspace, found.reason["code"]) == (row, RebalanceCode.CROWDED)


@pytest.mark.parametrize("scrubbed", [False, True])
def test_workspace_on_a_shared_gpu_that_needs_a_scrub_is_not_moved(make, alice, pool, settle, scrubbed):
    """It could not use the GPU before the neighbour has left, too."""
    Pool.objects.update(scrub_required=scrubbed)
    row, other = make(alice, "sim-h100-x1", name="shares"), make(alice, "sim-h100-x1", name="neighbour")
    settle(90, resting=lambda: all(reloaded(each).state == State.RUNNING for each in (row, other)))
    (device,) = devices_of(row)
    held = AllocatedDevice.objects.filter(active=True)
    held.filter(allocation__workspace=row).update(milli=500)
    held.filter(allocation__workspace=other).update(device=device, milli=500)
    found = capacity.allocations_by_workspace([row.pk, other.pk])
    crowd = SnapshotMovables(capacity.load(), reading.RunningWorkspaces(found, timezone.now()), {})
    movable = crowd.on_nodes(str(pool.pk), {device.node.name})
    assert len(movable) == (0 if scrubbed else 2)


def test_move_notifies_the_owner_reaches_its_target_and_the_waiting_request_starts(
    fragmented, olga, alice, settle, clock
):
    *ones, waits = fragmented
    proposing.run()
    (row,) = proposals()
    services.apply(actor=olga, proposal_id=row.pk)
    (planned,) = services.planned_moves(row)
    moved = reloaded(next(each for each in ones if each.pk == planned.workspace))
    source, target = planned.source.nodes[0].node, planned.target.nodes[0].node
    assert (node_of(moved).name, preempt_cause(moved), preempted_by(moved)) == (source, "move", str(waits.pk))
    assert preempt_at(moved) == timezone.now() + dt.timedelta(seconds=120)
    assert reloaded(waits).queue_entry.nominated
    notice = Notification.objects.get(kind="workspace.preempting")
    assert (notice.user, notice.title.split(" and ")[0]) == (alice, f"{moved.name} is moved")
    asked = Event.objects.get(kind="workspace.preempting")
    assert (asked.actor, asked.data) == (olga, {"reason": "move", "for": str(waits.pk)})
    assert f"from {source} to {target}" in asked.message
    assert Event.objects.get(kind="rebalance.applied").data["workspaces"] == [str(moved.pk)]
    clock.shift(118)
    sweep()
    assert reloaded(moved).state == State.RUNNING, "it leaves before its time"
    settle(
        240, resting=lambda: reloaded(waits).state == State.RUNNING and reloaded(moved).state == State.RUNNING
    )
    assert (reloaded(waits).state, reloaded(moved).state) == (State.RUNNING, State.RUNNING)
    assert (node_of(waits).name, node_of(moved).name) == (source, target)
    assert [device.uuid for device in devices_of(moved)] == [
        grant.uuid for grant in planned.target.nodes[0].devices
    ]
    assert reloaded(moved).queue_entry.preemption_count == 0
    assert Move.objects.get().outcome == MoveOutcome.ARRIVED
    assert proposing.run().proposed == 0
    assert moves.count_in_progress() == 0
    check_invariants()


@pytest.mark.thorough("`make test` has proposal, decision and move")
def test_applying_twice_requests_moves_once(fragmented, olga):
    proposing.run()
    (row,) = proposals()
    services.apply(actor=olga, proposal_id=row.pk)
    services.apply(actor=olga, proposal_id=row.pk)
    assert (Move.objects.count(), Event.objects.filter(kind="rebalance.applied").count()) == (1, 1)


def test_only_operators_decide(fragmented, alice):
    proposing.run()
    (row,) = proposals()
    for act in (services.apply, services.dismiss):
        with pytest.raises(NotAllowed):
            act(actor=alice, proposal_id=row.pk)
    assert not Preemption.objects.exists()


def test_unknown_proposal_is_not_found(olga):
    for act in (services.apply, services.dismiss):
        with pytest.raises(NotFound):
            act(actor=olga, proposal_id=uuid4())


@pytest.mark.parametrize(
    "change",
    quick_of(
        ["stopped", "waits no more", "taken", "restarted"], ["stopped", "taken"], "all are the same check"
    ),
)
def test_infeasible_proposal_is_refused_without_changes(fragmented, olga, alice, make, change):
    *_, waits = fragmented
    proposing.run()
    (row,) = proposals()
    (planned,) = services.planned_moves(row)
    if change == "stopped":
        workspaces.stop(actor=alice, workspace_id=planned.workspace)
    elif change == "waits no more":
        workspaces.stop(actor=alice, workspace_id=waits.pk)
    elif change == "restarted":
        Workspace.objects.filter(pk=planned.workspace).update(generation=7)
    else:
        set_cordon(
            actor=olga,
            node_id=Node.objects.get(name=planned.target.nodes[0].node).pk,
            cordoned=True,
            reason="x",
        )
    with pytest.raises(StateConflict):
        services.apply(actor=olga, proposal_id=row.pk)
    assert not Preemption.objects.exists()
    assert not Move.objects.exists()
    row.refresh_from_db()
    assert row.state == ProposalState.OPEN
    proposing.run()
    assert not proposals() or services.planned_moves(proposals()[0]) != [planned]


def test_move_is_cancelled_when_its_target_is_taken(fragmented, olga, clock):
    proposing.run()
    (row,) = proposals()
    services.apply(actor=olga, proposal_id=row.pk)
    (planned,) = services.planned_moves(row)
    target = Node.objects.get(name=planned.target.nodes[0].node)
    # Only in the database, without domain events.
    Node.objects.filter(pk=target.pk).update(cordoned=True)
    clock.shift(121)
    sweep()
    moved = reloaded(Workspace.objects.get(pk=planned.workspace))
    assert (moved.state, preempt_at(moved)) == (State.RUNNING, None)
    assert Move.objects.get().outcome == MoveOutcome.STAYED
    assert Notification.objects.filter(kind="workspace.may_stay", user=moved.owner).count() == 1
    Node.objects.filter(pk=target.pk).update(cordoned=False)
    assert proposing.run().proposed in (0, 1)
    assert all(
        planned.workspace not in {each.workspace for each in services.planned_moves(found)}
        for found in proposals()
    ), "it is asked again before it has rested"


@pytest.mark.thorough("`make test` has a place that is lost meanwhile")
def test_move_is_cancelled_when_the_waiting_request_is_gone(fragmented, olga, alice, clock):
    *_, waits = fragmented
    proposing.run()
    (row,) = proposals()
    services.apply(actor=olga, proposal_id=row.pk)
    (planned,) = services.planned_moves(row)
    workspaces.stop(actor=alice, workspace_id=waits.pk)
    cycle.run()
    assert preempt_at(reloaded(Workspace.objects.get(pk=planned.workspace))) is None
    proposing.run()
    assert Move.objects.get().outcome == MoveOutcome.STAYED


def test_stop_by_the_user_during_the_notice_cancels_the_move(fragmented, olga, alice, clock, settle):
    proposing.run()
    (row,) = proposals()
    services.apply(actor=olga, proposal_id=row.pk)
    (planned,) = services.planned_moves(row)
    workspaces.stop(actor=alice, workspace_id=planned.workspace)
    clock.shift(121)
    settle(60)
    assert Workspace.objects.get(pk=planned.workspace).state == State.STOPPED
    proposing.run()
    assert Move.objects.get().outcome == MoveOutcome.STAYED


def test_operator_cancels_an_applied_proposal(fragmented, olga):
    proposing.run()
    (row,) = proposals()
    services.apply(actor=olga, proposal_id=row.pk)
    services.dismiss(actor=olga, proposal_id=row.pk)
    assert not Preemption.objects.exists()
    assert Move.objects.get().outcome == MoveOutcome.STAYED
    row.refresh_from_db()
    assert (row.state, row.decided_by) == (ProposalState.DISMISSED, "olga")


@pytest.mark.thorough("`make test` has proposal, decision and move")
def test_dismissed_proposal_is_not_repeated_for_a_day(fragmented, olga, clock):
    proposing.run()
    (row,) = proposals()
    services.dismiss(actor=olga, proposal_id=row.pk)
    services.dismiss(actor=olga, proposal_id=row.pk)
    with pytest.raises(StateConflict):
        services.apply(actor=olga, proposal_id=row.pk)
    assert proposing.run().proposed == 0
    assert Event.objects.filter(kind="rebalance.dismissed").count() == 1


def test_obsolete_proposal_is_withdrawn(fragmented, alice, olga):
    *_, waits = fragmented
    proposing.run()
    (row,) = proposals()
    workspaces.stop(actor=alice, workspace_id=waits.pk)
    assert proposing.run().proposed == 0
    row.refresh_from_db()
    assert row.state == ProposalState.WITHDRAWN
    for act in (services.apply, services.dismiss):
        with pytest.raises(StateConflict):
            act(actor=olga, proposal_id=row.pk)


@pytest.mark.thorough("`make test` has the drain in tests/scheduling")
def test_drain_replaces_a_move_from_the_same_node(fragmented, olga, clock, settle):
    proposing.run()
    (row,) = proposals()
    services.apply(actor=olga, proposal_id=row.pk)
    (planned,) = services.planned_moves(row)
    moved = Workspace.objects.get(pk=planned.workspace)
    drains.drain_node(actor=olga, node_id=node_of(moved).pk, reason="")
    assert preempt_cause(reloaded(moved)) == "drain"
    settle(240, resting=lambda: reloaded(moved).state == State.RUNNING and not reloaded(moved).preempting)
    proposing.run()
    assert Move.objects.get().ended_at is not None
    check_invariants()


# --- without an operator --------------------------------------------------------------------------


def test_proposals_need_an_operator_by_default(fragmented, clock):
    proposing.run()
    clock.shift(600)
    assert proposing.run().applied == 0
    assert not Preemption.objects.exists()


def test_automatic_policy_moves_preemptible_workspaces_after_the_minimum_age(fragmented, settings, clock):
    settings.BERTH_MOVE_AUTOMATICALLY = True
    assert proposing.run().applied == 0
    clock.shift(299)
    assert proposing.run().applied == 0
    clock.shift(1)
    assert proposing.run().applied == 1
    (row,) = proposals(ProposalState.APPLIED)
    assert row.decided_by == "Berth"
    assert Preemption.objects.get().cause == "move"
    assert proposing.run().applied == 0


@pytest.mark.thorough("`make test` has proposal, decision and move")
def test_rebalancing_policy_is_set_per_pool(fragmented, pool, olga, settings, clock, as_user):
    assert proposing.run().proposed == 1
    # Disabled: open proposals cannot be applied any more and are withdrawn.
    pools.change(actor=olga, pool=pool, fields={"rebalancing": "off"})
    (row,) = proposals()
    with pytest.raises(StateConflict):
        services.apply(actor=olga, proposal_id=row.pk)
    settings.BERTH_MOVE_AUTOMATICALLY = True
    assert proposing.run() == proposing.RebalancePassReport(0, 0, 0)
    assert not proposals() and f"Disabled in {pool.name}." in page(as_user, olga)
    # Proposed, whatever the site automates.
    pools.change(actor=olga, pool=pool, fields={"rebalancing": "propose"})
    assert proposing.run().proposed == 1
    clock.shift(301)
    assert proposing.run() == proposing.RebalancePassReport(0, 1, 0)
    assert "Workspaces move only if an operator applies a proposal." in page(as_user, olga)
    # Without an operator, whatever the site setting.
    settings.BERTH_MOVE_AUTOMATICALLY = False
    pools.change(actor=olga, pool=pool, fields={"rebalancing": "automatic"})
    assert f"moved automatically in {pool.name} after" in page(as_user, olga)
    assert proposing.run().applied == 1


def page(as_user, reader) -> str:
    return as_user(reader).get(reverse("reclaim:rebalancing")).content.decode()


def hot(row: Workspace, clock_mhz: int = 1000) -> None:
    """Its GPUs were busy and throttled by heat for ten minutes; another one was not."""
    minutes(devices_of(row), clock_mhz, 60)


def minutes(devices: list[Device], clock_mhz: int, thermal_s: int) -> None:
    now_s = int(timezone.now().timestamp()) // 60 * 60
    for device in devices:
        series, _ = DeviceSeries.objects.get_or_create(device=device)
        series.newest_s = now_s
        series.save()
        for number in range(1, 11):
            DeviceMinute.objects.create(
                series=series,
                start_s=now_s - 60 * number,
                measured_s=60,
                gpu_s=60,
                gpu_pct_s=60 * 90,
                gpu_used_s=60,
                sm_clock_mhz=clock_mhz,
                throttle_s=60,
                thermal_s=thermal_s,
                slowed_s=0,
                power_s=60,
            )


@pytest.fixture
def slowed(make, alice, pool, settle):
    """A workspace on a hot GPU, beside one on a normal GPU."""
    row = make(alice, "sim-h100-x1", name="hot")
    other = make(alice, "sim-h100-x1", name="cool")
    settle(90, resting=lambda: all(reloaded(each).state == State.RUNNING for each in (row, other)))
    hot(row)
    minutes(devices_of(other), 1980, 0)
    return reloaded(row)


def test_workspace_on_a_throttled_gpu_moves_to_another(slowed, olga, settle, with_token):
    assert proposing.run() == proposing.RebalancePassReport(1, 1, 0)
    found = Discontent.objects.get()
    assert (found.workspace, found.score, found.reason["code"]) == (slowed, 50, RebalanceCode.SLOWED)
    assert BestClock.objects.get().clock_mhz == 1980
    read = with_token(olga).get(f"/api/v1/workspaces/{slowed.pk}/activity").json()["discontent"]
    assert (read["contentment"], read["reason"]) == (50, RebalanceCode.SLOWED) and read["message"]
    (row,) = proposals()
    assert (row.waiting, row.gain) == (None, 50)
    before = devices_of(slowed)
    services.apply(actor=olga, proposal_id=row.pk)
    cycle.run()
    assert preempt_cause(reloaded(slowed)) == "move", "the queue takes it back"
    settle(240, resting=lambda: reloaded(slowed).state == State.RUNNING and devices_of(slowed) != before)
    assert not set(before) & set(devices_of(slowed))
    assert Move.objects.get().outcome == MoveOutcome.ARRIVED
    assert proposing.run().proposed == 0
    check_invariants()


def test_workspace_that_is_not_preemptible_moves_only_by_an_operator(slowed, settings, clock):
    settings.BERTH_MOVE_AUTOMATICALLY = True
    Workspace.objects.filter(pk=slowed.pk).update(preemptible=False)
    assert proposing.run().proposed == 1
    RebalanceProposal.objects.update(proposed_at=timezone.now() - dt.timedelta(hours=1))
    assert proposing.run() == proposing.RebalancePassReport(1, 1, 0)
    # Nor if that has changed meanwhile.
    (row,) = proposals()
    with pytest.raises(StateConflict):
        services.apply(actor=SYSTEM, proposal_id=row.pk, preemptible_only=True)


def test_discontent_record_ends_when_the_score_recovers(slowed, clock):
    proposing.run()
    clock.shift(1200)
    assert proposing.run() == proposing.RebalancePassReport(0, 0, 0)
    assert not Discontent.objects.exists()


def test_workspace_with_a_home_on_its_node_is_not_moved(slowed, monkeypatch):
    """As in a pool with separate homes per node."""
    monkeypatch.setattr(home_places, "has_separate_homes", lambda _pool: True)
    monkeypatch.setattr(placement_request, "has_separate_homes", lambda _pool: True)
    HomePlace.objects.create(
        owner=slowed.owner, team=slowed.team, pool=slowed.pool, node=node_of(slowed), since=timezone.now()
    )
    snapshot_cache.forget()
    proposing.run()
    (row,) = proposals()
    (planned,) = services.planned_moves(row)
    assert planned.target.nodes[0].node == node_of(slowed).name
    assert planned.target != planned.source


def test_queries_do_not_grow_with_history(slowed):
    proposing.run()
    with CaptureQueriesContext(connection) as few:
        proposing.run()
    now = timezone.now()
    for number in range(20):
        at = now - dt.timedelta(days=20, minutes=number)
        RebalanceProposal.objects.create(
            key=f"old-{number}",
            moves=[],
            reason={},
            gain=1,
            state=ProposalState.WITHDRAWN,
            proposed_at=at,
            seen_at=at,
            decided_at=at,
        )
        Move.objects.create(
            workspace=slowed, generation=1, pool=slowed.pool, source={"nodes": []}, target={"nodes": []},
            asked_at=at, ended_at=at,
        )  # fmt: skip
    with CaptureQueriesContext(connection) as many:
        proposing.run()
    assert len(many) == len(few)
