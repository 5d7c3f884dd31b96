"""The state of pending requests after a decision: position, ETA and blocker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from portal.common.reasons.codes import Rule
from portal.common.reasons.reason import Reason
from portal.scheduling.engine.backfill import ServicePlacer
from portal.scheduling.engine.codes import MemberOrderCode, WaitBasis
from portal.scheduling.engine.home_moves import HomeMover, earliest_start
from portal.scheduling.engine.member_order import MemberTurn
from portal.scheduling.engine.model import Blocker, Cycle, Eta, Holder, Workload
from portal.scheduling.engine.plan import Plan, expected_choice
from portal.scheduling.engine.ranks import takes_turns
from portal.scheduling.engine.scheduler import Scheduler
from portal.scheduling.engine.usage import Shortfall

MAX_HOLDERS_NAMED = 3
IDLE_FROM_S = 1800
"""Accelerators unused for at least this long count as idle."""
IDLE_STEP_S = 900
"""Idle times are rounded down to this step, so that messages change rarely."""
MAX_SHAPES_CHECKED = 64
"""Maximum number of shapes checked against the nodes in one outlook: each check is expensive."""
NEEDS_CHANGE = frozenset({Rule.TEAM_LIMIT, Rule.USER_CAP, Rule.LEDGER})


@dataclass(frozen=True, slots=True)
class PendingOutlook:
    """A pending request's position from 1, its ETA and the rule that blocks it.

    If `needs_change`, a limit must change first; there is no position or ETA.
    """

    needs_change: bool
    blocker: Blocker
    position: int | None = None
    eta: Eta | None = None


class Outlook:
    """The state of all pending requests right after a decision has been executed.

    Ignores preemption, because cycles have already considered it.
    """

    def __init__(self, scheduler: Scheduler, unchanged_cycle: Cycle | None = None) -> None:
        """`unchanged_cycle` is the last decision, if the next one would be the same (`Decision`)."""
        self._scheduler = scheduler
        if unchanged_cycle is not None:
            self.cycle = unchanged_cycle
        else:
            with without_preemption(scheduler):
                self.cycle = scheduler.cycle(scheduler.now_s)
        self._plan: Plan | None = None
        self._added_etas: tuple[Eta, ...] | None = None
        self._positions: dict[str, int] | None = None
        self._etas: dict[str, Eta] | None = None
        self._room_times: dict[object, int | None] = {}
        self._holders: dict[str, tuple[Holder, ...]] = {}
        self._fits: dict[object, bool] = {}
        self._silences: dict[object, Reason | None] = {}
        placer = scheduler.placer
        # Needed for each pending request, so computed once.
        self._service = placer if isinstance(placer, ServicePlacer) else None
        self._blocked: dict[object, tuple[bool, Shortfall, Blocker]] = {}
        self._turns: dict[tuple[str, int, str], MemberTurn] | None = None

    @property
    def plan(self) -> Plan:
        """The plan of all pending requests."""
        if self._plan is None:
            self._plan = Plan(self._scheduler, self.cycle)
        return self._plan

    def reuse_plan(self, other: Outlook, added: str) -> None:
        """Reuse the plan of an outlook that differs only in lacking the request `added`.

        Does nothing if that request has changed what starts next.
        """
        if self.cycle.starts == other.cycle.starts:
            request = self._scheduler.pending.items[added]
            self._added_etas = other.plan.etas_if_inserted(request, self._scheduler.pending.key_of(request))

    def of(self, workload_id: str) -> PendingOutlook:
        """Return the state of a pending request. Raises KeyError if it is not pending."""
        request = self._scheduler.pending.items[workload_id]
        needs_change, shortfall, blocker = self._blocked_by(request)
        if needs_change:
            return PendingOutlook(True, blocker)
        return PendingOutlook(False, blocker, self._position(request), self._eta(request, shortfall))

    def blocker_key(self, workload_id: str) -> object:
        """Return a key that is equal for requests with the same blocker. Raises KeyError if not pending."""
        shape = self._scheduler.pending.shape_of(workload_id)
        if not self._scheduler.usage.calendar.reservations:
            return shape
        # A reservation blocks some durations and not others of the same shape.
        request = self._scheduler.pending.items[workload_id]
        return (shape, request.preemptible, request.duration_s)

    def member_order_of(self, workload_id: str) -> Reason | None:
        """Return how the members' use changes the place of a pending request within its team, or None.

        The reason's `member` is the other member's id. Raises KeyError if the request is not pending.
        """
        pending, usage = self._scheduler.pending, self._scheduler.usage
        if self._turns is None:
            self._turns = pending.member_turns(usage)
        request = pending.items[workload_id]
        key = pending.key_of(request)
        turn = self._turns.get((request.team, key[1], request.user))
        if turn is None or not takes_turns(key):
            return None
        if (member := turn.overtaken(key)) is not None:
            return Reason(MemberOrderCode.USED_LESS, {"member": member})
        if (member := turn.overtaken_by(key)) is not None:
            return Reason(MemberOrderCode.USED_MORE, {"member": member})
        return None

    def compute_all(self) -> None:
        """Compute all positions and ETAs at once. Faster for a long queue."""
        self._positions = self._scheduler.pending.positions(self._scheduler.usage)
        self._etas = self.plan.etas()

    def _blocked_by(self, request: Workload) -> tuple[bool, Shortfall, Blocker]:
        """Return whether a limit has to change first, the shortfall, and the blocker."""
        kind = self.blocker_key(request.id)
        blocked = self._blocked.get(kind)
        if blocked is None:
            scheduler = self._scheduler
            never = scheduler.usage.permanent_shortfall(request)
            shortfall = never or self._find_shortfall(request)
            resource = shortfall[1]
            if resource not in self._holders:
                self._holders[resource] = holders_of(scheduler, resource)
            blocker = blocker_of(scheduler, request, shortfall, self._holders[resource])
            needs_change = shortfall[0] is Rule.LEDGER or (never is not None and never[0] in NEEDS_CHANGE)
            blocked = self._blocked[kind] = (needs_change, shortfall, blocker)
        return blocked

    def _position(self, request: Workload) -> int:
        if self._positions is not None:
            return self._positions[request.id]
        return self._scheduler.pending.position(request.id, self._scheduler.usage)

    def by_choice(self, workload_id: str) -> tuple[Eta, ...]:
        """Return the ETAs of a pending request on each flavor that it lists, in order of preference.

        Raises KeyError if it is not pending.
        """
        request = self._scheduler.pending.items[workload_id]
        etas = self._added_etas or self.plan.by_choice(workload_id)
        if not request.fallbacks or len(etas) == 1:
            eta = replace(etas[0], choice=request.choice)
            return (self._eta_on_nodes(request, eta, self._find_shortfall(request)),)
        choices = (request, *request.fallbacks)
        shortfalls = [self._find_shortfall(choice) for choice in choices]
        on_nodes = [
            self._eta_on_nodes(choice, eta, shortfall)
            for choice, eta, shortfall in zip(choices, etas, shortfalls, strict=True)
        ]
        now_s = self._scheduler.now_s
        soon_s = now_s + request.start_within_s
        soon = [eta.eta_s is not None and eta.eta_s <= soon_s for eta in on_nodes]
        # A later flavor is free, but the request waits for an earlier one.
        return tuple(
            replace(eta, eta_s=now_s) if shortfall[0] is Rule.ORDER and any(soon[:index]) else eta
            for index, (eta, shortfall) in enumerate(zip(on_nodes, shortfalls, strict=True))
        )

    def _eta(self, request: Workload, shortfall: Shortfall) -> Eta:
        if request.fallbacks:
            etas = self.by_choice(request.id)
            return etas[expected_choice(etas, request.start_within_s)]
        if self._added_etas is not None:
            eta = self._added_etas[0]
        else:
            eta = self._etas[request.id] if self._etas is not None else self.plan.eta(request.id)
        return self._eta_on_nodes(request, eta, shortfall)

    def _eta_on_nodes(self, request: Workload, eta: Eta, shortfall: Shortfall) -> Eta:
        """Return the ETA, a later one if the nodes have no room by then, or no ETA if they do not report."""
        shape = (self._scheduler.pending.shape_of(request.id), request.choice)
        if (silence := self._silence(request, shape)) is not None:
            return Eta(None, silence, eta.choice)
        if eta.eta_s is None or not self._waits_for_nodes(request, shortfall):
            return eta
        if shape not in self._room_times:
            if len(self._room_times) >= MAX_SHAPES_CHECKED:
                return eta
            self._room_times[shape] = earliest_start(
                request, self._scheduler.placer, self._scheduler.forecast_capacity
            )
        room_s = self._room_times[shape]
        if room_s is None:
            return Eta(None, Reason(WaitBasis.NO_ROOM_ON_NODES), eta.choice)
        return replace(eta, eta_s=max(eta.eta_s, room_s))

    def _silence(self, request: Workload, shape: object) -> Reason | None:
        """Return why the start is unknown if no node that could take the request reports, else None."""
        if self._service is None:
            return None
        if shape not in self._silences:
            self._silences[shape] = self._service.lost_contact(request)
        return self._silences[shape]

    def _waits_for_nodes(self, request: Workload, shortfall: Shortfall) -> bool:
        """Return whether the plan is too early because it ignores nodes: a free device may be elsewhere."""
        if shortfall[0] is not Rule.CAPACITY:
            return shortfall[0] is Rule.PLACEMENT
        placer = self._scheduler.placer
        return (isinstance(placer, HomeMover) and placer.has_home(request)) or (
            self._service is not None and self._service.closed_nodes_in_use(request)
        )

    def _find_shortfall(self, request: Workload) -> Shortfall:
        """Return the shortfall after the requests that start now have started."""
        scheduler = self._scheduler
        started = self.cycle.started(scheduler.pending.items)
        for workload in started:
            scheduler.usage.add(workload)
        shortfall = scheduler.usage.shortfall(request, scheduler.now_s)
        allowed = [way for way in request.ways() if scheduler.usage.shortfall(way, scheduler.now_s) is None]
        for workload in started:
            scheduler.usage.remove(workload)
        if not allowed and shortfall is not None:
            return shortfall
        resource = next((name for name, amount in request.amounts.items() if amount), "")
        if scheduler.placer is None:
            return (Rule.ORDER, resource)
        # Requests of equal shape fit alike.
        shape = (scheduler.pending.shape_of(request.id), request.choice)
        if shape not in self._fits:
            self._fits[shape] = any(scheduler.placer.fits(way, ()) for way in allowed)
        return (Rule.ORDER if self._fits[shape] else Rule.PLACEMENT, resource)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The next decision if no requests arrive, and the outlook after it."""

    cycle: Cycle
    outlook: Outlook


