"""Progress of a job from heartbeats to a proposal: stored compactly, compared with few places."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.fleet.inventory.models import AllocatedDevice, DeviceMinute, Node
from portal.reclaim import observing, pacing
from portal.reclaim.engine.codes import RebalanceCode
from portal.reclaim.models import Discontent, RebalanceProposal, WorkPace
from portal.reclaim.rebalancing import proposing, services
from portal.scheduling import cycle
from portal.workspaces import results
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests import sites
from tests.reclaim.test_rebalancing import devices_of, minutes, node_of
from tests.rows import reloaded

pytestmark = pytest.mark.django_db
WORLD = sites.simulated_machines


@pytest.fixture(autouse=True)
def _notice(settings):
    settings.BERTH_PREEMPTION_GRACE_S, settings.BERTH_MOVE_NOTICE_MINUTES = 60, 2


@pytest.fixture
def row(make, alice, pool, settle) -> Workspace:
    made = make(alice, "sim-h100-x1", name="trains")
    settle(90, resting=lambda: reloaded(made).state == State.RUNNING)
    return reloaded(made)


def tell(row: Workspace, cores: float = 2.0, **rates: float) -> None:
    now_s = timezone.now().timestamp() - row.ready_at.timestamp()
    activity = {"jobs": 1, "cpu_seconds": cores * now_s, "progress": dict(rates)}
    results.agent_heartbeat(workspace_id=row.pk, generation=row.generation, activity=activity)
    observing.run()


@pytest.fixture
def live(clock):
    """Report these rates for some minutes, with an observation in each."""

    def walk(row: Workspace, count: int, cores: float = 2.0, **rates: float) -> None:
        for _ in range(count):
            clock.shift(60)
            tell(row, cores, **rates)

    return walk


def was_elsewhere(row: Workspace, **rates: float) -> None:
    """Record an earlier run on another GPU of the same kind."""
    kept = WorkPace.objects.get(workspace=row)
    paces = pacing.parse_paces(kept.paces)
    (pace,) = paces.values()
    place = pacing.Location("node-before", frozenset({"GPU-before"}), pace.place.kind)
    before = pacing.update_paces({}, rates, place, kept.observed_at.timestamp())
    WorkPace.objects.update(generation=row.generation - 1, paces=pacing._encode(before).decode())


@pytest.fixture
def slow(row, live):
    """A workspace at 60 % of its pace on another GPU, for a while."""
    tell(row, tokens=100.0)
    was_elsewhere(row, tokens=100.0)
    live(row, 12, tokens=60.0)
    return row


def throttle_slightly(row: Workspace) -> None:
    """Throttle its GPU for a fifth of the time, which alone is no reason."""
    minutes(devices_of(row), 1900, 12)


def test_slow_work_without_a_visible_cause_is_shown_but_no_reason(slow, alice, with_token, as_user):
    minutes(devices_of(slow), 1980, 0)
    assert proposing.run() == proposing.RebalancePassReport(0, 0, 0)
    read = with_token(alice).get(f"/api/v1/workspaces/{slow.pk}/activity").json()
    assert read["discontent"] is None
    assert read["progress"] == [
        {
            "name": "tokens", "rate": 60.0, "best": 60.0, "best_elsewhere": 100.0, "best_node": "node-before",
            "percent": 60,
        }
    ]  # fmt: skip
    page = as_user(alice).get(f"/workspaces/{slow.pk}/").content.decode()
    assert "60 % of the best rate on other nodes: 100 on node-before" in page


def test_move_with_checkpoint_is_proposed_without_asking(slow, alice, with_token):
    throttle_slightly(slow)
    assert proposing.run() == proposing.RebalancePassReport(1, 1, 0)
    found = Discontent.objects.get()
    assert (found.score, found.reason["code"]) == (60, RebalanceCode.WORK_SLOWER)
    read = with_token(alice).get(f"/api/v1/workspaces/{slow.pk}/activity").json()["discontent"]
    assert read["message"] == (
        "The work runs at 60 % of its best speed (60 of 100 tokens/s): heat or hardware slowed the GPU for "
        "part of the time."
    )
    (proposal,) = RebalanceProposal.objects.all()
    assert (proposal.gain, proposal.reason["code"]) == (40, RebalanceCode.WORK_SLOWER)
    assert reloaded(slow).state == State.RUNNING and not hasattr(reloaded(slow), "preemption")


def test_workspace_is_not_moved_again_during_cooldown(slow, olga, settle, live):
    """It may have been another job, so it is not moved again soon."""
    throttle_slightly(slow)
    proposing.run()
    before = devices_of(slow)
    services.apply(actor=olga, proposal_id=RebalanceProposal.objects.get().pk)
    cycle.run()
    settle(240, resting=lambda: reloaded(slow).state == State.RUNNING and devices_of(slow) != before)
    moved = reloaded(slow)
    live(moved, 12, tokens=60.0)
    (found,) = pacing.progress_of(reloaded(moved))
    assert (found.percent, found.best_node) == (60, "node-before"), "the best of all counts, and not the last"
    assert proposing.run() == proposing.RebalancePassReport(0, 0, 0)
    throttle_slightly(moved)
    assert proposing.run() == proposing.RebalancePassReport(1, 0, 0)


def test_small_throttling_alone_is_no_reason(row, live):
    live(row, 12, tokens=60.0)
    throttle_slightly(row)
    assert proposing.run() == proposing.RebalancePassReport(0, 0, 0)


def test_work_must_be_slow_for_a_while_and_still_be(slow, live, clock):
    live(slow, 1, tokens=99.0)
    throttle_slightly(slow)
    assert proposing.run().discontent == 0
    live(slow, 9, tokens=60.0)
    DeviceMinute.objects.all().delete()
    throttle_slightly(slow)
    assert proposing.run().discontent == 0
    live(slow, 3, tokens=60.0)
    DeviceMinute.objects.all().delete()
    throttle_slightly(slow)
    assert proposing.run().discontent == 1
    # The job has ended, or reports no more.
    clock.shift(400)
    DeviceMinute.objects.all().delete()
    throttle_slightly(slow)
    assert proposing.run().discontent == 0


def test_active_neighbours_are_a_cause(slow, make, alice, settle, live):
    other = make(alice, "sim-h100-x1", name="neighbour")
    settle(90, resting=lambda: reloaded(other).state == State.RUNNING)
    (device,) = devices_of(slow)
    # Together they leave some of it free, which alone would be no reason.
    minutes([device], 1980, 0)
    held = AllocatedDevice.objects.filter(active=True)
    held.filter(allocation__workspace=slow).update(milli=500)
    held.filter(allocation__workspace=other).update(device=device, milli=500)
    for _ in range(2):
        tell(reloaded(other), steps=1.0)
        live(slow, 2, tokens=60.0)
    proposing.run()
    found = Discontent.objects.get()
    assert (found.workspace_id, found.reason["params"]["sign"]) == (slow.pk, "neighbours")


def test_pace_of_another_or_stopped_start_gives_no_reason(slow):
    throttle_slightly(slow)
    Workspace.objects.filter(pk=slow.pk).update(generation=slow.generation + 1)
    assert pacing.slow_workspaces(timezone.now()) == {}
    Workspace.objects.filter(pk=slow.pk).update(generation=slow.generation, state=State.STOPPED)
    assert pacing.slow_workspaces(timezone.now()) == {}


def test_pace_is_stored_in_a_small_row_written_on_change(row, live):
    live(row, 2, tokens=100.0)
    before = WorkPace.objects.get()
    assert set(pacing.parse_paces(before.paces)["tokens"].place.devices) == {d.uuid for d in devices_of(row)}
    assert pacing.parse_paces(before.paces)["tokens"].place.node == node_of(row).name
    with CaptureQueriesContext(connection) as usual:
        live(row, 1, tokens=99.0)
    assert not any("INSERT" in each["sql"] and "workpace" in each["sql"] for each in usual)
    assert WorkPace.objects.get().observed_at == before.observed_at
    for number in range(30):
        live(row, 1, **{f"n{number}": 1.0, "tokens": 100.0})
    kept = WorkPace.objects.get()
    assert len(pacing.parse_paces(kept.paces)) <= 8 and "tokens" in pacing.parse_paces(kept.paces)


def test_no_query_without_reported_rates(row, live):
    with CaptureQueriesContext(connection) as seen:
        live(row, 1)
    assert not any("workpace" in each["sql"] or "allocation" in each["sql"] for each in seen)


def test_row_of_another_version_is_reset(row, live):
    live(row, 1, tokens=100.0)
    WorkPace.objects.update(paces='{"tokens": 5}')
    assert pacing.progress_of(reloaded(row))[0].best is None
    live(row, 2, tokens=90.0)
    assert pacing.progress_of(reloaded(row))[0].best == 90


def test_queries_do_not_grow_with_past_notices(slow):
    throttle_slightly(slow)
    proposing.run()
    with CaptureQueriesContext(connection) as few:
        proposing.run()
    old = timezone.now() - dt.timedelta(days=2)
    others = Workspace.objects.exclude(pk=slow.pk)
    for other in others:
        WorkPace.objects.create(workspace=other, generation=1, paces="{}", observed_at=old, slow_since=old)
    with CaptureQueriesContext(connection) as many:
        proposing.run()
    assert len(many) == len(few)


# --- nodes short of CPU ---------------------------------------------------------------------------

SHORT = {
    "watched_s": 300, "cores": 32, "runnable": 64, "cpu_idle": 0.3, "cpu_waited": 97.0, "memory_left": 40.0,
    "memory_stalled": 0.0,
}  # fmt: skip


def set_node_pressure(row: Workspace, **changes: object) -> None:
    node = node_of(row)
    facts = {**node.facts, "headroom": {**SHORT, **changes}}
    Node.objects.filter(pk=node.pk).update(facts=facts, limited=[], online=True, seen_at=timezone.now())


def test_workspace_on_a_node_short_of_cpu_moves_to_another(row, live):
    set_node_pressure(row)
    live(row, 2)
    assert proposing.run() == proposing.RebalancePassReport(1, 1, 0)
    assert (Discontent.objects.get().score, Discontent.objects.get().reason["code"]) == (
        50, RebalanceCode.SHORT_OF_CPU
    )  # fmt: skip
    (proposal,) = RebalanceProposal.objects.all()
    assert proposal.moves[0]["target"]["nodes"][0]["node"] != node_of(row).name


def test_no_move_if_all_nodes_are_short_of_cpu(row, live):
    set_node_pressure(row)
    facts = Node.objects.get(pk=node_of(row).pk).facts
    Node.objects.update(facts=facts, limited=[], online=True, seen_at=timezone.now())
    live(row, 2)
    assert proposing.run() == proposing.RebalancePassReport(1, 0, 0)


@pytest.mark.parametrize("change", ["limited", "old", "offline", "forged"])
def test_node_with_limits_or_without_data_is_not_short_of_cpu(row, live, change):
    live(row, 2)
    set_node_pressure(row, **({"cpu_idle": "none", "cores": -3} if change == "forged" else {}))
    changes = {
        "limited": {"limited": ["cpu"]},
        "old": {"seen_at": timezone.now() - dt.timedelta(minutes=10)},
        "offline": {"online": False},
        "forged": {},
    }
    Node.objects.update(**changes[change])
    assert proposing.run() == proposing.RebalancePassReport(0, 0, 0)
    set_node_pressure(row)
    assert proposing.run().discontent == 1


@pytest.mark.parametrize("cores", [0.4, 26.0])
def test_idle_or_fully_served_workspace_is_not_moved_for_cpu(row, live, cores):
    assert row.resources["cpu_milli"] == 28_000
    live(row, 2, cores=cores)
    set_node_pressure(row)
    assert proposing.run() == proposing.RebalancePassReport(0, 0, 0)


def test_unmeasured_cpu_use_gives_no_proposal(row, live, clock):
    live(row, 2)
    set_node_pressure(row)
    clock.shift(60)
    results.agent_heartbeat(workspace_id=row.pk, generation=row.generation, activity={"jobs": 1})
    observing.run()
    assert proposing.run() == proposing.RebalancePassReport(0, 0, 0)
