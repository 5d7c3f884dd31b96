"""One scheduling cycle: decides which requests start now, which get a reserved start, and whom to preempt.

The phases are those of Kueue's `schedule`. Each head of the queue passes all phases before the next one,
because every start changes shares and thus the order of the queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from portal.common.reasons.codes import Rule
from portal.scheduling.engine.backfill import (
    CapacityForecast,
    CapacityForecasts,
    ChoosingPlacer,
    LookAhead,
    ReservedStart,
    SimulatingPlacer,
    binding_reserved_starts,
    find_reserved_start,
)
from portal.scheduling.engine.home_moves import HomeMover, fit_with_home_move
from portal.scheduling.engine.model import Cycle, Victim, Workload
from portal.scheduling.engine.preemption import (
    delay_of_others_s,
    find_victims,
    lost_time_s,
    reservation_victims,
)
from portal.scheduling.engine.ranks import USUAL, Shape, shape_of
from portal.scheduling.engine.scheduler_state import CycleState
from portal.scheduling.engine.usage import Shortfall, Usage, within_nominal

OWN_RULES = frozenset({Rule.LEDGER, Rule.USER_CAP, Rule.TEAM_LIMIT})
"""Rules under which only the request's own team can free capacity: no capacity is reserved meanwhile."""


def decide(state: CycleState, now_s: int) -> Cycle:
    """Decide one cycle: snapshot, then for each head nominate and admit, or preempt and requeue.

    Changes nothing in `state` except expired nominations and the order of overdue requests. With a placer,
    the capacity of the started workloads is committed in the placer.
    """
    decision = _Decision(state, now_s)
    for head, binding in decision.heads():
        if head.fallbacks and decision.start_on_any(head, binding):
            continue
        workload, shortfall = decision.nominate(head)
        if workload is not head:
            binding = decision.binding_reserved_starts(workload)
        if shortfall is None:
            decision.admit(workload, binding)
            continue
        victims = decision.preempt(workload, shortfall, binding)
        decision.requeue(workload, shortfall, has_victims=bool(victims))
        if victims:
            decision.renew_reserved_starts()
    return decision.result()


