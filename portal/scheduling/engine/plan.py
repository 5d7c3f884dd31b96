"""Expected starts of all pending requests: Slurm's conservative back-fill over a grid of times (UTC seconds).

Each limit (of the site, a cohort, a team or a capped member) is a row with the remaining amount at each time.
Pending requests get slots in queue order: the first span in which all their rows suffice for the whole run.
Running workloads are expected to end on time, and no new requests to arrive. The first ends of a small site
are grid times; other times are accurate to about 2 % of the time ahead. After the first `DEPTH` requests,
slots are estimated: a request starts once the work before it (amounts times durations) fits into the
remaining amounts of its rows (`plan_tail`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from portal.common.reasons.codes import Rule
from portal.common.reasons.reason import Reason
from portal.quota.limits.tree import NO_LIMIT, Node
from portal.scheduling.engine.codes import WaitBasis
from portal.scheduling.engine.fair_share_order import FairShareOrder
from portal.scheduling.engine.model import Cycle, Eta, Running, Workload
from portal.scheduling.engine.plan_tail import Tail
from portal.scheduling.engine.ranks import Key
from portal.scheduling.engine.scheduler_state import SchedulerState

DEPTH = 512
"""Number of requests that get individual slots."""
GRID_RATIO = 1.03
GRID_AHEAD_S = 2 * 365 * 86400
EXACT_TIMES = 160
"""Maximum number of expected ends that are grid times themselves."""
FINE_BITS = 6
"""Durations are rounded to this many leading bits and one more: within 1 %."""
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]
TOO_FAR_AHEAD = Eta(None, Reason(WaitBasis.TOO_FAR_AHEAD))
ENOUGH_FREE = Reason(WaitBasis.ENOUGH_FREE)


@dataclass(frozen=True, slots=True)
class _Need:
    """The amounts that a request takes of each row.

    The first `checked` rows are limits. The others count the usage of teams and cohorts that keep a part to
    themselves. `amounts` has one column, or one per grid time.
    """

    rows: Rows
    amounts: Ints
    checked: int


@dataclass(frozen=True, slots=True)
class _Slot:
    need: _Need
    first: int
    after: int


@dataclass(frozen=True, slots=True)
class _Pick:
    """A request in the order of the plan, on the flavor that it is expected to start on.

    `slot` and `start_s` are None if it has no slot.
    """

    workload: Workload
    slot: _Slot | None
    start_s: int | None


class Plan:
    """The ETAs of a queue at the time of construction.

    Ignores nodes: a request that fits no single node waits longer.
    """

    def __init__(self, scheduler: SchedulerState, cycle: Cycle | None = None) -> None:
        """Plan the pending requests. `cycle` has those that start now (default: slot is now)."""
        self._scheduler = scheduler
        self._usage = scheduler.usage
        self._now_s = scheduler.now_s
        self._basis = Reason(WaitBasis.EXPECTED_ENDS, {"running": len(scheduler.running)})
        self._row: dict[tuple[object, ...], int] = {}
        self._held_row: dict[tuple[int, str], int] = {}
        self._needs: dict[object, _Need] = {}
        self._after: dict[int, Rows] = {}
        self._kept: dict[tuple[str, str], Ints] = {}
        self._etas: dict[str, Eta] = {}
        self._by_choice: dict[str, tuple[Eta, ...]] = {}
        self._picks: list[_Pick] = []
        self._rest: Tail | None = None
        starts = cycle.starts if cycle is not None else ()
        self._running = _Running(scheduler)
        started = cycle.started(scheduler.pending.items) if cycle is not None else []
        self._build_grid, self._next, self._left = self._read(started)
        self._started = started
        self._order = order = FairShareOrder(scheduler, frozenset(starts))
        for workload in started:
            need = self._need(self._left, workload)
            self._take(self._left, _Slot(need, 0, int(self._end_indexes(workload.duration_s)[0])), -1)
            order.record_start(workload, self._now_s)
            self._etas[workload.id] = Eta(self._now_s, ENOUGH_FREE)
        self._earliest = 0 if cycle is None else self._next
        while len(self._picks) < DEPTH and (pending := order.pick()) is not None:
            pick, eta, etas = self._give_slot(self._left, order, pending)
            self._picks.append(pick)
            self._etas[pending.id] = eta
            if pending.fallbacks:
                self._by_choice[pending.id] = etas

    def _give_slot(
        self, left: Ints, order: FairShareOrder, pending: Workload
    ) -> tuple[_Pick, Eta, tuple[Eta, ...]]:
        """Give the picked request its slot. Returns its ETA, and that on each of its flavors, too."""
        slots = self._find_all(left, pending, self._earliest)
        etas = tuple(eta for _, eta, _ in slots)
        chosen = expected_choice(etas, pending.start_within_s) if len(etas) > 1 else 0
        slot, eta, workload = slots[chosen]
        if slot is not None and eta.eta_s is not None:
            self._take(left, slot, -1)
            order.record_start(workload, eta.eta_s)
        return _Pick(workload, slot, eta.eta_s), eta, etas

    def eta(self, workload_id: str) -> Eta:
        """Return the ETA of a pending request. Raises KeyError if it was not pending at construction."""
        eta = self._etas.get(workload_id)
        if eta is not None:
            return eta
        pending = self._scheduler.pending
        workload = pending.items[workload_id]
        return self._tail().eta_at_rank(
            workload, self._order.rank_now(workload.team, pending.key_of(workload))
        )

    def by_choice(self, workload_id: str) -> tuple[Eta, ...]:
        """Return the ETAs of a request on each of its flavors; after `DEPTH` requests, on the first only."""
        return self._by_choice.get(workload_id) or (self.eta(workload_id),)

    def etas(self) -> dict[str, Eta]:
        """Return the ETAs of all pending requests by id."""
        return {**self._etas, **self._tail().etas()}

    def etas_if_inserted(self, workload: Workload, key: Key) -> tuple[Eta, ...] | None:
        """Return the ETAs of an additional request that does not start at once, on each of its flavors.

        `key` is its queue key. After `DEPTH` requests, on the first flavor only, and None if the requests
        before it are not those of this plan. The plan is unchanged.
        """
        self._read_member(workload.team, workload.user)
        order = self._order.with_added(workload, key)
        for started in self._started:
            order.record_start(started, self._now_s)
        same = 0
        while same < DEPTH and (pending := order.pick()) is not None:
            pick = self._picks[same] if same < len(self._picks) else None
            if pick is None or pick.workload.id != pending.id:
                return self._etas_from(same, order, pending, workload)
            if pick.slot is not None and pick.start_s is not None:
                order.record_start(pick.workload, pick.start_s)
            same += 1
        return (self._tail().eta_at_rank(workload, order.rank_now(workload.team, key)),)

    def _etas_from(
        self, same: int, order: FairShareOrder, pending: Workload | None, workload: Workload
    ) -> tuple[Eta, ...] | None:
        """Return the ETAs of the additional request in an order whose first `same` picks are the plan's."""
        left = self._left.copy()
        for pick in self._picks[same:]:
            if pick.slot is not None:
                self._take(left, pick.slot, 1)
        for _ in range(same, DEPTH):
            if pending is None:
                break
            if pending.id == workload.id:
                return tuple(eta for _, eta, _ in self._find_all(left, workload, self._next))
            self._give_slot(left, order, pending)
            pending = order.pick()
        return None

    def _tail(self) -> Tail:
        if self._rest is None:
            self._rest = Tail(self, self._scheduler.pending.items, self._order.remaining())
        return self._rest

    # --- used by the tail ------------------------------------------------------------------------------

    @property
    def grid(self) -> Ints:
        return self._build_grid

    @property
    def limited(self) -> Set[str]:
        """The resources with a limit."""
        return {str(key[-1]) for key in self._row}

    def remaining_of(self, row: int) -> Ints:
        """Return the remaining amount of a limit at each time, after the slots before the tail."""
        line: Ints = self._left[row]
        return line

    def demand(self, workload: Workload) -> tuple[tuple[int, int], ...]:
        """Return the maximum amount that the request takes of each limit, as (row, amount)."""
        need = self._needs.get(key := self._key(workload))
        if need is None:
            need = self._need(self._left, workload)
            if need.amounts.shape[1] == 1:
                self._needs[key] = need
        most = need.amounts[: need.checked].max(axis=1) if need.checked else ()
        return tuple((int(row), int(amount)) for row, amount in zip(need.rows, most, strict=False))

    def eta_if_impossible(self, workload: Workload) -> Eta | None:
        """Return the ETA of a request that could never start under the limits, else None."""
        never = self._usage.permanent_shortfall(workload)
        if never is None and self._usage.lacks_gpu_hours(workload):
            never = (Rule.LEDGER, "")
        return Eta(None, Reason(WaitBasis.LIMIT_MUST_CHANGE, {"rule": never[0].value})) if never else None

    def start_key(self, workload: Workload) -> str:
        """Return a key that is equal for requests which, with equal demands, start at the same time."""
        need = self._needs.get(self._key(workload))
        return "" if need is not None and not self._usage.calendar.reservations else workload.team

    def start_if_first(self, workload: Workload) -> tuple[int, Eta]:
        """Return the grid index and ETA of the request if it came first in the tail."""
        slot, eta = self._find(self._left, workload, self._earliest)
        return (slot.first if slot is not None else len(self._build_grid)), eta

    def eta_at(self, index: int) -> Eta:
        """Return the ETA for a start at a grid index."""
        return (
            Eta(int(self._build_grid[index]), self._basis) if index < len(self._build_grid) else TOO_FAR_AHEAD
        )

    # --- slots of several flavors -----------------------------------------------------------------------

    def _find_all(
        self, left: Ints, workload: Workload, earliest: int
    ) -> list[tuple[_Slot | None, Eta, Workload]]:
        """Return the slot and the ETA of a request on each of its flavors."""
        slot, eta = self._find(left, workload, earliest)
        if not workload.fallbacks:
            return [(slot, eta, workload)]
        slots = [(slot, replace(eta, choice=workload.choice), workload)]
        for other in workload.fallbacks:
            slot, eta = self._find(left, other, earliest)
            slots.append((slot, replace(eta, choice=other.choice), other))
        return slots

    # --- slots -----------------------------------------------------------------------------------------

    def _find(self, left: Ints, workload: Workload, earliest: int) -> tuple[_Slot | None, Eta]:
        need = self._needs.get(key := self._key(workload))
        if need is None:
            never = self.eta_if_impossible(workload)
            if never is not None:
                return None, never
            need = self._need(left, workload)
            if need.amounts.shape[1] == 1:
                self._needs[key] = need
        room = left[need.rows[: need.checked]] >= need.amounts[: need.checked]
        enough: Bools = np.all(room, axis=0)
        begins = enough
        if self._usage.calendar.reservations:
            unbooked = self._unbooked_times(left, workload)
            begins = enough & unbooked
            # Preemptible work only has to fit beside reservations when it starts.
            enough = enough if workload.preemptible else begins
        after = self._end_indexes(workload.duration_s)
        short = np.zeros(len(enough) + 1, np.int64)
        np.cumsum(~enough, out=short[1:])
        fits = (short[after] == short[:-1]) & begins
        first = earliest + int(fits[earliest:].argmax()) if earliest < len(fits) else 0
        if earliest >= len(fits) or not fits[first]:
            return None, TOO_FAR_AHEAD
        return _Slot(need, first, int(after[first])), Eta(int(self._build_grid[first]), self._basis)

    @staticmethod
    def _take(left: Ints, slot: _Slot, sign: int) -> None:
        amounts = slot.need.amounts
        if amounts.shape[1] > 1:
            amounts = amounts[:, slot.first : slot.after]
        left[slot.need.rows, slot.first : slot.after] += sign * amounts

    def _end_indexes(self, duration_s: int) -> Rows:
        """Return for each grid time the index of the nearest end of a run; at least one further."""
        coarse = max(0, duration_s.bit_length() - FINE_BITS)
        key = (duration_s >> coarse << coarse) + (1 << coarse >> 1)
        after = self._after.get(key)
        if after is None:
            middles = (self._build_grid[1:] + self._build_grid[:-1]) // 2
            after = np.searchsorted(middles, self._build_grid + key)
            np.maximum(after, np.arange(1, len(self._build_grid) + 1), out=after)
            self._after[key] = after
        return after

    def _key(self, workload: Workload) -> object:
        user = workload.user if self._usage.teams[workload.team].capped else ""
        return (workload.team, user, tuple(workload.amounts.items()))

    def _need(self, left: Ints, workload: Workload) -> _Need:
        usage = self._usage
        user = workload.user
        limits: list[tuple[int, int | Ints]] = []
        extra: list[tuple[int, int | Ints]] = []
        for resource, amount in workload.amounts.items():
            if amount <= 0:
                continue
            for name in (("site", resource), ("member", workload.team, user, resource)):
                if name in self._row:
                    limits.append((self._row[name], amount))
            node: Node | None = usage.tree.teams[workload.team]
            more: int | Ints = amount
            while node is not None:
                line = self._row.get((id(node), resource))
                if line is not None:
                    limits.append((line, more))
                line = self._held_row.get((id(node), resource))
                if line is not None:
                    # The guaranteed part is used first; only the rest comes from the parent.
                    extra.append((line, more))
                    used, keeps = -left[line], node.local[resource]
                    more = np.maximum(0, used + more - keeps) - np.maximum(0, used - keeps)
                node = node.parent
        lines = [*limits, *extra]
        wide = bool(extra)
        amounts = np.empty((len(lines), len(self._build_grid) if wide else 1), np.int64)
        for index, (_, value) in enumerate(lines):
            amounts[index] = value
        return _Need(np.array([line for line, _ in lines], np.intp), amounts, len(limits))

    # --- rows ------------------------------------------------------------------------------------------

    def _read(self, starts: Sequence[Workload]) -> tuple[Ints, int, Ints]:
        """Return the grid, the index of the first change, and the remaining limits at each time."""
        scheduler, usage, running = self._scheduler, self._usage, self._running
        moments = [
            at_s
            for reservation in usage.calendar.reservations
            for at_s in (reservation.start_s, reservation.end_s)
            if at_s > self._now_s
        ]
        grid = _build_grid(self._now_s, np.unique(running.ends), moments)
        running.set_grid(grid)
        # Nothing changes until a workload ends: requests that do not start now start then at the earliest.
        ends = [self._now_s + start.duration_s for start in starts]
        soonest = min((*running.ends.tolist(), *moments, *ends), default=self._now_s)
        following = min(max(1, int(np.searchsorted(grid, soonest))), len(grid) - 1)
        lines: list[Ints] = []
        for resource in {**usage.capacity, **usage.site_limits}:
            both = (usage.capacity, usage.site_limits)
            limit = min(limits[resource] for limits in both if resource in limits)
            self._row["site", resource] = len(lines)
            lines.append(limit - running.usage_of_teams(resource))
        capped = {name for name, team in usage.teams.items() if team.capped}
        if capped:
            of = ((item.team, item.user) for item in scheduler.pending.items.values() if item.team in capped)
            for team, user in dict.fromkeys(of):
                lines += self._member_rows(team, user, len(lines))
        for node in (*usage.tree.cohorts.values(), *usage.tree.teams.values()):
            if node.parent is None:
                for resource in node.root_names:
                    self._read_node(node, resource, running, lines)
        return grid, following, np.array(lines, np.int64).reshape(len(lines), len(grid))

    def _member_rows(self, team: str, user: str, first: int) -> list[Ints]:
        """Return the rows of a member's caps, numbered from `first`."""
        own = [run for run in self._scheduler.running_of_team(team) if run.workload.user == user]
        lines: list[Ints] = []
        for resource, cap in self._usage.teams[team].caps_of(user).items():
            self._row["member", team, user, resource] = first + len(lines)
            lines.append(cap - self._running.usage_of_member(own, resource))
        return lines

    def _read_member(self, team: str, user: str) -> None:
        """Add the rows of a member without pending requests, if it has caps."""
        caps = self._usage.teams[team].caps_of(user)
        if caps and ("member", team, user, next(iter(caps))) not in self._row:
            lines = self._member_rows(team, user, len(self._left))
            self._left = np.vstack([self._left, *lines])

    def _read_node(self, node: Node, resource: str, running: _Running, lines: list[Ints]) -> Ints:
        """Add the rows of the node and its descendants. Returns the usage of its parent at each time."""
        teams = self._usage.tree.teams
        if teams.get(node.name) is node:
            usage = running.usage_of_teams(resource, [node.name])
        else:
            # Teams without their own limits have no row and are added up together.
            plain = {
                child.name
                for child in node.children
                if teams.get(child.name) is child
                and child.local[resource] <= 0
                and child.limits.get(resource, NO_LIMIT).borrowing is None
            }
            usage = running.usage_of_teams(resource, plain)
            for child in node.children:
                if child.name not in plain or teams.get(child.name) is not child:
                    usage = usage + self._read_node(child, resource, running, lines)
        borrowing = node.limits.get(resource, NO_LIMIT).borrowing
        if node.parent is None or borrowing is not None:
            limit = node.quota[resource] + (borrowing or 0 if node.parent is not None else 0)
            self._row[id(node), resource] = len(lines)
            lines.append(limit - usage)
        keeps = node.local[resource]
        if node.parent is None or keeps <= 0:
            return usage
        self._held_row[id(node), resource] = len(lines)
        lines.append(-usage)
        return np.maximum(0, usage - keeps)

    def _unbooked_times(self, left: Ints, workload: Workload) -> Bools:
        """Return the times at which the request fits beside unused reservations of other teams."""
        free = np.ones(len(self._build_grid), np.bool_)
        for resource, amount in workload.amounts.items():
            if amount > 0 and resource in self._usage.capacity:
                reserved = self._kept.get((workload.team, resource))
                if reserved is None:
                    calendar, usage = self._usage.calendar, self._usage
                    reserved = np.array(
                        [
                            calendar.peak(resource, int(at_s), int(at_s) + 1, usage, workload.team)
                            for at_s in self._build_grid
                        ],
                        np.int64,
                    )
                    self._kept[workload.team, resource] = reserved
                free &= left[self._row["site", resource]] - reserved >= amount
        return free


