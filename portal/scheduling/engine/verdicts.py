"""Verdicts on requests: adds a request to a copy of the queue, and decides on it like a cycle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from portal.common.reasons.codes import Rule
from portal.scheduling.engine.model import (
    Cycle,
    Eta,
    Outcome,
    QueueVerdict,
    Snapshot,
    Workload,
)
from portal.scheduling.engine.outlook import Outlook, blocker_of
from portal.scheduling.engine.plan import ENOUGH_FREE, plan
from portal.scheduling.engine.scheduler import Placer, Scheduler
from portal.scheduling.engine.usage import Shortfall

__all__ = ["Eta", "decide", "forecast", "refusal", "starting_now", "verdict"]


class _ReadOnlyPlacer:
    """A placer that takes no capacity."""

    def __init__(self, placer: Placer) -> None:
        self.placer = placer

    def fits(self, workload: Workload, gone: Sequence[str]) -> bool:
        return self.placer.fits(workload, gone)

    def take(self, workload: Workload) -> None:
        return None


def decide(
    snapshot: Snapshot,
    request: Workload,
    *,
    alternatives: Sequence[Workload] = (),
    placer: Placer | None = None,
) -> QueueVerdict:
    """Return the outcome of `request` if submitted now, and which of `alternatives` would start at once.

    Pure, except for capacity taken from `placer`, which should be used for this decision alone. Raises
    ValueError and KeyError like `Scheduler`, and ValueError if the id is already in the snapshot.
    """
    return verdict(Scheduler(snapshot, placer), request, alternatives=alternatives)


def verdict(
    scheduler: Scheduler, request: Workload, *, alternatives: Sequence[Workload] = ()
) -> QueueVerdict:
    """Return the verdict of `decide` on an existing scheduler, which is unchanged except for its placer."""
    others = starting_now(scheduler, alternatives)
    refused = refusal(scheduler, request)
    if refused is not None:
        outcome, shortfall = refused
        return QueueVerdict(outcome, blocker=blocker_of(scheduler, request, shortfall), alternatives=others)
    trial = scheduler.clone()
    trial.placer = scheduler.placer
    trial.submit(request)
    cycle = trial.cycle(trial.now_s)
    trial.apply(cycle, trial.now_s)
    if request.id in cycle.starts:
        return QueueVerdict(Outcome.FITS_NOW, eta_s=trial.now_s, basis=ENOUGH_FREE, alternatives=others)
    pending_outlook = Outlook(trial).of(request.id)
    eta = pending_outlook.eta
    return QueueVerdict(
        Outcome.QUEUED,
        position=pending_outlook.position or 0,
        eta_s=eta.eta_s if eta else None,
        basis=eta.basis if eta else None,
        blocker=pending_outlook.blocker,
        victims=tuple(victim for victim in cycle.victims if victim.beneficiary == request.id),
        alternatives=others,
    )


def refusal(scheduler: Scheduler, request: Workload) -> tuple[Outcome, Shortfall] | None:
    """Return the limit that keeps the request out of the queue until it changes, or None."""
    never = scheduler.usage.permanent_shortfall(request)
    if never is not None:
        refused = never[0] in (Rule.CAPACITY, Rule.SITE_LIMIT)
        return (Outcome.IMPOSSIBLE if refused else Outcome.NEEDS_APPROVAL), never
    if scheduler.usage.lacks_gpu_hours(request):
        return Outcome.NEEDS_APPROVAL, (Rule.LEDGER, "")
    return None


def starting_now(scheduler: Scheduler, candidates: Iterable[Workload]) -> tuple[str, ...]:
    """Return the candidates that would each start at once if submitted alone, in their order."""
    placer = scheduler.placer
    starting = []
    for candidate in candidates:
        if scheduler.usage.shortfall(candidate, scheduler.now_s) is not None:
            continue
        trial = scheduler.clone()
        trial.placer = _ReadOnlyPlacer(placer) if placer is not None else None
        trial.submit(candidate)
        if candidate.id in trial.cycle(trial.now_s).starts:
            starting.append(candidate.id)
    return tuple(starting)


def forecast(scheduler: Scheduler, cycle: Cycle, names: Iterable[str] | None = None) -> Mapping[str, Eta]:
    """Return when pending requests are expected to start, according to `plan.Plan`.

    `cycle` is the scheduler's last decision. `names` selects requests; None means all. Assumes that
    workloads end as expected and no requests arrive; ignores nodes.
    """
    outlook = plan(scheduler, cycle)
    return outlook.etas() if names is None else {name: outlook.eta(name) for name in names}