class _Decision:
    """A cycle in progress. Until `result`, the usage includes the started workloads."""

    __slots__ = (
        "_attempts", "_forecasts", "_lapsed", "_look_ahead", "_mover", "_nominees", "_now_s", "_overtakers",
        "_pending", "_placer", "_policy", "_preempting", "_promised", "_reserved_starts", "_skipped",
        "_starts", "_state", "_usage", "_victims",
    )  # fmt: skip

    def __init__(self, state: CycleState, now_s: int) -> None:
        """Prepare the cycle.

        Moves overdue requests to the front, ends stale nominations, and finds workloads that occupy reserved
        capacity.
        """
        self._state, self._now_s = state, now_s
        self._policy, self._usage, self._pending = state.policy, state.usage, state.pending
        self._placer = state.placer
        self._mover = state.placer if isinstance(state.placer, HomeMover) else None
        self._pending.promote(now_s - self._policy.max_wait_s)
        self._starts: list[Workload] = []
        self._lapsed = self._lapse_nominations()
        self._victims = reservation_victims(self._usage, state.running.values(), now_s)
        self._preempting = {victim.workload for victim in self._victims}
        self._overtakers: set[str] = set()
        self._reserved_starts: list[ReservedStart] = []
        self._skipped: set[Shape] = set()
        self._nominees = self._pending.nominated()
        # Preempted capacity is held for its requests up to the quota of their team.
        self._promised: dict[str, dict[str, int]] = {}
        self._attempts = 0
        self._look_ahead: LookAhead | None = None
        self._forecasts = CapacityForecasts()

    # --- the phases ---------------------------------------------------------------------------------------

    def heads(self) -> Iterator[tuple[Workload, Sequence[ReservedStart]]]:
        """Yield the requests to consider, best first, with the reserved starts that each must not delay.

        After the first reserved start, at most `backfill_depth` more requests are considered.
        """
        considered = 0
        for workload in self._pending.pick(self._usage, self._skipped):
            binding = self.binding_reserved_starts(workload)
            if self._reserved_starts:
                considered += 1
                if considered > self._policy.backfill_depth:
                    return
                if binding and not self._policy.backfill:
                    continue
            yield workload, binding

    def binding_reserved_starts(self, workload: Workload) -> Sequence[ReservedStart]:
        """Return the reserved starts that the request must not delay."""
        return binding_reserved_starts(workload, self._usage, self._reserved_starts, self._promised)

    def nominate(self, workload: Workload) -> tuple[Workload, Shortfall | None]:
        """Return the request as it would start, and why it does not fit now by quota or on the nodes.

        The second value is None if it fits, maybe with its home moved along. A request with alternatives has
        the best one that fits, or is unchanged if none does.
        """
        if not workload.alternatives:
            shortfall = self._usage.shortfall(workload, self._now_s)
            if shortfall is not None:
                return workload, shortfall
        if self._mover is not None:
            self._mover.set_home_moves(workload, False)
        start = self._fit(workload)
        if start is None and self._mover is not None:
            start = fit_with_home_move(workload, self._mover, self._fit, self._forecast_at_home, self._now_s)
        if start is not None:
            return start, None
        shortfall = self._usage.shortfall(workload, self._now_s) if workload.alternatives else None
        return workload, shortfall or (Rule.PLACEMENT, "")

    def _fit(self, workload: Workload) -> Workload | None:
        """Return the request as the placer would start it, if limits allow, or None if it does not fit."""
        if workload.alternatives:
            return self._choose(workload)
        return workload if self._placer is None or self._placer.fits(workload, ()) else None

    def _forecast_at_home(self, workload: Workload) -> CapacityForecast | None:
        """Return when the node of the request's home will have room for it, or None if not soon."""
        # Victims and placements only grow during a cycle.
        key = (len(self._preempting), len(self._starts))
        return self._forecasts.get(
            workload, key, lambda: self._state.forecast_capacity(workload, self._preempting)
        )

    def _choose(self, workload: Workload) -> Workload | None:
        """Return the request in the best way that limits and nodes allow now, or None."""
        allowed = [way for way in workload.ways() if self._usage.shortfall(way, self._now_s) is None]
        placer = self._placer
        if not isinstance(placer, ChoosingPlacer):
            return next((way for way in allowed if placer is None or placer.fits(way, ())), None)
        if not allowed:
            return None
        waiting = dict(self._pending.waiting)
        for other in self._starts:
            if not self._pending.items[other.id].flexible:
                for resource in other.amounts:
                    waiting[resource] -= 1
        amounts = placer.choose(workload, [way.amounts for way in allowed], waiting)
        return None if amounts is None else replace(workload, amounts=amounts)

    def start_on_any(self, head: Workload, binding: Sequence[ReservedStart]) -> bool:
        """Start the request on the first of its flavors that fits. Returns False if it has to wait.

        Like Kueue's flavor fungibility: the cohort determines whether the next flavor is tried before this
        one borrows, and before workloads are preempted for this one. A later flavor is not tried if an
        earlier one is expected to be free within `start_within_s`, or if workloads are being preempted for
        it.
        """
        if head.id in self._nominees:
            return False
        rules = self._usage.fungibility(head.team)
        borrowing: Workload | None = None
        for choice in (head, *head.fallbacks):
            workload, shortfall = self.nominate(choice)
            its = binding if workload is head else self.binding_reserved_starts(workload)
            if shortfall is None and self._may_start(workload, its):
                if rules.borrow_first or within_nominal(self._usage, workload):
                    self.admit(workload, its)
                    return True
                borrowing = borrowing or choice
            elif self._waits_for_flavor(head, choice, workload, shortfall, its):
                break
        if borrowing is None:
            return False
        # Nominated again: the placer keeps the last place that it has found for a request.
        workload, _ = self.nominate(borrowing)
        self.admit(workload, self.binding_reserved_starts(workload))
        return True

    def _waits_for_flavor(
        self,
        head: Workload,
        choice: Workload,
        workload: Workload,
        shortfall: Shortfall | None,
        binding: Sequence[ReservedStart],
    ) -> bool:
        """Return whether the request waits for this flavor, although a later one may be free."""
        until_s = self._now_s + head.start_within_s
        if head.start_within_s and self._starts_without_preemption(workload, until_s, binding):
            return True
        if choice is not head or shortfall is None or not self._usage.fungibility(head.team).preempt_first:
            return False
        return self._may_preempt(workload) and bool(self._victims_for(workload, shortfall, binding))

    def _may_start(self, workload: Workload, binding: Sequence[ReservedStart]) -> bool:
        """Return whether the start would delay no reserved start in `binding` and no nominated request."""
        return all(
            self._allows(reserved_start, workload) for reserved_start in binding
        ) and self._leaves_room_for_nominated(workload)

    def admit(self, workload: Workload, binding: Sequence[ReservedStart]) -> None:
        """Start the request unless that delays a reserved start in `binding` or a nominated request."""
        if not self._may_start(workload, binding):
            return
        for reserved_start in self._reserved_starts:
            reserved_start.overtaken = reserved_start not in binding and not self._allows(
                reserved_start, workload
            )
        self._start(workload)
        if self._reserved_starts and not self.renew_reserved_starts():
            self._overtakers.add(workload.id)

    def preempt(
        self, workload: Workload, shortfall: Shortfall, binding: Sequence[ReservedStart]
    ) -> tuple[Victim, ...]:
        """Choose the workloads to preempt for the request. Empty if it may not preempt now."""
        if not self._may_preempt(workload):
            return ()
        self._attempts += 1
        victims = self._find_victims(workload, shortfall, binding)
        self._victims.extend(victims)
        self._preempting.update(victim.workload for victim in victims)
        return victims

    def _may_preempt(self, workload: Workload) -> bool:
        # Behind a reserved start, a request may only reclaim quota of its own team.
        return (
            self._policy.preemption
            and (not self._reserved_starts or within_nominal(self._usage, workload))
            and self._attempts < self._policy.preemption_attempts
            and workload.id not in self._nominees
        )

    def requeue(self, workload: Workload, shortfall: Shortfall, *, has_victims: bool) -> None:
        """Leave the request in the queue, with a reserved start if possible.

        Requests of the same shape are skipped in this cycle: they would not fit either.
        """
        # A reservation blocks some durations and not others of the same shape.
        if shortfall[0] is not Rule.BOOKING:
            self._skipped.add(shape_of(workload, self._usage.teams[workload.team].capped))
        is_nominated = has_victims or workload.id in self._nominees
        if is_nominated:
            promised = self._promised.setdefault(workload.team, {})
            for resource, amount in workload.amounts.items():
                promised[resource] = promised.get(resource, 0) + amount
        if self._may_reserve(shortfall, is_nominated=is_nominated):
            self._reserve_start(workload, shortfall, is_nominated=is_nominated)

    def result(self) -> Cycle:
        """Return the decision, and remove the started workloads from the usage."""
        for workload in self._starts:
            self._usage.remove(workload)
        beneficiaries = {victim.beneficiary for victim in self._victims}
        return Cycle(
            tuple(workload.id for workload in self._starts),
            frozenset(self._overtakers),
            tuple(self._victims),
            tuple(reserved_start.backfill for reserved_start in self._reserved_starts),
            tuple(name for name in self._lapsed if name not in beneficiaries),
            {
                workload.id: replace(workload, fallbacks=())
                for workload in self._starts
                if self._pending.items[workload.id].flexible
            },
        )

    # --- nominations --------------------------------------------------------------------------------------

    def _lapse_nominations(self) -> list[str]:
        """End the nominations of requests that still do not fit after all their victims have left.

        These requests return to the usual order and may preempt again.
        """
        lapsed = []
        for name in sorted(self._pending.nominated()):
            if self._state.preempting_for(name):
                continue
            if self.nominate(self._pending.items[name])[1] is not None:
                self._pending.nominate(name, False)
                lapsed.append(name)
        return lapsed

    def _leaves_room_for_nominated(self, workload: Workload) -> bool:
        """Return whether nominated requests further back still fit on the nodes where their victims run."""
        placer = self._placer
        if not isinstance(placer, SimulatingPlacer):
            return True
        considered = {workload.id, *(other.id for other in self._starts)}
        considered.update(reserved_start.workload.id for reserved_start in self._reserved_starts)
        return all(
            placer.fits_beside(self._pending.items[name], sorted(preempting), workload, ())
            for name in self._nominees
            if name not in considered and (preempting := self._state.preempting_for(name))
        )

    # --- starts -------------------------------------------------------------------------------------------

    def _allows(self, reserved_start: ReservedStart, workload: Workload) -> bool:
        return reserved_start.allows(workload, self._now_s, self._placer)

    def _start(self, workload: Workload) -> None:
        """Count the workload as running from now on, also at reserved starts before its end."""
        self._usage.add(workload)
        self._starts.append(workload)
        if self._placer is not None:
            self._placer.take(workload)
        for reserved_start in self._reserved_starts:
            if self._now_s + workload.duration_s > reserved_start.backfill.start_s:
                reserved_start.usage.add(workload)

    # --- preemption ---------------------------------------------------------------------------------------

    def _find_victims(
        self, workload: Workload, shortfall: Shortfall, binding: Sequence[ReservedStart]
    ) -> tuple[Victim, ...]:
        """Return the workloads to preempt for the request, and count them at reserved starts."""
        victims = self._victims_for(workload, shortfall, binding)
        running = [self._state.running[victim.workload] for victim in victims]
        from_s = self._now_s + self._policy.grace_s
        for start in self._reserved_starts if victims else ():
            start.overtaken = start not in binding and not start.allows_swap(
                workload, running, from_s, self._placer
            )
            start.swap(workload, running, from_s)
        return victims

    def _victims_for(
        self, workload: Workload, shortfall: Shortfall, binding: Sequence[ReservedStart]
    ) -> tuple[Victim, ...]:
        """Return the workloads to preempt so that the request starts without delaying `binding`.

        Empty if enough capacity is freed within `patience_s`, or if waiting costs less than preemption.
        Changes nothing.
        """
        patience_s = max(self._policy.patience_s, self._policy.grace_s)
        if self._starts_without_preemption(workload, self._now_s + patience_s, binding):
            return ()
        victims = self._search_victims(workload)
        running = [self._state.running[victim.workload] for victim in victims]
        if not victims or not self._is_worth_preempting(workload, shortfall, victims, patience_s, binding):
            return ()
        from_s = self._now_s + self._policy.grace_s
        if not all(start.allows_swap(workload, running, from_s, self._placer) for start in binding):
            return ()
        return victims

    def _search_victims(self, workload: Workload) -> tuple[Victim, ...]:
        """Return the cheapest victims that let the request start beside nominated requests."""
        nominated = [start for start in self._reserved_starts if start.nominated]
        placer = self._placer

        def fits(_: Usage, gone: Sequence[str]) -> bool:
            assert placer is not None  # `find_victims` calls this only with a placer
            if not placer.fits(workload, gone):
                return False
            return not isinstance(placer, SimulatingPlacer) or all(
                placer.fits_beside(start.workload, (*(start.gone or ()), *gone), workload, gone)
                for start in nominated
            )

        with self._assume_nominated_started(nominated):
            return find_victims(
                self._usage,
                workload,
                lambda team: (
                    candidate
                    for candidate in self._state.running_of_team(team)
                    if candidate.workload.id not in self._preempting
                ),
                self._now_s,
                self._policy,
                fits if placer is not None else None,
                [*self._starts, *(start.workload for start in nominated)],
            )

    @contextmanager
    def _assume_nominated_started(self, nominated: Sequence[ReservedStart]) -> Iterator[None]:
        """Set the usage as if the victims of nominated requests had left and these requests ran."""
        victims = [self._state.running[name].workload for start in nominated for name in start.gone or ()]
        for victim in victims:
            self._usage.remove(victim)
        for start in nominated:
            self._usage.add(start.workload)
        try:
            yield
        finally:
            for start in nominated:
                self._usage.remove(start.workload)
            for victim in victims:
                self._usage.add(victim)

    def _is_worth_preempting(
        self,
        workload: Workload,
        shortfall: Shortfall,
        victims: Sequence[Victim],
        patience_s: int,
        binding: Sequence[ReservedStart],
    ) -> bool:
        """Return whether preemption costs less than waiting for the lost run time of the victims.

        A request that delays others must also have waited for at least their total delay.
        """
        running = [self._state.running[victim.workload] for victim in victims]
        wait_s = lost_time_s(workload, running, shortfall[1], self._now_s)
        if wait_s:
            others_s = delay_of_others_s(
                workload, running, shortfall[1], self._now_s, self._usage, self._pending
            )
            if self._now_s - workload.created_s < others_s:
                return False
            if others_s > wait_s:
                # More work waits than the site holds: victims restart only after the request has finished.
                wait_s = others_s + workload.duration_s
        return wait_s <= patience_s or not self._starts_without_preemption(
            workload, self._now_s + wait_s, binding, overran=True
        )

    def _starts_without_preemption(
        self,
        workload: Workload,
        until_s: int,
        binding: Sequence[ReservedStart],
        *,
        overran: bool = False,
    ) -> bool:
        """Return whether enough capacity is freed by `until_s`.

        Workloads past their expected end do not count. With `overran` they are expected to run as long again:
        run times have long tails.
        """
        gone = self._workloads_ending_by(until_s, overran=overran)
        if not gone:
            return False
        key = (until_s, frozenset(self._preempting), len(self._starts))
        if self._look_ahead is None or self._look_ahead.key != key:
            self._look_ahead = LookAhead(key, self._usage, gone, self._state.running)
        return self._look_ahead.fits(workload, until_s, binding, self._placer)

    def _workloads_ending_by(self, until_s: int, *, overran: bool) -> list[Workload]:
        """Return the running and starting workloads that are expected to end by `until_s`."""
        now_s, running = self._now_s, self._state.running
        names = self._state.ending_between(now_s, until_s)
        names += [name for name in self._preempting if running[name].ends_s > until_s]
        if overran:
            names += [
                name
                for name in self._state.ended_by(now_s)
                if name not in self._preempting and 2 * now_s - running[name].started_s <= until_s
            ]
        gone = [running[name].workload for name in names]
        gone += [other for other in self._starts if now_s + other.duration_s <= until_s]
        return gone

    # --- reserved starts ----------------------------------------------------------------------------------

    def _may_reserve(self, shortfall: Shortfall, *, is_nominated: bool) -> bool:
        """Return whether the request may reserve a start: if nominated, or first to wait for its resource."""
        if is_nominated:
            return True
        return shortfall[0] not in OWN_RULES and all(
            start.backfill.resource != shortfall[1] for start in self._reserved_starts
        )

    def _reserve_start(self, workload: Workload, shortfall: Shortfall, *, is_nominated: bool) -> None:
        """Reserve a start for the request, if one can be predicted."""
        earlier: Sequence[ReservedStart] = self._reserved_starts
        if is_nominated:
            # Capacity preempted for a request is not shared with requests that preempt nothing.
            earlier = [start for start in earlier if start.nominated]
        reserved_start = self._find_reserved_start(workload, shortfall, earlier)
        if reserved_start is None:
            return
        reserved_start.nominated = is_nominated
        if is_nominated:
            reserved_start.gone = self._victims_of(workload.id)
        reserved_start.borrows = (
            not is_nominated
            and shortfall[0] is not Rule.PLACEMENT
            and self._pending.key_of(workload)[0] == USUAL
            and not within_nominal(self._usage, workload, self._promised)
        )
        self._reserved_starts.append(reserved_start)

    def _victims_of(self, workload_id: str) -> tuple[str, ...]:
        """Return the ids of the workloads preempted for the request."""
        names = {victim.workload for victim in self._victims if victim.beneficiary == workload_id}
        return tuple(sorted(names | self._state.preempting_for(workload_id)))

    def renew_reserved_starts(self) -> bool:
        """Recompute reserved starts, beginning with the first that a quota owner overtook.

        Returns whether any was overtaken.
        """
        overtaken = [place for place, start in enumerate(self._reserved_starts) if start.overtaken]
        if not overtaken:
            return False
        renewable = [start for start in self._reserved_starts[overtaken[0] :] if not start.nominated]
        self._reserved_starts[:] = [start for start in self._reserved_starts if start not in renewable]
        for start in renewable:
            shortfall = self._usage.shortfall(start.workload, self._now_s) or (Rule.PLACEMENT, "")
            renewed = self._find_reserved_start(start.workload, shortfall, self._reserved_starts)
            if renewed is not None:
                renewed.borrows = start.borrows
                self._reserved_starts.append(renewed)
        return True

    def _find_reserved_start(
        self, workload: Workload, shortfall: Shortfall, earlier: Sequence[ReservedStart]
    ) -> ReservedStart | None:
        """Return the earliest start by quota and on the nodes, after those of `earlier`, or None if never."""
        reserved_start = find_reserved_start(
            workload,
            shortfall[1],
            self._now_s,
            self._usage,
            self._state.expected_ends(self._preempting, self._ends_of(earlier)),
            earlier,
        )
        if (
            reserved_start is None
            or shortfall[0] is not Rule.PLACEMENT
            or not isinstance(self._placer, SimulatingPlacer)
        ):
            return reserved_start
        forecast = self._forecast_at_home(workload)
        if forecast is None:
            return None
        start_s, gone = forecast
        if start_s > reserved_start.backfill.start_s:
            reserved_start.backfill = replace(reserved_start.backfill, start_s=start_s)
        reserved_start.gone = gone
        return reserved_start

    def _ends_of(self, reserved_starts: Iterable[ReservedStart]) -> list[tuple[int, Workload]]:
        """Return the expected ends of workloads that start in this cycle or have a reserved start."""
        ends = [(self._now_s + other.duration_s, other) for other in self._starts]
        ends += [
            (start.backfill.start_s + start.workload.duration_s, start.workload) for start in reserved_starts
        ]
        return ends