class _Running:
    """Running workloads as arrays: team, expected end and amounts."""

    def __init__(self, scheduler: SchedulerState) -> None:
        self._overdue = (scheduler.now_s, scheduler.now_s + scheduler.policy.overdue_s)
        self._of = scheduler.amounts_by_end()
        self._numbers = {name: number for number, name in enumerate(self._of.teams)}
        self.ends = self._expected_ends(self._of.ends)

    def set_grid(self, grid: Ints) -> None:
        """Set the grid."""
        self._build_grid = grid
        self._at = np.searchsorted(grid, self.ends)

    def usage_of_teams(self, resource: str, teams: Collection[str] | None = None) -> Ints:
        """Return the usage of the teams (None: all) at each time.

        The amounts of a workload are free from the first grid time after its end.
        """
        amounts = self._of.amounts.get(resource)
        if amounts is None:
            return np.zeros(len(self._build_grid), np.int64)
        if teams is None:
            return self._profile(self._at, amounts)
        of_teams = np.zeros(len(self._numbers), np.bool_)
        of_teams[[self._numbers[name] for name in teams if name in self._numbers]] = True
        chosen = of_teams[self._of.team]
        return self._profile(self._at[chosen], amounts[chosen])

    def usage_of_member(self, own: Sequence[Running], resource: str) -> Ints:
        """Return the amounts in use by one member at each time."""
        ends = np.array([run.ends_s for run in own], np.int64)
        at = np.searchsorted(self._build_grid, self._expected_ends(ends))
        return self._profile(at, np.array([run.workload.amounts.get(resource, 0) for run in own], np.int64))

    def _expected_ends(self, ends: Ints) -> Ints:
        now_s, later_s = self._overdue
        return np.where(ends <= now_s, later_s, ends)

    def _profile(self, at: Rows, amounts: Ints) -> Ints:
        gone = np.zeros(len(self._build_grid) + 1, np.int64)
        np.add.at(gone, at, amounts)
        levels: Ints = gone.sum() - np.cumsum(gone)[:-1]
        return levels


