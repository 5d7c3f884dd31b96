"""The decision on a snapshot: starts, preemptions, and the state of all other requests.

A cycle writes the result; a preview decides on a trial copy that includes its request and discards it. Both
run this code, so a preview predicts what a creation at that moment gets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from portal.scheduling.engine import model
from portal.scheduling.engine.outlook import Foreseen, Outlook
from portal.scheduling.engine.scheduler import Scheduler
from portal.scheduling.snapshot import ClusterSnapshot, choose_variant

MAX_PASSES = 4
"""Maximum number of passes in one decision: each start may change the model chosen by other requests."""
CarryOut = Callable[[model.Cycle], Sequence[str]]
"""Writes the result of a pass. Returns the ids of the workloads that have started."""


def all_begin(cycle: model.Cycle) -> Sequence[str]:
    """Write nothing; every start succeeds."""
    return cycle.starts


@dataclass(frozen=True, slots=True)
class Decided:
    """The passes of a decision.

    `settled` is the last one if it changed nothing, not even the order: the next one would be the same.
    """

    passes: tuple[model.Cycle, ...]
    settled: model.Cycle | None


def decide(snapshot: ClusterSnapshot, carry_out: CarryOut = all_begin) -> Decided:
    """Decide until nothing more changes, and apply each pass to the snapshot."""
    scheduler = snapshot.scheduler
    passes: list[model.Cycle] = []
    settled: model.Cycle | None = None
    for _ in range(MAX_PASSES):
        cycle = scheduler.cycle(snapshot.now_s)
        passes.append(cycle)
        if _changes_nothing(cycle, scheduler):
            settled = cycle
        begun = carry_out(cycle)
        for name in set(cycle.starts) - set(begun):
            # Its row is locked: it does not start, and is left out of this cycle.
            scheduler.withdraw(name)
            snapshot.unsure.add(UUID(name))
        for head in cycle.backfill_reservations:
            if head.workload in scheduler.pending.items:
                scheduler.pending.reserve_start(head.workload)
        for name in cycle.lapsed_nominations:
            if name in scheduler.pending.items:
                scheduler.pending.nominate(name, False)
        for name in begun:
            scheduler.start(name, snapshot.now_s)
        for victim in cycle.victims:
            scheduler.preempt(victim, snapshot.now_s)
            snapshot.unsure.add(UUID(victim.workload))
        if not begun or not _choose_again(snapshot):
            break
    return Decided(tuple(passes), settled)


def _changes_nothing(cycle: model.Cycle, scheduler: Scheduler) -> bool:
    return not (cycle.starts or cycle.victims or cycle.lapsed_nominations) and all(
        scheduler.pending.has_reserved_start(head.workload) for head in cycle.backfill_reservations
    )


def _choose_again(snapshot: ClusterSnapshot) -> bool:
    """Let requests for several models choose again as models become scarcer. Returns whether any did."""
    again = False
    for name, pending in snapshot.pending_workloads.items():
        if len(pending.placement_request.variants) > 1 and name in snapshot.scheduler.pending.items:
            chosen = choose_variant(snapshot.scheduler, snapshot.placer, pending)
            if chosen.workload.amounts != pending.workload.amounts:
                snapshot.pending_workloads[name] = chosen
                snapshot.scheduler.withdraw(name)
                snapshot.scheduler.submit(chosen.workload)
                again = True
    return again


def foresee(snapshot: ClusterSnapshot) -> Foreseen:
    """Return the next decision if nothing changes. Cached with the snapshot.

    Pays off for several previews of one snapshot, not for a single one. Must not be called inside a trial,
    whose placements are in the same clusters.
    """
    if snapshot.foreseen is None:
        with snapshot.trial() as copy:
            decided = decide(copy)
            outlook = Outlook(copy.scheduler, decided.settled)
            snapshot.foreseen = Foreseen(decided.passes, outlook)
    return snapshot.foreseen


def outlook_with(without: Foreseen | None, trial: ClusterSnapshot, decided: Decided) -> Outlook:
    """Return the outlook of a trial copy that includes one more request.

    Reuses the existing plan if the request has changed nothing for the others.
    """
    outlook = Outlook(trial.scheduler, decided.settled)
    if without is None:
        return outlook
    passes = decided.passes
    if len(passes) == len(without.passes) and all(map(_same_for_others, passes, without.passes)):
        outlook.share_plan(without.outlook)
    return outlook


def _same_for_others(one: model.Cycle, other: model.Cycle) -> bool:
    return (one.starts, one.victims, one.lapsed_nominations) == (
        other.starts,
        other.victims,
        other.lapsed_nominations,
    ) and {reservation.workload for reservation in other.backfill_reservations} <= {
        reservation.workload for reservation in one.backfill_reservations
    }
