"""Workspaces wait at an engine that places by itself, and their time counts from when it begins them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from portal.common.errors import StateConflict
from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event
from portal.fleet.inventory.models import Pool, RebalancingPolicy
from portal.quota.ledger import spending
from portal.reclaim.rebalancing.policies import policy_of
from portal.scheduling import admission, cycle, operator_moves
from portal.scheduling.codes import AdmissionCode, MoveCode
from portal.workspaces import engine_queue, pool_observations, services
from portal.workspaces.lifecycle import DesiredState, State, TerminationReason
from portal.workspaces.models import PoolObservation, Workspace
from provisioning.types import EngineQueue, Observation, Observations, ObservedState, PlacedNode, WorkspaceRef
from tests.clusters import simulated_cluster
from tests.factories import FlavorFactory
from tests.sweeps import sweep
from tests.workspaces.helpers import active, answer, check_invariants, taken

pytestmark = pytest.mark.django_db
HOUR_S = 3600
PLACED = (PlacedNode("clu-002", ("h100/1",)),)


@pytest.fixture
def cluster(catalog, tmp_path) -> Pool:
    pool = simulated_cluster(str(tmp_path / "cluster"))
    FlavorFactory(slug="cluster-x1", accelerator_count=1, pool=pool)
    return pool


def queue(position: int = 3, **fields: Any) -> EngineQueue:
    fields.setdefault("seen_at", timezone.now().timestamp())
    return EngineQueue(position, "priority", "Earlier jobs wait too.", **fields)


@pytest.fixture
def waiting(cluster, make, bob, sent, clock) -> Workspace:
    """A workspace that its engine has accepted and not begun."""
    workspace = make(bob, "cluster-x1")
    assert answer(sent, "start", "queued", queue=queue())
    workspace.refresh_from_db()
    return workspace


def observe(workspace: Workspace, state: str, **fields: Any) -> None:
    """Apply an answer about all workspaces of the pool that shows this one."""
    Workspace.objects.filter(pk=workspace.pk).update(next_reconcile_at=timezone.now())
    sweep()
    pool = workspace.pool
    assert pool is not None
    ref = WorkspaceRef(str(workspace.pk), workspace.generation)
    seen = Observation(ref, ObservedState(state), ready=state == "running", **fields)
    lease = PoolObservation.objects.get(pool=pool).lease
    assert pool_observations.apply(pool=pool, lease=lease, observed=Observations((seen,), True))
    workspace.refresh_from_db()


def gpu_seconds(workspace: Workspace) -> int:
    """Return the seconds of GPUs that count for the workspace's team until now."""
    now_s = int(timezone.now().timestamp())
    usage = spending.intervals([workspace.team_id], timezone.now() - timedelta(days=30)).get(
        workspace.team_id, []
    )
    return sum(((item.end_s or now_s) - item.start_s) * item.amount // 1000 for item in usage)


def test_waiting_holds_the_quota_and_counts_no_time(waiting, clock):
    clock.shift(HOUR_S)
    assert (waiting.state, waiting.began_at) == (State.PROVISIONING, None)
    wait = engine_queue.wait_of(waiting.status.engine, timezone.now())
    assert wait is not None
    assert (wait.position, wait.code, wait.starts_at) == (3, "priority", None)
    assert len(active(waiting)) == 1
    assert gpu_seconds(waiting) == 0
    began = timezone.now()
    observe(waiting, "starting", placed=PLACED, began_at=began.timestamp())
    assert (waiting.state, waiting.began_at) == (State.PROVISIONING, began)
    assert waiting.status.engine["placed"] == [{"node": "clu-002", "devices": ["h100/1"]}]
    assert engine_queue.wait_of(waiting.status.engine, timezone.now()) is None
    observe(waiting, "running", placed=PLACED, began_at=began.timestamp())
    clock.shift(HOUR_S)
    assert waiting.state == State.RUNNING
    assert gpu_seconds(waiting) == HOUR_S
    check_invariants()


def test_start_timeout_counts_from_when_the_engine_begins(waiting, clock):
    limit_s = waiting.template.start_timeout_s
    clock.shift(3 * limit_s)
    observe(waiting, "queued", queue=queue(2))
    assert waiting.state == State.PROVISIONING
    observe(waiting, "starting", began_at=timezone.now().timestamp())
    clock.shift(limit_s - 1)
    observe(waiting, "starting", began_at=0)
    assert waiting.state == State.PROVISIONING
    clock.shift(1 + pool_observations.LIMITS_CHECKED_EVERY.total_seconds())
    sweep()
    waiting.refresh_from_db()
    assert (waiting.state, waiting.termination_reason) == (State.TERMINATING, TerminationReason.START_TIMEOUT)


def test_requeue_by_the_engine_is_no_failure(waiting, clock):
    observe(waiting, "running", began_at=timezone.now().timestamp())
    clock.shift(HOUR_S)
    observe(waiting, "queued", queue=queue(1))
    assert (waiting.state, waiting.began_at, waiting.ready_at) == (State.PROVISIONING, None, None)
    assert engine_queue.waits(waiting)
    assert Event.objects.filter(workspace=waiting, kind=AuditKind.WORKSPACE_ENGINE_REQUEUE).exists()
    clock.shift(HOUR_S)
    assert gpu_seconds(waiting) == HOUR_S, "only the first run"
    check_invariants()
    observe(waiting, "running", began_at=timezone.now().timestamp())
    clock.shift(HOUR_S)
    assert waiting.state == State.RUNNING
    assert gpu_seconds(waiting) == 2 * HOUR_S


def test_requeue_between_two_observations_counts_on(waiting, clock):
    observe(waiting, "running", began_at=timezone.now().timestamp())
    clock.shift(HOUR_S)
    again = timezone.now()
    clock.shift(60)
    observe(waiting, "running", began_at=again.timestamp(), placed=PLACED)
    assert (waiting.state, waiting.began_at) == (State.RUNNING, again)
    assert waiting.status.engine["placed"]
    assert gpu_seconds(waiting) == HOUR_S + 60
    assert [allocation.granted_at for allocation in active(waiting)] == [again]


def test_stop_cancels_the_wait_at_the_engine(waiting, bob, sent, clock):
    clock.shift(HOUR_S)
    sent.clear()
    services.stop(actor=bob, workspace_id=waiting.pk)
    assert answer(sent, "stop", "absent")
    waiting.refresh_from_db()
    assert (waiting.state, waiting.desired_state) == (State.STOPPED, DesiredState.STOPPED)
    assert not active(waiting)
    assert not waiting.status.engine.get("queue") or not engine_queue.waits(waiting)
    assert gpu_seconds(waiting) == 0


def test_window_limits_what_is_handed_over(cluster, make, bob, sent, clock, settings):
    settings.BERTH_ENGINE_WINDOW = 2
    made = [make(bob, "cluster-x1") for _ in range(3)]
    first, second, third = made
    for workspace in made:
        workspace.refresh_from_db()
    assert [workspace.state for workspace in made] == [State.PROVISIONING, State.PROVISIONING, State.PENDING]
    sent.clear()
    Workspace.objects.filter(pk__in=[first.pk, second.pk]).update(launched_at=timezone.now(), lease="")
    observe(first, "queued", queue=queue(1))
    cycle.run()
    third.refresh_from_db()
    assert third.state == State.PENDING
    observe(first, "starting", began_at=timezone.now().timestamp())
    cycle.run()
    third.refresh_from_db()
    assert third.state == State.PROVISIONING


def test_window_holds_within_one_cycle(cluster, make, bob, settings, clock):
    settings.BERTH_ENGINE_WINDOW = 0
    made = [make(bob, "cluster-x1") for _ in range(3)]
    settings.BERTH_ENGINE_WINDOW = 2
    cycle.run()
    placed = Workspace.objects.filter(pk__in=[workspace.pk for workspace in made], state=State.PROVISIONING)
    assert placed.count() == 2


@pytest.mark.parametrize(
    ("others", "code", "free"),
    [(0, AdmissionCode.HANDED_OVER, 8), (8, AdmissionCode.HANDED_OVER_TO_QUEUE, 0)],
)
def test_preview_says_what_the_cluster_has_free(cluster, team, bob, others, code, free):
    model = cluster.nodes.first().devices.first().model
    cluster.used_by_others = {model: others}
    cluster.save()
    from portal.catalog.models import Flavor, Template

    verdict = admission.assess(
        template=Template.objects.get(slug="jupyterlab"),
        flavor=Flavor.objects.get(slug="cluster-x1"),
        team=team,
        actor=bob,
    )
    assert (verdict.reason.code, verdict.reason.params["free"], verdict.reason.params["total"]) == (
        code,
        free,
        8,
    )


def test_unchanged_wait_is_not_written_again(waiting, clock):
    stored = waiting.status.engine
    assert not engine_queue.is_news(stored, None, _seen(waiting, queue(3)))
    assert engine_queue.is_news(stored, None, _seen(waiting, queue(2)))
    clock.shift(engine_queue.SEEN_STEP_S)
    assert engine_queue.is_news(stored, None, _seen(waiting, queue(3)))


def _seen(workspace: Workspace, at_engine: EngineQueue) -> Observation:
    ref = WorkspaceRef(str(workspace.pk), workspace.generation)
    return Observation(ref, ObservedState.QUEUED, queue=at_engine)


def test_time_limit_of_the_engine_ends_the_workspace(waiting, clock):
    ends_at = timezone.now() + timedelta(hours=2)
    observe(waiting, "running", began_at=timezone.now().timestamp(), ends_at=ends_at.timestamp())
    assert waiting.ends_at == ends_at


def test_real_engine_queues_begins_and_preempts(catalog, make, bob, tmp_path, settle, clock):
    """Through the driver: the workspace waits for another job, runs, and is preempted once."""
    engine = {"requeue_after_s": 600, "others_gpus": 1, "others_first": 1, "others_for_s": 60}
    pool = simulated_cluster(str(tmp_path / "real"), nodes=1, gpus=1, **engine)
    FlavorFactory(slug="cluster-x1", accelerator_count=1, pool=pool)
    workspace = make(bob, "cluster-x1")
    settle(5)
    workspace.refresh_from_db()
    wait = engine_queue.wait_of(workspace.status.engine, timezone.now())
    assert workspace.state == State.PROVISIONING
    assert wait is not None
    assert wait.position == 1
    assert wait.starts_at is not None
    settle(90)
    workspace.refresh_from_db()
    assert workspace.state == State.RUNNING
    assert workspace.status.engine["placed"]
    assert (workspace.began_at - workspace.placed_at).total_seconds() >= 50
    assert gpu_seconds(workspace) <= 40
    clock.shift(600)
    settle(90)
    workspace.refresh_from_db()
    requeues = Event.objects.filter(workspace=workspace, kind=AuditKind.WORKSPACE_ENGINE_REQUEUE)
    began = workspace.allocations.values_list("granted_at", flat=True)
    assert requeues.count() == 1 or len(began) == 2
    assert workspace.state == State.RUNNING
    check_invariants()


def test_workspaces_of_an_engine_do_not_move(waiting, olga, clock):
    observe(waiting, "running", began_at=timezone.now().timestamp())
    plan = operator_moves.preview(actor=olga, workspaces=[waiting])
    (verdict,) = plan.verdicts.values()
    assert isinstance(verdict, StateConflict)
    assert verdict.reason.code == MoveCode.ENGINE_PLACES
    assert policy_of(waiting.pool) is RebalancingPolicy.OFF


def test_taken_start_names_the_offered_place(cluster, make, bob, sent):
    make(bob, "cluster-x1")
    command = taken(sent, "start")
    assert command.placement is not None
    assert len(command.placement.nodes) == 1