def _build_grid(now_s: int, ends: Ints, moments: list[int]) -> Ints:
    """Return the grid: growing steps, expected ends (all or evenly sampled) and bounds of reservations."""
    steps = int(np.log(GRID_AHEAD_S * (GRID_RATIO - 1) + 1) / np.log(GRID_RATIO)) + 1
    ahead = (GRID_RATIO ** np.arange(steps) - 1) / (GRID_RATIO - 1)
    if len(ends) > EXACT_TIMES:
        ends = ends[np.linspace(0, len(ends) - 1, EXACT_TIMES).astype(np.intp)]
    return np.unique(np.concatenate([now_s + ahead.astype(np.int64), ends, np.array(moments, np.int64)]))


def expected_choice(etas: Sequence[Eta], within_s: int) -> int:
    """Return the index of the flavor to expect: the first within `within_s` of the soonest."""
    known = [eta.eta_s for eta in etas if eta.eta_s is not None]
    if not known:
        return 0
    latest_s = min(known) + within_s
    return next(index for index, eta in enumerate(etas) if eta.eta_s is not None and eta.eta_s <= latest_s)


def plan(scheduler: SchedulerState, cycle: Cycle | None = None) -> Plan:
    """Return the plan of the whole queue. `cycle` is the scheduler's last decision."""
    return Plan(scheduler, cycle)
