"""Tells those who wait: their place in the queue, when it should be their turn, and what is in the way."""

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
from portal.scheduling.snapshot import Site, Waiter, without_preemption
from portal.workspaces.lifecycle import State
from portal.workspaces.models import QueueEntry

ETA_CHANGES_BY = timedelta(seconds=30)
"""An ETA that moves by less is not written again."""
COLUMNS = ("position", "eta_at", "eta_basis", "blocker", "outcome", "reason")


@dataclass(frozen=True, slots=True)
class Told:
    """What the user of a waiting workspace is told."""

    outcome: Outcome
    reason: Reason
    position: int | None = None
    eta_at: datetime | None = None
    basis: Reason | None = None
    blocker: Mapping[str, Any] | None = None


def tell(site: Site) -> None:
    """Write to every waiting workspace what has changed of what its user is told."""
    if not site.waiters:
        return
    scheduler = site.scheduler
    with without_preemption(scheduler):
        cycle = scheduler.cycle(site.now_s)
    etas = verdicts.forecast(scheduler, cycle)
    order = {
        workload.id: place + 1
        for place, workload in enumerate(scheduler.pending.pick(scheduler.state, set()))
    }
    rows = {
        str(row.pk): row
        for row in QueueEntry.objects.select_for_update(of=("self",), skip_locked=True).filter(
            workspace__in=list(site.waiters), workspace__state=State.PENDING
        )
    }
    changed: dict[tuple[str, ...], list[QueueEntry]] = {}
    for name, waiter in site.waiters.items():
        row = rows.get(name)
        if row is not None and (
            columns := _update(row, _told(site, waiter, cycle, order.get(name), etas.get(name)))
        ):
            changed.setdefault(columns, []).append(row)
    for columns, those in changed.items():
        # Only what has changed: mostly the places in the queue, and a statement takes long by its length.
        QueueEntry.objects.bulk_update(those, columns, batch_size=500)


def _told(site: Site, waiter: Waiter, cycle: Cycle, position: int | None, eta: verdicts.Eta | None) -> Told:
    if waiter.reason or waiter.id not in site.scheduler.pending.items:
        looked_at_again = Reason(AdmissionCode.LOOKED_AT_AGAIN)
        return Told(Outcome.QUEUED, blockers.no_room(waiter.asked) if waiter.reason else looked_at_again)
    never = site.scheduler.state.never(waiter.workload)
    shortfall = never or verdicts.why_not(site.scheduler, waiter.workload, cycle)
    blocker = verdicts.blocker_of(site.scheduler, waiter.workload, shortfall)
    asks = never is not None and never[0] in (Rule.TEAM_LIMIT, Rule.USER_CAP)
    if shortfall[0] is Rule.LEDGER:
        asks = True
    return Told(
        Outcome.NEEDS_APPROVAL if asks else Outcome.QUEUED,
        blockers.reason_of(site, waiter.workload, blocker, asked=waiter.asked),
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


def _update(row: QueueEntry, told: Told) -> tuple[str, ...]:
    """Take over what its user is to be told; returns the columns that have changed."""
    eta = row.eta_at
    if told.eta_at is None or eta is None or abs(told.eta_at - eta) >= ETA_CHANGES_BY:
        eta = told.eta_at
    blocker = dict(told.blocker or {})
    values: tuple[Any, ...] = (
        told.position, eta, told.basis.as_json() if told.basis else {}, blocker, told.outcome.value,
        told.reason.as_json(),
    )  # fmt: skip
    changed = tuple(name for name, value in zip(COLUMNS, values, strict=True) if getattr(row, name) != value)
    for name, value in zip(COLUMNS, values, strict=True):
        setattr(row, name, value)
    return changed
