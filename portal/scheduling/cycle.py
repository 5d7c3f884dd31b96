"""The scheduling cycle: decides which workspaces start and which are preempted, and writes the result.

A transaction that has locked a workspace never waits for the queue's row (it only takes it if free), and a
cycle skips locked workspaces. So the two cannot deadlock, and the next cycle considers these workspaces
again. Only cycles allocate capacity, and they read it under the queue's lock, so concurrent changes can only
free capacity.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from portal.common.actors import SYSTEM
from portal.common.errors import PortalError
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.formatting import format_clock
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of
from portal.fleet.inventory.models import PlacementLock
from portal.scheduling import (
    decision,
    hints,
    launches,
    moves,
    queue_status,
    snapshot_cache,
    snapshot_feed,
)
from portal.scheduling.engine import model
from portal.scheduling.engine.model import PreemptionCode
from portal.scheduling.engine.outlook import Outlook
from portal.scheduling.models import QueueState
from portal.scheduling.snapshot import ClusterSnapshot
from portal.workspaces.domain_events import WorkspaceQueued
from portal.workspaces.homes import places as home_places
from portal.workspaces.homes import start_moves
from portal.workspaces.lifecycle import DesiredState, PreemptionCause, State
from portal.workspaces.models import Preemption, QueueEntry, Workspace

log = logging.getLogger(__name__)
MAX_CYCLE_INTERVAL = timedelta(seconds=20)
"""Maximum time between cycles. Without changes, ETAs and reservations still change with time."""
MAX_STATUSES_AT_ONCE = 100
"""Maximum number of pending workspaces for which a decision also writes all statuses."""
STATUS_PAUSE_FACTOR = 10
"""Pause between status updates, as a multiple of the duration of the last one."""
CAUSES = {
    PreemptionCode.IN_TEAM: PreemptionCause.IN_TEAM,
    PreemptionCode.RECLAIM: PreemptionCause.RECLAIM,
    PreemptionCode.FAIR_SHARE: PreemptionCause.FAIR_SHARE,
    PreemptionCode.RESERVATION_BEGUN: PreemptionCause.BOOKING,
}
"""The stored cause of a preemption, by its code."""
CAUSES_WITHOUT_BENEFICIARY = (PreemptionCause.BOOKING, PreemptionCause.DRAIN)
"""Causes without a pending beneficiary. `portal.scheduling.drains` cancels its own preemptions."""


@dataclass(frozen=True, slots=True)
class CycleReport:
    """The workspaces that a cycle started and preempted, and how many are still pending.

    `statuses_written` means that the cycle has also written the status of every pending workspace.
    """

    started: tuple[UUID, ...] = ()
    preempted: tuple[UUID, ...] = ()
    waiting: int = 0
    statuses_written: bool = True


def run(*, now: datetime | None = None) -> CycleReport | None:
    """Run one cycle: decide, and write the statuses of all pending workspaces.

    If another cycle is running, requests one more and returns None.
    """
    report = decide(now=now)
    if report is not None and not report.statuses_written:
        write_statuses_if_due(now)
    return report


@transaction.atomic
def decide(*, now: datetime | None = None, first: str = "") -> CycleReport | None:
    """Decide one cycle and write the result. Returns None if another cycle is running.

    `first` is the id of a workspace whose user waits for the result. The cycle writes its status and, if few
    workspaces are pending, all other statuses. Otherwise `write_statuses` has to follow.
    """
    began = time.monotonic()
    state = _lock()
    if state is None:
        hints.request_cycle()
        return None
    now = now or timezone.now()
    # Read before the snapshot, so that the next sweep notices commits during this cycle, including its own.
    generation = snapshot_feed.generation()
    with snapshot_cache.cycle_cache.use(now) as snapshot:
        started, preempted, unchanged_cycle = _decide_and_write(snapshot, state)
        waiting = len(snapshot.pending_workloads)
        if waiting <= MAX_STATUSES_AT_ONCE:
            queue_status.update(snapshot, Outlook(snapshot.scheduler, unchanged_cycle))
            state.shown_generation, state.shown_at, state.shown_ms = generation, now, 0
        elif first in snapshot.pending_workloads and UUID(first) not in started:
            outlook = Outlook(snapshot.scheduler, unchanged_cycle)
            queue_status.write(queue_status.changes(snapshot, outlook, only=first))
        queued = len(snapshot.scheduler.pending)
    state.seen_generation = generation
    state.decided_at = now
    state.took_ms = _ms_since(began)
    # Otherwise `write_statuses` writes these columns.
    shown = ("shown_generation", "shown_at", "shown_ms") if waiting <= MAX_STATUSES_AT_ONCE else ()
    state.save(update_fields=["last_reservation_seq", "seen_generation", "decided_at", "took_ms", *shown])
    return CycleReport(tuple(started), tuple(preempted), queued, waiting <= MAX_STATUSES_AT_ONCE)


def write_statuses_if_due(now: datetime | None = None) -> None:
    """Write the statuses of all pending workspaces, unless they are current or were just written.

    Long queues are updated less often, so that this uses at most 1/10 of a CPU.
    """
    state = QueueState.objects.filter(pk=1).first()
    if state is not None and _is_status_due(state, now or timezone.now()):
        write_statuses(now)


def _is_status_due(state: QueueState, now: datetime) -> bool:
    if state.shown_at is None:
        return True
    rest = max(timedelta(), now - state.shown_at)
    if rest < timedelta(milliseconds=STATUS_PAUSE_FACTOR * state.shown_ms):
        return False
    return rest >= MAX_CYCLE_INTERVAL or state.shown_generation != snapshot_feed.generation()


def write_statuses(now: datetime | None = None) -> None:
    """Write the statuses of all pending workspaces.

    Runs outside the queue's lock and outside a single transaction, so that new requests do not wait. A row
    may be slightly outdated; the next run corrects it.
    """
    began = time.monotonic()
    generation = snapshot_feed.generation()
    with snapshot_cache.cycle_cache.use(now) as snapshot:
        changes = queue_status.changes(snapshot)
    # Write outside the snapshot's context, because a cycle with the database lock may be waiting for it.
    queue_status.write(changes)
    QueueState.objects.filter(pk=1).update(
        shown_generation=generation, shown_at=now or timezone.now(), shown_ms=_ms_since(began)
    )


def run_if_due() -> CycleReport | None:
    """Run a cycle if workspaces are pending and anything has changed since the last one."""
    if not Workspace.objects.filter(state=State.PENDING, desired_state=DesiredState.RUNNING).exists():
        return None
    state = QueueState.objects.filter(pk=1).first()
    if (
        state is not None
        and state.decided_at is not None
        and timezone.now() - state.decided_at < MAX_CYCLE_INTERVAL
        and state.seen_generation == snapshot_feed.generation()
    ):
        write_statuses_if_due()
        return None
    return run()


def _ms_since(began: float) -> int:
    return int((time.monotonic() - began) * 1000)


def _lock() -> QueueState | None:
    """Lock and return the queue's row, which allows allocating capacity; None if another process has it."""
    if not PlacementLock.try_hold():
        return None
    return QueueState.objects.get_or_create(pk=1)[0]


