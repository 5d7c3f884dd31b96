"""Decides on a snapshot: starts, preemptions, and the state of all other requests.

Cycles write the result. Previews decide on a trial copy that includes the request, and discard it. Both run
this code, so that previews predict real decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from portal.scheduling.engine import model
from portal.scheduling.engine.outlook import Forecast, Outlook
from portal.scheduling.engine.scheduler import Scheduler
from portal.scheduling.snapshot import ClusterSnapshot

ExecuteCycle = Callable[[model.Cycle], Sequence[str]]
"""A function that writes the result of a cycle and returns the ids of the started workloads."""


def start_all(cycle: model.Cycle) -> Sequence[str]:
    """Write nothing; every start succeeds."""
    return cycle.starts


@dataclass(frozen=True, slots=True)
class Decision:
    """The cycle of a decision.

    `unchanged_cycle` is the same cycle if it changed nothing, not even the order, so the next one would be
    equal; else None.
    """

    cycle: model.Cycle
    unchanged_cycle: model.Cycle | None


def decide(snapshot: ClusterSnapshot, execute: ExecuteCycle = start_all) -> Decision:
    """Decide one cycle and apply it to the snapshot."""
    scheduler = snapshot.scheduler
    cycle = scheduler.cycle(snapshot.now_s)
    unchanged_cycle = cycle if _changes_nothing(cycle, scheduler) else None
    begun = execute(cycle)
    for name in set(cycle.starts) - set(begun):
        # The workload's row is locked, so it cannot start now. Leave it out of this cycle.
        scheduler.withdraw(name)
        snapshot.unconfirmed.add(UUID(name))
    for head in cycle.backfill_reservations:
        if head.workload in scheduler.pending.items:
            scheduler.pending.reserve_start(head.workload)
    for name in cycle.lapsed_nominations:
        if name in scheduler.pending.items:
            scheduler.pending.nominate(name, False)
    for name in begun:
        scheduler.start(name, snapshot.now_s, cycle.chosen.get(name))
    for victim in cycle.victims:
        scheduler.preempt(victim, snapshot.now_s)
        snapshot.unconfirmed.add(UUID(victim.workload))
    return Decision(cycle, unchanged_cycle)


def _changes_nothing(cycle: model.Cycle, scheduler: Scheduler) -> bool:
    return not (cycle.starts or cycle.victims or cycle.lapsed_nominations) and all(
        scheduler.pending.has_reserved_start(head.workload) for head in cycle.backfill_reservations
    )


def forecast_next(snapshot: ClusterSnapshot) -> Forecast:
    """Return the next decision if nothing changes. Cached with the snapshot.

    Worth its cost only for several previews of one snapshot. Do not call it inside a trial, because trial
    placements are in the same clusters.
    """
    if snapshot.forecast is None:
        with snapshot.trial() as copy:
            decided = decide(copy)
            outlook = Outlook(copy.scheduler, decided.unchanged_cycle)
            snapshot.forecast = Forecast(decided.cycle, outlook)
    return snapshot.forecast


def trial_outlook(without: Forecast | None, trial: ClusterSnapshot, decided: Decision, added: str) -> Outlook:
    """Return the outlook of a trial copy that includes the request `added`.

    Reuses the existing plan if the request has changed nothing for the others.
    """
    outlook = Outlook(trial.scheduler, decided.unchanged_cycle)
    if without is None:
        return outlook
    if _same_for_others(decided.cycle, without.cycle):
        outlook.reuse_plan(without.outlook, added)
    return outlook


def _same_for_others(one: model.Cycle, other: model.Cycle) -> bool:
    return (one.starts, one.chosen, one.victims, one.lapsed_nominations) == (
        other.starts,
        other.chosen,
        other.victims,
        other.lapsed_nominations,
    ) and {reservation.workload for reservation in other.backfill_reservations} <= {
        reservation.workload for reservation in one.backfill_reservations
    }
