"""The verdict on a request. Preview and creation call `decide` with the same snapshot and get the same.

A request that `fits_now` is among the starts of the cycle that follows its submission, by construction:
the verdict is read off that very cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from portal.common.reasons.codes import Rule, WaitBasis
from portal.common.reasons.reason import Reason
from portal.scheduling.engine.model import (
    Blocker,
    Cycle,
    Eta,
    Holder,
    Outcome,
    QueueVerdict,
    Snapshot,
    Workload,
)
from portal.scheduling.engine.plan import ENOUGH_FREE, plan
from portal.scheduling.engine.scheduler import Placer, Scheduler
from portal.scheduling.engine.usage import Shortfall

__all__ = [
    "Eta",
    "blocker_of",
    "decide",
    "forecast",
    "position",
    "starting_now",
    "verdict",
    "why_not",
]
MAX_HOLDERS_NAMED = 3
IDLE_FROM_S = 1800
"""What has not been used for so long counts as idle."""


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
) -> QueueVerdict:
    """What happens to `request` if it is made now, and which of `alternatives` would start at once.

    Pure, but for what it takes from `placer`, which should be one for this decision alone. Raises
    ValueError and KeyError as `Scheduler` does, and ValueError where the id is in the snapshot already.
    """
    return verdict(Scheduler(snapshot, placer), request, alternatives=alternatives)


def verdict(
    scheduler: Scheduler, request: Workload, *, alternatives: Sequence[Workload] = ()
) -> QueueVerdict:
    """`decide` on a standing scheduler, which is left as it was."""
    now_s = scheduler.now_s
    never = scheduler.usage.never(request)
    if never is not None or not scheduler.usage.teams[request.team].funded:
        shortfall = never or (Rule.LEDGER, "")
        blocker = blocker_of(scheduler, request, shortfall)
        refused = shortfall[0] in (Rule.CAPACITY, Rule.SITE_LIMIT)
        return QueueVerdict(
            Outcome.IMPOSSIBLE if refused else Outcome.NEEDS_APPROVAL,
            blocker=blocker,
            alternatives=starting_now(scheduler, alternatives),
        )
    others = starting_now(scheduler, alternatives)
    with scheduler.trying(request):
        cycle = scheduler.cycle(now_s)
        if request.id in cycle.starts:
            return QueueVerdict(Outcome.FITS_NOW, eta_s=now_s, basis=ENOUGH_FREE, alternatives=others)
        reason = why_not(scheduler, request, cycle)
        blocker = blocker_of(scheduler, request, reason)
        place = position(scheduler, cycle, request.id)
    eta = _eta(scheduler, request, reason)
    return QueueVerdict(
        Outcome.QUEUED,
        position=place,
        eta_s=eta.eta_s,
        basis=eta.basis,
        blocker=blocker,
        victims=tuple(each for each in cycle.victims if each.beneficiary == request.id),
        alternatives=others,
    )


def _eta(scheduler: Scheduler, request: Workload, reason: Shortfall) -> Eta:
    eta = scheduler.plan().insert(request)
    if reason[0] is not Rule.PLACEMENT or eta.eta_s is None:
        return eta
    room = scheduler.room(request)
    if room is None:
        return Eta(None, Reason(WaitBasis.NO_ROOM_ON_NODES))
    return Eta(max(eta.eta_s, room[0]), eta.basis)


def starting_now(scheduler: Scheduler, candidates: Iterable[Workload]) -> tuple[str, ...]:
    """Which of the candidates, each by itself, would start at once. In their order."""
    placer = scheduler.placer
    scheduler.placer = _Peek(placer) if placer is not None else None
    found = []
    try:
        for candidate in candidates:
            if scheduler.usage.shortfall(candidate, scheduler.now_s) is not None:
                continue
            with scheduler.trying(candidate):
                if candidate.id in scheduler.cycle(scheduler.now_s).starts:
                    found.append(candidate.id)
    finally:
        scheduler.placer = placer
    return tuple(found)


def position(scheduler: Scheduler, cycle: Cycle, workload_id: str) -> int:
    """The place among those that wait on, from 1, in the order in which they are looked at."""
    starting = set(cycle.starts)
    place = 0
    for workload in scheduler.pending.pick(scheduler.usage, set()):
        place += workload.id not in starting
        if workload.id == workload_id:
            return place
    raise KeyError(workload_id)


def why_not(scheduler: Scheduler, request: Workload, cycle: Cycle) -> Shortfall:
    """The rule in the way once those that start now have started."""
    started = [scheduler.pending.items[name] for name in cycle.starts]
    for workload in started:
        scheduler.usage.add(workload)
    shortfall = scheduler.usage.shortfall(request, scheduler.now_s)
    for workload in started:
        scheduler.usage.remove(workload)
    if shortfall is not None:
        return shortfall
    resource = next((name for name, amount in request.amounts.items() if amount), "")
    if scheduler.placer is not None and not scheduler.placer.fits(request, ()):
        return (Rule.PLACEMENT, resource)
    return (Rule.ORDER, resource)


def blocker_of(scheduler: Scheduler, request: Workload, shortfall: Shortfall) -> Blocker:
    rule, resource = shortfall
    wanted, free, limit = scheduler.usage.numbers(request, shortfall)
    holders = []
    held = sorted(
        (
            (amount, team)
            for (team, name), amount in scheduler.usage.team_used.items()
            if name == resource and amount > 0
        ),
        key=lambda each: (-each[0], each[1]),
    )
    for amount, team in held[:MAX_HOLDERS_NAMED]:
        holders.append(_holder(scheduler, team, resource, amount))
    return Blocker(rule, resource, wanted, free, limit, tuple(holders))


def _holder(scheduler: Scheduler, team: str, resource: str, amount: int) -> Holder:
    """What the team holds, when the first of it is expected back, and how much of it lies idle."""
    next_end_s: int | None = None
    idle = 0
    idle_s = -1
    for each in scheduler.of_team(team):
        part = each.workload.amounts.get(resource, 0)
        if not part:
            continue
        if next_end_s is None or each.ends_s < next_end_s:
            next_end_s = each.ends_s
        if each.idle_s >= IDLE_FROM_S:
            idle += part
            idle_s = each.idle_s if idle_s < 0 else min(idle_s, each.idle_s)
    return Holder(team, amount, next_end_s, idle, idle_s)


def forecast(scheduler: Scheduler, cycle: Cycle, wanted: Iterable[str] | None = None) -> Mapping[str, Eta]:
    """When pending requests are expected to start, by `plan.Plan`.

    `cycle` is what the scheduler decided last. `wanted` names requests to look for; None means all that
    wait. Everything is taken to end as expected and nobody new to come; nodes are not looked at.
    """
    made = plan(scheduler, cycle)
    return made.etas() if wanted is None else {name: made.eta(name) for name in wanted}