def _decide_and_write(
    snapshot: ClusterSnapshot, state: QueueState
) -> tuple[list[UUID], list[UUID], model.Cycle | None]:
    """Return the started and preempted workspaces, and the decision if the next one would be the same."""
    started: list[UUID] = []
    preempted: list[UUID] = []

    def write(cycle: model.Cycle) -> list[str]:
        begun = _start(snapshot, cycle)
        started.extend(map(UUID, begun))
        preempted.extend(_preempt(snapshot, cycle.victims))
        _record_reservations(snapshot, state, cycle)
        return begun

    decided = decision.decide(snapshot, write)
    _cancel_preemptions(snapshot)
    return started, preempted, decided.unchanged_cycle


def _start(snapshot: ClusterSnapshot, cycle: model.Cycle) -> list[str]:
    if not cycle.starts:
        return []
    rows = {
        str(workspace.pk): workspace
        for workspace in Workspace.objects.select_for_update(of=("self",), skip_locked=True)
        .select_related("owner__dotfiles", "team", "template", "flavor__pool", "pool")
        .filter(pk__in=list(cycle.starts), state=State.PENDING, desired_state=DesiredState.RUNNING)
        .order_by("pk")
    }
    starts = []
    for workload in cycle.started(snapshot.scheduler.pending.items):
        if workload.id in rows:
            pool, placement = snapshot.placer.placement_of(workload.id)
            choices = snapshot.pending_workloads[workload.id].choices
            flavor = choices[workload.choice].flavor if choices else None
            moves_home = snapshot.placer.home_move_of(workload) is not None
            row = rows[workload.id]
            starts.append(
                launches.Start(row, pool.pool, placement, workload.amounts, flavor, moves_home=moves_home)
            )
    at_homes = _place_at_homes(snapshot, [start for start in starts if not start.moves_home])
    starts = at_homes + _begin_home_moves([start for start in starts if start.moves_home], snapshot.now)
    launches.start_workspaces(starts, snapshot.now)
    moves.record_arrivals([(start.workspace, start.placement) for start in starts], snapshot.now)
    return [str(start.workspace.pk) for start in starts]


