"""The queue: which requests start now, which wait behind which, which workloads are preempted.

`Scheduler` holds the usage for many decisions in a row; `schedule` is its stateless face.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from portal.common.reasons.codes import Rule
from portal.quotas.types import Amounts
from portal.scheduling.engine.backfill import (
    End,
    Keeper,
    Placer,
    ReservedStart,
    Room,
    Rooms,
    Soon,
    binding_on,
    expected_ends,
    find_reserved_start,
    room_on_nodes,
)
from portal.scheduling.engine.model import FOREVER_S, Cycle, Running, Snapshot, Victim, Workload
from portal.scheduling.engine.pending import USUAL, PendingQueue, Shape, shape_of
from portal.scheduling.engine.preemption import (
    delay_of_others_s,
    find_victims,
    lost_time_s,
    reservation_victims,
)
from portal.scheduling.engine.running_amounts import RunningAmounts
from portal.scheduling.engine.usage import Shortfall, Usage, within_nominal

__all__ = ["Keeper", "Placer", "Scheduler", "schedule"]
OWN_RULES = frozenset({Rule.LEDGER, Rule.USER_CAP, Rule.TEAM_LIMIT})
"""Rules that only the request's own team can make room under: nothing is kept free for it meanwhile."""


class Scheduler:
    """The queue and the running workloads of a site over time.

    Raises ValueError for wrong limits, KeyError for an unknown team.
    """

    def __init__(self, snapshot: Snapshot, placer: Placer | None = None) -> None:
        self.policy = snapshot.policy
        self.now_s = snapshot.now_s
        self.placer = placer
        self.usage = Usage(snapshot)
        self.pending = PendingQueue(self.policy.due_after)
        self.running: dict[str, Running] = {}
        self._preempting: dict[str, set[str]] = {}
        self._by_team: dict[str, set[str]] = {}
        for each in snapshot.running:
            if each.workload.id in self.running:
                raise ValueError(f"{each.workload.id!r} runs already")
            self.running[each.workload.id] = each
            self._by_team.setdefault(each.workload.team, set()).add(each.workload.id)
            if each.preempt_at_s is not None and each.preempted_by:
                self._preempting.setdefault(each.preempted_by, set()).add(each.workload.id)
        self._ended: RunningAmounts | None = None
        self._soon: Soon | None = None
        self._rooms = Rooms()
        self._ends = sorted((each.ends_s, name) for name, each in self.running.items())
        self.usage.add_all(each.workload for each in snapshot.running)
        for workload in snapshot.queued:
            self.submit(workload)

    def clone(self) -> Scheduler:
        """An independent copy without the placer, for looking ahead."""
        twin = Scheduler.__new__(Scheduler)
        twin.policy, twin.now_s, twin.placer = self.policy, self.now_s, None
        twin.usage, twin.pending = self.usage.clone(), self.pending.clone()
        twin.running, twin._ends = dict(self.running), list(self._ends)
        twin._ended, twin._soon, twin._rooms = self._ended, None, Rooms()
        twin._preempting = {name: set(ids) for name, ids in self._preempting.items()}
        twin._by_team = {name: set(ids) for name, ids in self._by_team.items()}
        return twin

    # --- what happens to the site -------------------------------------------------------------------

    def submit(self, workload: Workload) -> None:
        if workload.duration_s <= 0 or any(amount < 0 for amount in workload.amounts.values()):
            raise ValueError(f"{workload.id!r} asks for less than nothing")
        if workload.id in self.running:
            raise ValueError(f"{workload.id!r} runs already")
        self.pending.add(workload, self.usage.teams[workload.team].capped)

    def withdraw(self, workload_id: str) -> None:
        self.pending.remove(workload_id)

    def finish(self, workload_id: str) -> Running:
        """The workload is gone, as observed."""
        each = self.running.pop(workload_id)
        self._ended = None
        del self._ends[bisect_left(self._ends, (each.ends_s, workload_id))]
        self._by_team[each.workload.team].discard(workload_id)
        self.usage.remove(each.workload)
        for ids in self._preempting.values():
            ids.discard(workload_id)
        return each

    def start(self, workload_id: str, now_s: int) -> None:
        """Record that a pending workload has been started. Raises KeyError where it is not pending."""
        workload = self.pending.remove(workload_id)
        self._preempting.pop(workload_id, None)
        self._hold(Running(workload, now_s))

    def adopt(self, each: Running) -> None:
        """Take in a workload that runs already, as a snapshot would."""
        self._hold(each)
        if each.preempt_at_s is not None and each.preempted_by:
            self._preempting.setdefault(each.preempted_by, set()).add(each.workload.id)

    def preempt(self, victim: Victim, now_s: int) -> None:
        """Record that a victim of `cycle` has been given notice at `now_s`; twice is once."""
        each = self.running[victim.workload]
        if each.preempt_at_s is not None:
            return
        self._ended = None
        del self._ends[bisect_left(self._ends, (each.ends_s, victim.workload))]
        each = replace(
            each,
            preempt_at_s=min(each.ends_s, now_s + self.policy.grace_s),
            preempted_by=victim.beneficiary,
        )
        self.running[victim.workload] = each
        insort(self._ends, (each.ends_s, victim.workload))
        if victim.beneficiary in self.pending.items:
            self._preempting.setdefault(victim.beneficiary, set()).add(victim.workload)
            if victim.beneficiary not in self.pending.nominated():
                self.pending.nominate(victim.beneficiary)

    def set_average(self, team: str, borrowed_avg: Amounts) -> None:
        """Take over a team's decayed use as time has gone on."""
        self.usage.set_team(replace(self.usage.teams[team], borrowed_avg=borrowed_avg))

    def apply(self, cycle: Cycle, now_s: int) -> None:
        """Record that all of `cycle` has been carried out at `now_s`."""
        for head in cycle.backfill_reservations:
            self.pending.reserve_start(head.workload)
        for workload_id in cycle.lapsed_nominations:
            self.pending.nominate(workload_id, False)
        for workload_id in cycle.starts:
            self.start(workload_id, now_s)
        for victim in cycle.victims:
            self.preempt(victim, now_s)

    def _hold(self, each: Running) -> None:
        if each.workload.id in self.running:
            raise ValueError(f"{each.workload.id!r} runs already")
        self.running[each.workload.id] = each
        self._ended = None
        self._by_team.setdefault(each.workload.team, set()).add(each.workload.id)
        insort(self._ends, (each.ends_s, each.workload.id))
        self.usage.add(each.workload)

    # --- decisions ------------------------------------------------------------------------------------

    def cycle(self, now_s: int) -> Cycle:
        """Decide, and change nothing but the clock and lapsed nominations: `apply` (or `start` and
        `preempt`)
        carries it out. With a placer, the workloads of `starts` have been taken there.
        """
        self.now_s = now_s
        self._soon, self._rooms = None, Rooms()
        self.pending.promote(now_s - self.policy.max_wait_s)
        lapsed = self._lapse(now_s)
        victims = reservation_victims(self.usage, self.running.values(), now_s)
        asked = {victim.workload for victim in victims}
        starts: list[Workload] = []
        overtakers: set[str] = set()
        reserved_starts: list[ReservedStart] = []
        passed: set[Shape] = set()
        nominees = self.pending.nominated()
        # What others make room for is held as far as the team's own quota goes.
        promised: dict[str, dict[str, int]] = {}
        looked = attempts = 0
        for workload in self.pending.pick(self.usage, passed):
            binding = binding_on(workload, self.usage, reserved_starts, promised)
            if reserved_starts:
                looked += 1
                if looked > self.policy.backfill_depth:
                    break
                if binding and not self.policy.backfill:
                    continue
            shortfall = self.usage.shortfall(workload, now_s)
            if shortfall is None and self.placer is not None and not self.placer.fits(workload, ()):
                shortfall = (Rule.PLACEMENT, "")
            if shortfall is None:
                if all(
                    reserved_start.allows(workload, now_s, self.placer) for reserved_start in binding
                ) and self._spares_nominated(workload, nominees, starts, reserved_starts):
                    for each in reserved_starts:
                        each.passed = each not in binding and not each.allows(workload, now_s, self.placer)
                    self._begin(workload, starts, reserved_starts, now_s)
                    if reserved_starts and not self._renew(reserved_starts, now_s, asked, starts):
                        overtakers.add(workload.id)
                continue
            found: tuple[Victim, ...] = ()
            # Behind a reserved start only an owner may take back what is its own.
            may = self.policy.preemption and (not reserved_starts or within_nominal(self.usage, workload))
            if may and attempts < self.policy.preemption_attempts and workload.id not in nominees:
                attempts += 1
                found = self._find_victims(
                    workload, shortfall, now_s, asked, starts, reserved_starts, binding
                )
                victims.extend(found)
                asked.update(victim.workload for victim in found)
            self._pass_over(workload, shortfall, passed)
            nominated = bool(found) or workload.id in nominees
            if nominated:
                team = promised.setdefault(workload.team, {})
                for resource, amount in workload.amounts.items():
                    team[resource] = team.get(resource, 0) + amount
            if shortfall[0] in OWN_RULES and not nominated:
                continue
            if nominated or all(
                reserved_start.backfill.resource != shortfall[1] for reserved_start in reserved_starts
            ):
                # What others leave for it is not shared with requests for which nobody leaves.
                earlier = (
                    [each for each in reserved_starts if each.nominated] if nominated else reserved_starts
                )
                reserved_start = self._reserve(workload, shortfall, now_s, asked, starts, earlier)
                if reserved_start is not None:
                    reserved_start.nominated = nominated
                    if nominated:
                        reserved_start.gone = self._victims_of(workload.id, victims)
                    reserved_start.borrows = (
                        not nominated
                        and shortfall[0] is not Rule.PLACEMENT
                        and self.pending.key_of(workload)[0] == USUAL
                        and not within_nominal(self.usage, workload, promised)
                    )
                    reserved_starts.append(reserved_start)
            if found:
                self._renew(reserved_starts, now_s, asked, starts)
        for workload in starts:
            self.usage.remove(workload)
        again = {victim.beneficiary for victim in victims}
        return Cycle(
            tuple(workload.id for workload in starts),
            frozenset(overtakers),
            tuple(victims),
            tuple(reserved_start.backfill for reserved_start in reserved_starts),
            tuple(name for name in lapsed if name not in again),
        )

    def of_team(self, team: str) -> Iterator[Running]:
        """What runs for the team, in no order."""
        return (self.running[name] for name in self._by_team.get(team, ()))

    def by_end(self) -> Iterator[tuple[int, Workload]]:
        """What runs, with its expected end, the first to end first."""
        return ((end_s, self.running[name].workload) for end_s, name in self._ends)

    def amounts_by_end(self) -> RunningAmounts:
        """The same as arrays, made once while nothing begins or ends."""
        if self._ended is None:
            self._ended = RunningAmounts.of(self.by_end())
        return self._ended

    def _lapse(self, now_s: int) -> list[str]:
        """End nominations for whom enough has left, and who cannot start all the same.

        They wait in the usual order from now on, and may ask again.
        """
        lapsed = []
        for name in sorted(self.pending.nominated()):
            workload = self.pending.items[name]
            if self._preempting.get(name):
                continue
            if self.usage.shortfall(workload, now_s) is not None or (
                self.placer is not None and not self.placer.fits(workload, ())
            ):
                self.pending.nominate(name, False)
                lapsed.append(name)
        return lapsed

    def _begin(
        self, workload: Workload, starts: list[Workload], reserved_starts: list[ReservedStart], now_s: int
    ) -> None:
        self.usage.add(workload)
        starts.append(workload)
        if self.placer is not None:
            self.placer.take(workload)
        for reserved_start in reserved_starts:
            if now_s + workload.duration_s > reserved_start.backfill.start_s:
                reserved_start.usage.add(workload)

    def _pass_over(self, workload: Workload, shortfall: Shortfall, passed: set[Shape]) -> None:
        # A booking is met by some durations and not by others of the same shape.
        if shortfall[0] is not Rule.BOOKING:
            passed.add(shape_of(workload, self.usage.teams[workload.team].capped))

    def _spares_nominated(
        self,
        workload: Workload,
        nominees: Iterable[str],
        starts: Sequence[Workload],
        reserved_starts: Sequence[ReservedStart],
    ) -> bool:
        """Whether it leaves the nodes on which others are making room to those who come after it."""
        if not isinstance(self.placer, Keeper):
            return True
        seen = {workload.id, *(each.id for each in starts), *(each.workload.id for each in reserved_starts)}
        return all(
            self.placer.keeps(self.pending.items[name], sorted(self._preempting[name]), workload, ())
            for name in nominees
            if name not in seen and self._preempting.get(name)
        )

    def _victims_of(self, workload_id: str, victims: Iterable[Victim]) -> tuple[str, ...]:
        """Those whose place is kept for the request."""
        preempting = set(self._preempting.get(workload_id, ()))
        preempting.update(each.workload for each in victims if each.beneficiary == workload_id)
        return tuple(sorted(preempting))

    def _find_victims(
        self,
        workload: Workload,
        shortfall: Shortfall,
        now_s: int,
        asked: set[str],
        starts: Sequence[Workload],
        reserved_starts: Sequence[ReservedStart],
        binding: Sequence[ReservedStart],
    ) -> tuple[Victim, ...]:
        """Whom to preempt so that the request surely starts, without touching what is kept for others.

        Of the reserved starts those in `binding` stay where they are. Nobody is asked where waiting for
        `patience_s` does as well, or for as long as the work that would be lost has taken or would hold up
        the others that wait; for so long it has to have waited already.
        """
        patience_s = max(self.policy.patience_s, self.policy.grace_s)
        if self._comes_by_itself(workload, now_s + patience_s, now_s, asked, starts, binding):
            return ()
        placer = self.placer
        nominated_starts = [reserved_start for reserved_start in reserved_starts if reserved_start.nominated]
        preempting = [
            self.running[name].workload
            for reserved_start in nominated_starts
            for name in reserved_start.gone or ()
        ]

        def fits(_: Usage, gone: Sequence[str]) -> bool:
            assert placer is not None  # only then is this asked
            if not placer.fits(workload, gone):
                return False
            return not isinstance(placer, Keeper) or all(
                placer.keeps(reserved_start.workload, (*(reserved_start.gone or ()), *gone), workload, gone)
                for reserved_start in nominated_starts
            )

        for other in preempting:
            self.usage.remove(other)
        for reserved_start in nominated_starts:
            self.usage.add(reserved_start.workload)
        try:
            found = find_victims(
                self.usage,
                workload,
                lambda team: (each for each in self.of_team(team) if each.workload.id not in asked),
                now_s,
                self.policy,
                fits if placer is not None else None,
                [*starts, *(reserved_start.workload for reserved_start in nominated_starts)],
            )
        finally:
            for reserved_start in nominated_starts:
                self.usage.remove(reserved_start.workload)
            for other in preempting:
                self.usage.add(other)
        victims = [self.running[each.workload] for each in found]
        lost_s = lost_time_s(workload, victims, shortfall[1], now_s)
        if lost_s:
            others_s = delay_of_others_s(workload, victims, shortfall[1], now_s, self.usage, self.pending)
            if now_s - workload.created_s < others_s:
                return ()
            if others_s > lost_s:
                # More waits than the site holds: who leaves comes back no sooner than the taker is done.
                lost_s = others_s + workload.duration_s
        if lost_s > patience_s and self._comes_by_itself(
            workload, now_s + lost_s, now_s, asked, starts, binding, overran=True
        ):
            return ()
        from_s = now_s + self.policy.grace_s
        if not all(
            reserved_start.allows_swap(workload, victims, from_s, placer) for reserved_start in binding
        ):
            return ()
        if found:
            for each in reserved_starts:
                each.passed = each not in binding and not each.allows_swap(workload, victims, from_s, placer)
                each.swap(workload, victims, from_s)
        return found

    def _comes_by_itself(
        self,
        workload: Workload,
        until_s: int,
        now_s: int,
        asked: set[str],
        starts: Sequence[Workload],
        reserved_starts: Sequence[ReservedStart],
        *,
        overran: bool = False,
    ) -> bool:
        """Whether enough ends by `until_s`. What should have ended already is not counted on, or with
        `overran` expected to go on for as long as it has run: durations have long tails.
        """
        gone = [
            self.running[name].workload
            for _, name in self._ends[
                bisect_left(self._ends, (now_s + 1, "")) : bisect_left(self._ends, (until_s + 1, ""))
            ]
        ]
        gone += [self.running[name].workload for name in asked if self.running[name].ends_s > until_s]
        if overran:
            late = self._ends[: bisect_left(self._ends, (now_s + 1, ""))]
            gone += [
                self.running[name].workload
                for _, name in late
                if name not in asked and 2 * now_s - self.running[name].started_s <= until_s
            ]
        gone += [other for other in starts if now_s + other.duration_s <= until_s]
        if not gone:
            return False
        key = (until_s, frozenset(asked), len(starts))
        if self._soon is None or self._soon.key != key:
            self._soon = Soon(key, self.usage, gone, self.running)
        return self._soon.fits(workload, until_s, reserved_starts, self.placer)

    def _renew(
        self, reserved_starts: list[ReservedStart], now_s: int, asked: set[str], starts: Sequence[Workload]
    ) -> bool:
        """Look anew for the starts that an owner has passed, and for what was reserved after them."""
        passed = [place for place, each in enumerate(reserved_starts) if each.passed]
        if not passed:
            return False
        again = [each for each in reserved_starts[passed[0] :] if not each.nominated]
        reserved_starts[:] = [each for each in reserved_starts if each not in again]
        for each in again:
            shortfall = self.usage.shortfall(each.workload, now_s) or (Rule.PLACEMENT, "")
            renewed = self._reserve(each.workload, shortfall, now_s, asked, starts, reserved_starts)
            if renewed is not None:
                renewed.borrows = each.borrows
                reserved_starts.append(renewed)
        return True

    def _reserve(
        self,
        workload: Workload,
        shortfall: Shortfall,
        now_s: int,
        asked: set[str],
        starts: Sequence[Workload],
        reserved_starts: Sequence[ReservedStart],
    ) -> ReservedStart | None:
        more = [(now_s + other.duration_s, other) for other in starts]
        more += [
            (each.backfill.start_s + each.workload.duration_s, each.workload) for each in reserved_starts
        ]
        reserved_start = find_reserved_start(
            workload,
            shortfall[1],
            now_s,
            self.usage,
            self._expected_ends(now_s, asked, more),
            reserved_starts,
        )
        if (
            reserved_start is None
            or shortfall[0] is not Rule.PLACEMENT
            or not isinstance(self.placer, Keeper)
        ):
            return reserved_start
        # Both only grow while a cycle is decided.
        key = (len(asked), len(starts))
        room = self._rooms.of(workload, key, lambda: self.room(workload, asked))
        if room is None:
            return None
        start_s, gone = room
        if start_s > reserved_start.backfill.start_s:
            reserved_start.backfill = replace(reserved_start.backfill, start_s=start_s)
        reserved_start.gone = gone
        return reserved_start

    def room(self, workload: Workload, asked: Iterable[str] = ()) -> Room | None:
        """When the nodes will have room by the expected ends, and who is gone by then; None: not soon."""
        assert self.placer is not None  # nobody asks for nodes without
        return room_on_nodes(workload, self._expected_ends(self.now_s, asked, ()), self.placer)

    def _expected_ends(
        self, now_s: int, asked: Iterable[str], more: Iterable[tuple[int, Workload]]
    ) -> Iterator[End]:
        return expected_ends(self._ends, self.running, now_s, self.policy, asked, more)

    def next_end(self) -> int:
        """When something is first expected to end, `FOREVER_S` if nothing runs."""
        return self._ends[0][0] if self._ends else FOREVER_S

    def ended_by(self, at_s: int) -> list[str]:
        """What is expected to have ended by then."""
        return [name for _, name in self._ends[: bisect_left(self._ends, (at_s + 1, ""))]]


def schedule(snapshot: Snapshot, placer: Placer | None = None) -> Cycle:
    """What to do now on the snapshot; a pure function but for what it takes from the placer."""
    return Scheduler(snapshot, placer).cycle(snapshot.now_s)
