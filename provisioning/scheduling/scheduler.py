"""The queue: who starts now, who waits behind whom, who is asked to leave.

`Scheduler` holds the state for many decisions in a row; `schedule` is its stateless face.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from provisioning.scheduling.model import (
    FOREVER_S,
    Amounts,
    Cycle,
    Head,
    Reason,
    Rule,
    Running,
    Snapshot,
    Victim,
    Workload,
)
from provisioning.scheduling.preemption import find_victims, message
from provisioning.scheduling.state import State, within_nominal
from provisioning.scheduling.waiting import Shape, Waiting, shape_of

OWN_RULES = frozenset({Rule.LEDGER, Rule.USER_CAP, Rule.TEAM_LIMIT})
"""Rules that only the request's own team can make room under: nothing is kept free for it meanwhile."""


class Placer(Protocol):
    """Where a workload goes, if the caller has nodes: quota may be free where no single node is."""

    def fits(self, workload: Workload, gone: Sequence[str]) -> bool:
        """Whether it could be placed if the workloads named in `gone` had left."""

    def take(self, workload: Workload) -> None:
        """Place it: what follows sees the room gone."""


@dataclass(slots=True)
class _Shadow:
    """A reserved head, and the state at its promised start with the head in it."""

    head: Head
    workload: Workload
    state: State