def _place_at_homes(snapshot: ClusterSnapshot, starts: list[launches.Start]) -> list[launches.Start]:
    """Record the node of each user's first start, and return the starts that are at their user's home.

    Reads other pending workspaces of these users again, because they could go anywhere until now.
    """
    one_node = [start for start in starts if len(start.placement.nodes) == 1]
    elsewhere = home_places.record_places(
        [(start.workspace, start.pool, start.placement.nodes[0].node) for start in one_node]
    )
    if read_again := elsewhere | _waiting_for_homes(snapshot, one_node):
        snapshot_feed.workloads(read_again)
    return [start for start in starts if start.workspace.pk not in elsewhere]


def _waiting_for_homes(snapshot: ClusterSnapshot, starts: Sequence[launches.Start]) -> set[UUID]:
    """Return the pending workspaces of users whose first home in a pool comes with these starts."""
    pending = snapshot.pending_workloads
    started = {str(start.workspace.pk) for start in starts}
    owners = {
        (pending[name].workload.user, pending[name].workload.team)
        for name in started
        if any(request.new_home for request in pending[name].placement_requests)
    }
    if not owners:
        return set()
    return {
        UUID(name)
        for name, other in pending.items()
        if name not in started and (other.workload.user, other.workload.team) in owners
    }


def _begin_home_moves(starts: list[launches.Start], now: datetime) -> list[launches.Start]:
    """Begin moving homes to the nodes of these starts, and return the starts whose homes move.

    Reads the other workspaces again, because their homes are in use, locked or moved meanwhile.
    """
    begun = []
    for start in starts:
        node = start.placement.nodes[0].node
        try:
            start_moves.begin(workspace=start.workspace, pool=start.pool, node=node, now=now)
        except PortalError as error:
            log.info("the home of workspace %s does not move to %s: %s", start.workspace.pk, node, error)
            snapshot_feed.workloads([start.workspace.pk])
        else:
            begun.append(start)
    return begun


def _preempt(snapshot: ClusterSnapshot, victims: Sequence[model.Victim]) -> list[UUID]:
    """Start the preemption of the victims. Returns the preempted workspaces."""
    preempted = []
    for victim in victims:
        row = (
            Workspace.objects.select_for_update(of=("self",), skip_locked=True)
            .select_related("owner", "team", "preemption")
            .filter(pk=victim.workload, preemption=None)
            .first()
        )
        if row is None or row.state not in (State.PROVISIONING, State.RUNNING):
            continue
        preempt_at = snapshot.now + timedelta(seconds=snapshot.scheduler.policy.grace_s)
        row.preemption = Preemption.objects.create(
            workspace=row,
            preempt_at=preempt_at,
            preempted_by=victim.beneficiary,
            cause=CAUSES[victim.reason],
        )
        row.next_reconcile_at = min(row.next_reconcile_at or preempt_at, preempt_at)
        row.save(update_fields=["next_reconcile_at"])
        snapshot_feed.workloads([row.pk])
        if victim.reason is not PreemptionCode.RESERVATION_BEGUN:
            nominate(victim.beneficiary)
        reason = message_of(Reason(victim.reason))
        events.record(
            actor=SYSTEM,
            kind=AuditKind.WORKSPACE_PREEMPTING,
            workspace=row,
            message=f"announced the preemption of the workspace within {snapshot.scheduler.policy.grace_s} s",
            reason=reason,
            data={"reason": CAUSES[victim.reason].value, "for": victim.beneficiary},
        )
        events.notify(
            [row.owner],
            kind="workspace.preempting",
            title=_("%(name)s is being preempted and stops at %(time)s")
            % {"name": row.name, "time": format_clock(preempt_at, snapshot.now)},
            body=_("%(why)s. Files are kept, and the workspace is queued again.") % {"why": capfirst(reason)},
            url=f"/workspaces/{row.pk}/",
        )
        preempted.append(row.pk)
    return preempted


