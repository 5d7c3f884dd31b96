"""Writes the queue entries of pending workspaces: position, expected start, and what is in the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from portal.common.reasons.codes import AdmissionCode, Rule
from portal.common.reasons.reason import Reason
from portal.scheduling import blockers
from portal.scheduling.engine import verdicts
from portal.scheduling.engine.model import Cycle, Outcome
from portal.scheduling.snapshot import ClusterSnapshot, PendingWorkload, without_preemption
from portal.workspaces.lifecycle import State
from portal.workspaces.models import QueueEntry

ETA_CHANGES_BY = timedelta(seconds=30)
"""An ETA that moves by less is not written again."""
COLUMNS = ("position", "eta_at", "eta_basis", "blocker", "outcome", "reason")


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """What the queue has decided about a pending workspace, as its user sees it."""

    outcome: Outcome
    reason: Reason
    position: int | None = None
    eta_at: datetime | None = None
    basis: Reason | None = None
    blocker: Mapping[str, Any] | None = None


def update(snapshot: ClusterSnapshot) -> None:
    """Write position, ETA and reason of every pending workspace, where they have changed."""
    if not snapshot.pending_workloads:
        return
    scheduler = snapshot.scheduler
    with without_preemption(scheduler):
        cycle = scheduler.cycle(snapshot.now_s)
    etas = verdicts.forecast(scheduler, cycle)
    order = {
        workload.id: place + 1
        for place, workload in enumerate(scheduler.pending.pick(scheduler.usage, set()))
    }
    rows = {
        str(row.pk): row
        for row in QueueEntry.objects.select_for_update(of=("self",), skip_locked=True).filter(
            workspace__in=list(snapshot.pending_workloads), workspace__state=State.PENDING
        )
    }
    changed: dict[tuple[str, ...], list[QueueEntry]] = {}
    for name, pending in snapshot.pending_workloads.items():
        row = rows.get(name)
        if row is not None and (
            columns := _apply(row, _status_of(snapshot, pending, cycle, order.get(name), etas.get(name)))
        ):
            changed.setdefault(columns, []).append(row)
    for columns, those in changed.items():
        # Only what has changed: mostly the places in the queue, and a statement takes long by its length.
        QueueEntry.objects.bulk_update(those, columns, batch_size=500)


def _status_of(
    snapshot: ClusterSnapshot,
    pending: PendingWorkload,
    cycle: Cycle,
    position: int | None,
    eta: verdicts.Eta | None,
) -> QueueStatus:
    if pending.reason or pending.id not in snapshot.scheduler.pending.items:
        looked_at_again = Reason(AdmissionCode.LOOKED_AT_AGAIN)
        return QueueStatus(
            Outcome.QUEUED, blockers.no_room(pending.placement_request) if pending.reason else looked_at_again
        )
    never = snapshot.scheduler.usage.never(pending.workload)
    shortfall = never or verdicts.why_not(snapshot.scheduler, pending.workload, cycle)
    blocker = verdicts.blocker_of(snapshot.scheduler, pending.workload, shortfall)
    asks = never is not None and never[0] in (Rule.TEAM_LIMIT, Rule.USER_CAP)
    if shortfall[0] is Rule.LEDGER:
        asks = True
    return QueueStatus(
        Outcome.NEEDS_APPROVAL if asks else Outcome.QUEUED,
        blockers.reason_of(snapshot, pending.workload, blocker, placement_request=pending.placement_request),
        None if asks else position,
        at(eta.eta_s) if eta and not asks else None,
        eta.basis if eta and not asks else None,
        blockers.as_data(blocker),
    )


def moment(seconds: int) -> datetime:
    """UTC seconds as a moment."""
    return datetime.fromtimestamp(seconds, UTC)


def at(seconds: int | None) -> datetime | None:
    return None if seconds is None else moment(seconds)


def _apply(row: QueueEntry, status: QueueStatus) -> tuple[str, ...]:
    """Put the status into the row, unsaved; returns the columns that have changed."""
    eta = row.eta_at
    if status.eta_at is None or eta is None or abs(status.eta_at - eta) >= ETA_CHANGES_BY:
        eta = status.eta_at
    blocker = dict(status.blocker or {})
    values: tuple[Any, ...] = (
        status.position, eta, status.basis.as_json() if status.basis else {}, blocker, status.outcome.value,
        status.reason.as_json(),
    )  # fmt: skip
    changed = tuple(name for name, value in zip(COLUMNS, values, strict=True) if getattr(row, name) != value)
    for name, value in zip(COLUMNS, values, strict=True):
        setattr(row, name, value)
    return changed