class Scheduler:
    """The state of a site over time. Raises ValueError for wrong limits, KeyError for an unknown team."""

    def __init__(self, snapshot: Snapshot, placer: Placer | None = None) -> None:
        self.policy = snapshot.policy
        self.now_s = snapshot.now_s
        self.placer = placer
        self.state = State(snapshot)
        self.waiting = Waiting()
        self.running: dict[str, Running] = {}
        self._ends: list[tuple[int, str]] = []
        self._for: dict[str, set[str]] = {}
        for each in snapshot.running:
            self._hold(each)
            if each.leaving_s is not None and each.leaving_for:
                self._for.setdefault(each.leaving_for, set()).add(each.workload.id)
        for workload in snapshot.queued:
            self.submit(workload)

    def clone(self) -> Scheduler:
        """An independent copy without the placer, for looking ahead."""
        twin = Scheduler.__new__(Scheduler)
        twin.policy, twin.now_s, twin.placer = self.policy, self.now_s, None
        twin.state, twin.waiting = self.state.clone(), self.waiting.clone()
        twin.running, twin._ends = dict(self.running), list(self._ends)
        twin._for = {name: set(ids) for name, ids in self._for.items()}
        return twin

    # --- what happens to the site -------------------------------------------------------------------

    def submit(self, workload: Workload) -> None:
        if workload.duration_s <= 0 or any(amount < 0 for amount in workload.amounts.values()):
            raise ValueError(f"{workload.id!r} asks for less than nothing")
        if workload.id in self.running:
            raise ValueError(f"{workload.id!r} runs already")
        self.waiting.add(workload, self.state.teams[workload.team].capped)

    def withdraw(self, workload_id: str) -> None:
        self.waiting.remove(workload_id)

    def finish(self, workload_id: str) -> Running:
        """The workload is gone, as observed."""
        each = self.running.pop(workload_id)
        del self._ends[bisect_left(self._ends, (each.ends_s, workload_id))]
        self.state.remove(each.workload)
        for ids in self._for.values():
            ids.discard(workload_id)
        return each

    def start(self, workload_id: str, now_s: int) -> None:
        """The workload has been started, as `cycle` said."""
        workload = self.waiting.remove(workload_id)
        self._for.pop(workload_id, None)
        self._hold(Running(workload, now_s))

    def leave(self, victim: Victim, now_s: int) -> None:
        """The victim has been told to leave, as `cycle` said."""
        each = self.running[victim.workload]
        if each.leaving_s is not None:
            return
        del self._ends[bisect_left(self._ends, (each.ends_s, victim.workload))]
        each = replace(
            each,
            leaving_s=min(each.ends_s, now_s + self.policy.grace_s),
            leaving_for=victim.beneficiary,
        )
        self.running[victim.workload] = each
        insort(self._ends, (each.ends_s, victim.workload))
        if victim.beneficiary in self.waiting.items:
            self._for.setdefault(victim.beneficiary, set()).add(victim.workload)
            if victim.beneficiary not in self.waiting.claims():
                self.waiting.claim(victim.beneficiary)

    def set_average(self, team: str, borrowed_avg: Amounts) -> None:
        """Take over a team's decayed use as time has gone on."""
        self.state.set_team(replace(self.state.teams[team], borrowed_avg=borrowed_avg))

    def apply(self, cycle: Cycle, now_s: int) -> None:
        """Carry out what `cycle` said."""
        for head in cycle.heads:
            self.waiting.promise(head.workload)
        for workload_id in cycle.unclaimed:
            self.waiting.claim(workload_id, False)
        for workload_id in cycle.starts:
            self.start(workload_id, now_s)
        for victim in cycle.victims:
            self.leave(victim, now_s)

    def _hold(self, each: Running) -> None:
        if each.workload.id in self.running:
            raise ValueError(f"{each.workload.id!r} runs already")
        self.running[each.workload.id] = each
        insort(self._ends, (each.ends_s, each.workload.id))
        self.state.add(each.workload)

    # --- decisions ------------------------------------------------------------------------------------

    def cycle(self, now_s: int) -> Cycle:
        """Decide, and change nothing but the clock: `apply` (or `start` and `leave`) carries it out.

        With a placer, the workloads of `starts` have been taken there.
        """
        self.now_s = now_s
        self.waiting.promote(now_s - self.policy.max_wait_s)
        victims = list(self._for_bookings(now_s))
        asked = {victim.workload for victim in victims}
        starts: list[Workload] = []
        overtakers: set[str] = set()
        shadows: list[_Shadow] = []
        passed: set[Shape] = set()
        unclaimed: list[str] = []
        claims = self.waiting.claims()
        looked = attempts = 0
        for workload in self.waiting.pick(self.state, passed):
            if shadows:
                looked += 1
                if looked > self.policy.backfill_depth or not self.policy.backfill:
                    break
            lack = self.state.lack(workload, now_s)
            if lack is None and self.placer is not None and not self.placer.fits(workload, ()):
                lack = (Rule.PLACEMENT, "")
            if lack is None:
                if all(self._harmless(workload, shadow, now_s) for shadow in shadows):
                    self._begin(workload, starts, shadows, now_s)
                    if shadows:
                        overtakers.add(workload.id)
                continue
            found: tuple[Victim, ...] = ()
            # Behind a reserved head only an owner may take back what is its own.
            may = self.policy.preemption and (not shadows or within_nominal(self.state, workload))
            if may and attempts < self.policy.preemption_attempts and not self._for.get(workload.id):
                attempts += 1
                found = self._preempt(workload, now_s, asked)
                if not found and workload.id in claims:
                    # Those who left were not enough, and nobody else may be asked: no claim any more.
                    unclaimed.append(workload.id)
                victims.extend(found)
                asked.update(victim.workload for victim in found)
            self._pass_over(workload, lack, passed)
            claimed = bool(found) or workload.id in claims
            if lack[0] in OWN_RULES and not claimed:
                continue
            if claimed or all(shadow.head.resource != lack[1] for shadow in shadows):
                shadow = self._shadow(workload, lack[1], now_s, asked, starts, shadows)
                if shadow is not None:
                    shadows.append(shadow)
        for workload in starts:
            self.state.remove(workload)
        return Cycle(
            tuple(workload.id for workload in starts),
            frozenset(overtakers),
            tuple(victims),
            tuple(shadow.head for shadow in shadows),
            tuple(unclaimed),
        )

    def _begin(self, workload: Workload, starts: list[Workload], shadows: list[_Shadow], now_s: int) -> None:
        self.state.add(workload)
        starts.append(workload)
        if self.placer is not None:
            self.placer.take(workload)
        for shadow in shadows:
            if now_s + workload.duration_s > shadow.head.start_s:
                shadow.state.add(workload)

    def _harmless(self, workload: Workload, shadow: _Shadow, now_s: int) -> bool:
        """Whether starting it now leaves the head's start where it is."""
        if now_s + workload.duration_s <= shadow.head.start_s:
            return True
        return shadow.state.lack(workload, shadow.head.start_s) is None

    def _pass_over(self, workload: Workload, lack: tuple[Rule, str], passed: set[Shape]) -> None:
        # A booking is met by some durations and not by others of the same shape.
        if lack[0] is not Rule.BOOKING:
            passed.add(shape_of(workload, self.state.teams[workload.team].capped))

    def _preempt(self, workload: Workload, now_s: int, asked: set[str]) -> tuple[Victim, ...]:
        candidates = [each for name, each in self.running.items() if name not in asked]
        fits = None
        if self.placer is not None:
            placer = self.placer

            def fits(_: State, gone: Sequence[str]) -> bool:
                return placer.fits(workload, gone)

        return find_victims(self.state, workload, candidates, now_s, self.policy, fits)

    def _for_bookings(self, now_s: int) -> list[Victim]:
        """Preemptible workloads that stand where a booking has begun."""
        victims: list[Victim] = []
        removed: list[Workload] = []
        for booking in self.state.calendar.bookings:
            if not booking.start_s <= now_s < booking.end_s:
                continue
            for resource in booking.amounts:
                if resource not in self.state.capacity:
                    continue
                others = sorted(
                    (each for each in self.running.values() if each.workload.team != booking.team),
                    key=lambda each: (
                        each.leaving_s is None,
                        each.workload.priority,
                        -each.started_s,
                        each.workload.id,
                    ),
                )
                for each in others:
                    kept = self.state.calendar.peak(resource, now_s, now_s + 1, self.state)
                    if self.state.used.get(resource, 0) + kept <= self.state.capacity[resource]:
                        break
                    other = each.workload
                    if not other.preemptible or not other.amounts.get(resource) or other in removed:
                        continue
                    if self.state.calendar.peak(resource, now_s, now_s + 1, self.state, other.team) == 0:
                        continue
                    self.state.remove(other)
                    removed.append(other)
                    if each.leaving_s is None:
                        text = message(Reason.BOOKING, self.policy.grace_s)
                        victims.append(Victim(other.id, other.team, Reason.BOOKING, booking.id, text))
        for other in removed:
            self.state.add(other)
        return victims

    def _shadow(
        self,
        workload: Workload,
        resource: str,
        now_s: int,
        asked: set[str],
        starts: Sequence[Workload],
        shadows: Sequence[_Shadow],
    ) -> _Shadow | None:
        """When the head can start, as running workloads and earlier heads end; None: never."""
        later = self.state.clone()
        ends = self._expected_ends(now_s, asked, starts)
        for other in shadows:
            later.add(other.workload)
            ends.append((other.head.start_s + other.workload.duration_s, other.workload))
        ends.sort(key=lambda each: (each[0], each[1].id))
        index, count = 0, len(ends)
        at_s = now_s
        while True:
            # The next moment at which something is given back, or a booking ends.
            moments = [ends[index][0]] if index < count else []
            moments += [each.end_s for each in later.calendar.bookings if each.end_s > at_s]
            if not moments:
                return None
            at_s = min(moments)
            while index < count and ends[index][0] <= at_s:
                later.remove(ends[index][1])
                index += 1
            if later.lack(workload, at_s) is None:
                break
        later.add(workload)
        return _Shadow(Head(workload.id, at_s, resource), workload, later)

    def _expected_ends(
        self, now_s: int, asked: set[str], starts: Sequence[Workload]
    ) -> list[tuple[int, Workload]]:
        ends = []
        for end_s, name in self._ends:
            if name in asked:
                end_s = min(end_s, now_s + self.policy.grace_s)
            elif end_s <= now_s:
                end_s = now_s + self.policy.overdue_s
            ends.append((end_s, self.running[name].workload))
        ends.extend((now_s + workload.duration_s, workload) for workload in starts)
        return ends

    def next_end(self) -> int:
        """When something is first expected to end, `FOREVER_S` if nothing runs."""
        return self._ends[0][0] if self._ends else FOREVER_S

    def prolong(self, now_s: int) -> None:
        """Expect what should have ended by now to go on for a while."""
        for name in self.ended_by(now_s):
            each = self.finish(name)
            longer = now_s + self.policy.overdue_s - each.started_s
            self._hold(Running(replace(each.workload, duration_s=longer), each.started_s))

    def ended_by(self, at_s: int) -> list[str]:
        """What is expected to have ended by then."""
        return [name for _, name in self._ends[: bisect_left(self._ends, (at_s + 1, ""))]]


def schedule(snapshot: Snapshot, placer: Placer | None = None) -> Cycle:
    """What to do now on the snapshot; a pure function but for what it takes from the placer."""
    return Scheduler(snapshot, placer).cycle(snapshot.now_s)