def nominate(workspace_id: str) -> None:
    """Mark the workspace as nominated, so that its victims' capacity is reserved for it."""
    waiting = QueueEntry.objects.filter(
        workspace=UUID(workspace_id), workspace__state=State.PENDING, nominated=False
    )
    if waiting.update(nominated=True):
        _record_event(workspace_id, AuditKind.WORKSPACE_CLAIMED, "started to preempt other workspaces for it")


def _record_event(workspace_id: str, kind: AuditKind, message: str, reason: str = "") -> None:
    workspace = Workspace.objects.select_related("team", "owner").get(pk=workspace_id)
    snapshot_feed.workloads([workspace.pk])
    events.record(actor=SYSTEM, kind=kind, workspace=workspace, message=message, reason=reason)


def _record_reservations(snapshot: ClusterSnapshot, state: QueueState, cycle: model.Cycle) -> None:
    """Number new reserved starts, and end expired nominations."""
    for head in cycle.backfill_reservations:
        if snapshot.scheduler.pending.items[head.workload].backfill_seq:
            continue
        if QueueEntry.objects.filter(workspace=UUID(head.workload), reservation_seq=0).update(
            reservation_seq=state.last_reservation_seq + 1
        ):
            state.last_reservation_seq += 1
            when = format_clock(queue_status.to_datetime(head.start_s), snapshot.now)
            _record_event(
                head.workload,
                AuditKind.WORKSPACE_PROMISED,
                "reserved capacity for the workspace",
                f"smaller requests cannot delay its start beyond {when}",
            )
    for name in cycle.lapsed_nominations:
        if QueueEntry.objects.filter(workspace=UUID(name), nominated=True).update(nominated=False):
            _record_event(
                name,
                AuditKind.WORKSPACE_UNCLAIMED,
                "ended the reservation of capacity: too little became free; the workspace stays queued",
            )


def _cancel_preemptions(snapshot: ClusterSnapshot) -> None:
    """Cancel preemptions whose beneficiary is no longer pending, unless the workspace is already stopping."""
    notices = Preemption.objects.filter(
        preempt_at__gt=snapshot.now, workspace__state__in=(State.PROVISIONING, State.RUNNING)
    ).exclude(Q(cause__in=CAUSES_WITHOUT_BENEFICIARY) | Q(cause=PreemptionCause.MOVE, preempted_by=""))
    for notice in notices.select_related("workspace__owner", "workspace__team"):
        if notice.preempted_by in snapshot.pending_workloads:
            continue
        deleted = Preemption.objects.filter(pk=notice.pk, preempt_at=notice.preempt_at).delete()[0]
        if deleted:
            snapshot_feed.workloads([notice.pk])
            events.record(
                actor=SYSTEM,
                kind=AuditKind.WORKSPACE_PREEMPTION_CANCELLED,
                workspace=notice.workspace,
                message="cancelled the preemption of the workspace",
                reason="the workspace that needed the capacity no longer waits",
            )


def decide_at_once(event: WorkspaceQueued) -> None:
    """Decide in the user's transaction, because the user waits. A worker updates long queues."""
    report = decide(first=str(event.workspace.pk))
    if report is not None and not report.statuses_written:
        hints.request_cycle()