@contextmanager
def without_preemption(scheduler: Scheduler) -> Iterator[None]:
    """Disable preemption in the scheduler temporarily."""
    before = scheduler.policy
    scheduler.policy = replace(before, preemption=False)
    try:
        yield
    finally:
        scheduler.policy = before


def blocker_of(
    scheduler: Scheduler, request: Workload, shortfall: Shortfall, holders: tuple[Holder, ...] | None = None
) -> Blocker:
    """Return the blocking rule with its numbers and largest holders (computed if not passed in)."""
    rule, resource = shortfall
    wanted, free, limit = scheduler.usage.shortfall_amounts(request, shortfall)
    if holders is None:
        holders = holders_of(scheduler, resource)
    return Blocker(rule, resource, wanted, free, limit, holders)


def holders_of(scheduler: Scheduler, resource: str) -> tuple[Holder, ...]:
    """Return the teams that use most of the resource."""
    amounts = sorted(
        (
            (amount, team)
            for (team, name), amount in scheduler.usage.team_used.items()
            if name == resource and amount > 0
        ),
        key=lambda holder: (-holder[0], holder[1]),
    )
    return tuple(_holder(scheduler, team, resource, amount) for amount, team in amounts[:MAX_HOLDERS_NAMED])


def _holder(scheduler: Scheduler, team: str, resource: str, amount: int) -> Holder:
    """Return the team's use of the resource, its next expected end, and its idle part."""
    next_end_s: int | None = None
    idle = 0
    idle_s = -1
    for run in scheduler.running_of_team(team):
        part = run.workload.amounts.get(resource, 0)
        if not part:
            continue
        if next_end_s is None or run.ends_s < next_end_s:
            next_end_s = run.ends_s
        if run.idle_s >= IDLE_FROM_S:
            idle += part
            for_s = run.idle_s - run.idle_s % IDLE_STEP_S
            idle_s = for_s if idle_s < 0 else min(idle_s, for_s)
    return Holder(team, amount, next_end_s, idle, idle_s)
