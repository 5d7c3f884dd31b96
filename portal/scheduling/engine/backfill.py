"""Back-fill reservations (Slurm): when a blocked request can start, and what back-fill must leave to it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from typing import Protocol, runtime_checkable

from portal.scheduling.engine.model import BackfillReservation, Policy, Running, Workload
from portal.scheduling.engine.usage import Promised, Usage, within_nominal

End = tuple[int, str, Workload]
Room = tuple[int, tuple[str, ...]]
"""A moment, and the names of those that have left by then."""
MAX_GONE = 512
"""A look ahead at the nodes takes at most so many workloads to have ended."""


class Placer(Protocol):
    """Where a workload goes, if the caller has nodes: quota may be free where no single node is.

    One that also has `keeps` (see `Keeper`) makes a reserved start keep its place on the nodes too.
    """

    def fits(self, workload: Workload, gone: Sequence[str]) -> bool:
        """Whether it could be placed if the workloads named in `gone` had left."""

    def take(self, workload: Workload) -> None:
        """Place it: what follows sees the room gone."""


@runtime_checkable
class Keeper(Protocol):
    """A placer that can imagine one placement and then ask for another."""

    def keeps(self, reserved: Workload, gone: Sequence[str], other: Workload, left: Sequence[str]) -> bool:
        """Whether `reserved` still finds a place with `gone` left once `other` has one with `left` left.

        Nothing is taken. False where `other` finds no place.
        """


@runtime_checkable
class Stepper(Protocol):
    """A placer that is quicker where one list of those who have left is asked of again and again."""

    def stepping(self) -> AbstractContextManager[Callable[[Workload, Sequence[str]], bool]]:
        """Asks like `fits`, of longer and shorter parts of one list; nothing else is asked meanwhile."""


@dataclass(slots=True)
class ReservedStart:
    """A back-fill reservation, and the usage at its start with the request in it.

    `gone` names those whose leaving gives it its place on the nodes; None where nodes are not looked at.
    `borrows` is set where its team would borrow for it: an owner of another team passes it. It is `passed`
    once that has taken its start.
    """

    backfill: BackfillReservation
    workload: Workload
    usage: Usage
    nominated: bool = False
    gone: tuple[str, ...] | None = None
    borrows: bool = False
    passed: bool = False

    def allows(self, other: Workload, now_s: int, placer: Placer | None) -> bool:
        """Whether starting `other` now leaves the reserved start where it is."""
        if now_s + other.duration_s <= self.backfill.start_s:
            return True
        if self.usage.shortfall(other, self.backfill.start_s) is not None:
            return False
        if self.gone is None or not isinstance(placer, Keeper):
            return True
        return placer.keeps(self.workload, self.gone, other, ())

    def allows_swap(
        self, other: Workload, victims: Iterable[Running], from_s: int, placer: Placer | None
    ) -> bool:
        """Whether `other` may have the place of `victims` from `from_s` on."""
        start_s = self.backfill.start_s
        if from_s + other.duration_s <= start_s:
            return True
        stayed = [each for each in victims if each.ends_s > start_s]
        for each in stayed:
            self.usage.remove(each.workload)
        fits = self.usage.shortfall(other, start_s) is None
        for each in stayed:
            self.usage.add(each.workload)
        if not fits or self.gone is None or not isinstance(placer, Keeper):
            return fits
        left = [each.workload.id for each in victims]
        return placer.keeps(self.workload, [*self.gone, *left], other, left)

    def swap(self, other: Workload, victims: Iterable[Running], from_s: int) -> None:
        """Take over what `allows_swap` has allowed."""
        for each in victims:
            if each.ends_s > self.backfill.start_s:
                self.usage.remove(each.workload)
        if from_s + other.duration_s > self.backfill.start_s:
            self.usage.add(other)


def binding_on(
    workload: Workload, usage: Usage, reserved_starts: Sequence[ReservedStart], promised: Promised
) -> Sequence[ReservedStart]:
    """Those that the request has to leave alone: all, but an owner passes other teams that would borrow."""
    others = [each for each in reserved_starts if not each.borrows or each.workload.team == workload.team]
    if len(others) < len(reserved_starts) and within_nominal(usage, workload, promised):
        return others
    return reserved_starts


def expected_ends(
    ends: Sequence[tuple[int, str]],
    running: Mapping[str, Running],
    now_s: int,
    policy: Policy,
    asked: Iterable[str],
    more: Iterable[tuple[int, Workload]],
) -> Iterator[End]:
    """What is expected to end, the first first: what runs (those `asked` to leave sooner), and `more`."""
    moved = set(asked)
    early: list[End] = [(end_s, workload.id, workload) for end_s, workload in more]
    for name in moved:
        early.append((min(running[name].ends_s, now_s + policy.grace_s), name, running[name].workload))
    first = 0
    while first < len(ends) and ends[first][0] <= now_s:
        name = ends[first][1]
        if name not in moved:
            early.append((now_s + policy.overdue_s, name, running[name].workload))
        first += 1
    early.sort(key=itemgetter(0, 1))
    usual = (
        (end_s, name, running[name].workload)
        for end_s, name in (ends[index] for index in range(first, len(ends)))
        if name not in moved
    )
    return merge(usual, early, key=itemgetter(0, 1))


def find_reserved_start(
    workload: Workload,
    resource: str,
    now_s: int,
    usage: Usage,
    ends: Iterator[End],
    earlier: Sequence[ReservedStart],
) -> ReservedStart | None:
    """When the request can start, as running workloads and those of `earlier` end; None: never."""
    later = usage.clone()
    for other in earlier:
        later.add(other.workload)
    following = next(ends, None)
    at_s = now_s
    while True:
        # The next moment at which something is given back, or a booking ends.
        moments = [following[0]] if following is not None else []
        moments += [each.end_s for each in later.calendar.reservations if each.end_s > at_s]
        if not moments:
            return None
        at_s = min(moments)
        while following is not None and following[0] <= at_s:
            later.remove(following[2])
            following = next(ends, None)
        if later.shortfall(workload, at_s) is None:
            break
    later.add(workload)
    return ReservedStart(BackfillReservation(workload.id, at_s, resource), workload, later)


class Soon:
    """The usage and the nodes as they will be once some have left. For one moment of one cycle (`key`)."""

    __slots__ = ("_found", "_names", "_usage", "key")

    def __init__(self, key: object, usage: Usage, gone: Sequence[Workload], running: Container[str]) -> None:
        self.key = key
        self._usage = usage.clone()
        for other in gone:
            self._usage.remove(other)
        self._names = [other.id for other in gone if other.id in running]
        self._found: dict[object, bool] = {}

    def fits(
        self,
        workload: Workload,
        at_s: int,
        reserved_starts: Sequence[ReservedStart],
        placer: Placer | None,
    ) -> bool:
        """Whether it fits then, with those of `reserved_starts` in."""
        for reserved_start in reserved_starts:
            self._usage.add(reserved_start.workload)
        fits = self._usage.shortfall(workload, at_s) is None
        for reserved_start in reserved_starts:
            self._usage.remove(reserved_start.workload)
        if not fits or placer is None:
            return fits
        # Whose they are is nothing to the nodes.
        alike = (workload.place, tuple(sorted(workload.amounts.items())))
        found = self._found.get(alike)
        if found is None:
            found = self._found[alike] = placer.fits(workload, self._names)
        return found


class Rooms:
    """When the nodes will have room, of one cycle: of requests that are alike one is looked for.

    `key` tells moments of the cycle apart: who has been asked to leave by then, and what has been placed.
    """

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[object, Room | None] = {}

    def of(self, workload: Workload, key: object, ask: Callable[[], Room | None]) -> Room | None:
        # Whose they are is nothing to the nodes.
        alike = (key, workload.place, tuple(sorted(workload.amounts.items())))
        if alike not in self._found:
            self._found[alike] = ask()
        return self._found[alike]


def room_on_nodes(workload: Workload, ends: Iterator[End], placer: Placer) -> Room | None:
    """When enough has ended for a place on the nodes, and what has by then; None: not among the first ends.

    Looks at twice as much each time and then halves: few questions to the placer.
    """
    with placer.stepping() if isinstance(placer, Stepper) else nullcontext(placer.fits) as fits:
        known: list[End] = []
        needed = step = 1
        while True:
            while len(known) < step:
                following = next(ends, None)
                if following is None:
                    break
                known.append(following)
            if not known:
                return None
            if fits(workload, [name for _, name, _ in known]):
                break
            if len(known) < step or step >= MAX_GONE:
                return None
            needed, step = len(known) + 1, step * 2
        low, high = needed, len(known)
        while low < high:
            middle = (low + high) // 2
            if fits(workload, [name for _, name, _ in known[:middle]]):
                high = middle
            else:
                low = middle + 1
        return known[high - 1][0], tuple(name for _, name, _ in known[:high])
