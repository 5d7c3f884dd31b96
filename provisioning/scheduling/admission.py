"""The verdict on a request. Preview and creation call `decide` with the same snapshot and get the same.

A request that `fits_now` is among the starts of the cycle that follows its submission, by construction:
the verdict is read off that very cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from provisioning.scheduling.model import (
    FOREVER_S,
    Blocker,
    Cycle,
    Holder,
    Outcome,
    Rule,
    Snapshot,
    Verdict,
    Workload,
)
from provisioning.scheduling.scheduler import Placer, Scheduler
from provisioning.scheduling.state import Lack
from provisioning.scheduling.words import explain

HOLDERS_NAMED = 3
STEP_PART = 20
"""A look ahead steps over a twentieth of the time looked ahead so far: an ETA is that exact."""
AHEAD_DEPTH = 20


@dataclass(frozen=True, slots=True)
class Eta:
    """When a request is expected to start, or None, and what that rests on."""

    eta_s: int | None
    basis: str


class _Peek:
    """A placer that is asked and not changed."""

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
) -> Verdict:
    """What happens to `request` if it is made now, and which of `alternatives` would start at once.

    Pure, but for what it takes from `placer`, which should be one for this decision alone. Raises
    ValueError and KeyError as `Scheduler` does, and ValueError where the id is in the snapshot already.
    """
    return verdict(Scheduler(snapshot, placer), request, alternatives=alternatives)


def verdict(scheduler: Scheduler, request: Workload, *, alternatives: Sequence[Workload] = ()) -> Verdict:
    """`decide` on a standing scheduler, which is left as it was."""
    now_s = scheduler.now_s
    never = scheduler.state.never(request)
    if never is not None or not scheduler.state.teams[request.team].funded:
        lack = never or (Rule.LEDGER, "")
        blocker = blocker_of(scheduler, request, lack)
        refused = lack[0] in (Rule.CAPACITY, Rule.SITE_LIMIT)
        return Verdict(
            Outcome.IMPOSSIBLE if refused else Outcome.NEEDS_APPROVAL,
            explain(request, blocker, now_s, ever=False),
            blocker=blocker,
            alternatives=starting_now(scheduler, alternatives),
        )
    others = starting_now(scheduler, alternatives)
    scheduler.submit(request)
    try:
        cycle = scheduler.cycle(now_s)
        if request.id in cycle.starts:
            return Verdict(
                Outcome.FITS_NOW, "Fits now.", eta_s=now_s, basis="enough is free", alternatives=others
            )
        reason = why_not(scheduler, request, cycle)
        blocker = blocker_of(scheduler, request, reason)
        eta = forecast(scheduler, cycle, [request.id])[request.id]
        return Verdict(
            Outcome.QUEUED,
            explain(request, blocker, now_s, ever=True),
            position=position(scheduler, cycle, request.id),
            eta_s=eta.eta_s,
            basis=eta.basis,
            blocker=blocker,
            victims=tuple(each for each in cycle.victims if each.beneficiary == request.id),
            alternatives=others,
        )
    finally:
        scheduler.withdraw(request.id)


def starting_now(scheduler: Scheduler, candidates: Iterable[Workload]) -> tuple[str, ...]:
    """Which of the candidates, each by itself, would start at once. In their order."""
    placer = scheduler.placer
    scheduler.placer = _Peek(placer) if placer is not None else None
    found = []
    try:
        for candidate in candidates:
            if scheduler.state.lack(candidate, scheduler.now_s) is not None:
                continue
            scheduler.submit(candidate)
            try:
                if candidate.id in scheduler.cycle(scheduler.now_s).starts:
                    found.append(candidate.id)
            finally:
                scheduler.withdraw(candidate.id)
    finally:
        scheduler.placer = placer
    return tuple(found)


def position(scheduler: Scheduler, cycle: Cycle, workload_id: str) -> int:
    """The place among those that wait on, from 1, in the order in which they are looked at."""
    starting = set(cycle.starts)
    place = 0
    for workload in scheduler.waiting.pick(scheduler.state, set()):
        place += workload.id not in starting
        if workload.id == workload_id:
            return place
    raise KeyError(workload_id)


def why_not(scheduler: Scheduler, request: Workload, cycle: Cycle) -> Lack:
    """The rule in the way once those that start now have started."""
    started = [scheduler.waiting.items[name] for name in cycle.starts]
    for workload in started:
        scheduler.state.add(workload)
    lack = scheduler.state.lack(request, scheduler.now_s)
    for workload in started:
        scheduler.state.remove(workload)
    if lack is not None:
        return lack
    resource = next((name for name, amount in request.amounts.items() if amount), "")
    if scheduler.placer is not None and not scheduler.placer.fits(request, ()):
        return (Rule.PLACEMENT, resource)
    return (Rule.ORDER, resource)


def blocker_of(scheduler: Scheduler, request: Workload, lack: Lack) -> Blocker:
    rule, resource = lack
    wanted, free, limit = scheduler.state.numbers(request, lack)
    holders = []
    held = sorted(
        (
            (amount, team)
            for (team, name), amount in scheduler.state.team_used.items()
            if name == resource and amount > 0
        ),
        key=lambda each: (-each[0], each[1]),
    )
    for amount, team in held[:HOLDERS_NAMED]:
        ends = [
            each.ends_s
            for each in scheduler.running.values()
            if each.workload.team == team and each.workload.amounts.get(resource)
        ]
        holders.append(Holder(team, amount, min(ends, default=None)))
    return Blocker(rule, resource, wanted, free, limit, tuple(holders))


def forecast(scheduler: Scheduler, cycle: Cycle, wanted: Iterable[str] | None = None) -> Mapping[str, Eta]:
    """When waiting requests will start, by running the same decisions ahead of time.

    `cycle` is what the scheduler decided last. `wanted` names requests to look for; None means all that
    wait. Everything is taken to end as expected and nobody new to come; nodes are not looked at.
    """
    ahead = scheduler.clone()
    # Whom to preempt later is not guessed, and few overtakers are looked at: a person waits for this.
    depth = min(AHEAD_DEPTH, ahead.policy.backfill_depth)
    ahead.policy = replace(ahead.policy, preemption=False, backfill_depth=depth)
    now_s = at_s = ahead.now_s
    open_ids = set(ahead.waiting.items if wanted is None else wanted)
    etas: dict[str, Eta] = {}
    running = len(ahead.running)
    ahead.prolong(now_s)
    for _ in range(ahead.policy.forecast_steps):
        ahead.apply(cycle, at_s)
        for name in cycle.starts:
            if name in open_ids:
                open_ids.discard(name)
                etas[name] = Eta(at_s, f"{running} running workloads end as expected, nobody new comes first")
        if not open_ids:
            break
        soonest = min(ahead.next_end(), _next_booking(ahead, at_s))
        if soonest >= FOREVER_S:
            break
        at_s = max(soonest, at_s + (at_s - now_s) // STEP_PART)
        for name in ahead.ended_by(at_s):
            gone = ahead.finish(name)
            if gone.leaving_s is not None and name not in ahead.waiting.items:
                ahead.submit(gone.workload)
        cycle = ahead.cycle(at_s)
    for name in open_ids:
        etas[name] = Eta(None, _no_eta(ahead, name))
    return etas


def _next_booking(scheduler: Scheduler, after_s: int) -> int:
    moments = [
        moment
        for each in scheduler.state.calendar.bookings
        for moment in (each.start_s, each.end_s)
        if moment > after_s
    ]
    return min(moments, default=FOREVER_S)


def _no_eta(ahead: Scheduler, name: str) -> str:
    if ahead.running:
        return "further away than can be told"
    lack = ahead.state.lack(ahead.waiting.items[name], ahead.now_s)
    return f"not before a limit changes ({lack[0].value})" if lack else "unknown"
