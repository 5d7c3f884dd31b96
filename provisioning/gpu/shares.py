"""Who takes more of a shared GPU's memory than their part, and what is done about it. Pure functions.

A part is held by ending processes, as nothing on a GPU without MIG keeps a process from allocating: the
holder is told first, has `GRACE_S` to make room, and then the process that holds most is ended, one after
the other. Where a neighbour cannot get what is its own, the first one is ended at once. Nothing is ended
where the driver does not tell what a process holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from provisioning.share_messages import ShareStep

GRACE_S = 20.0
"""For so long a workspace may hold more than its part before anything is ended."""
KILL_AFTER_S = 5.0
"""From SIGTERM to SIGKILL, and from the end of one process to that of the next."""
STEADY_S = 10.0
"""It is within its part again when it has been so for as long: who goes over and back gains nothing by it."""
GAP_S = 5.0
"""Where nothing was seen for longer, nobody knows what was held: the time counts anew."""
FULL_PCT = 2
"""A device with less of its memory free than this has none for who comes next."""


class Rank(IntEnum):
    """In which order processes of a workspace are ended. An agent never is."""

    WORK = 0
    APP = 1
    AGENT = 2


@dataclass(frozen=True, slots=True)
class Held:
    """A process and what it holds of the device, in MiB; None where the driver does not tell.

    `start_ticks` is field 22 of its stat file: with the number it names the process.
    """

    pid: int
    start_ticks: int
    memory_mib: int | None
    rank: Rank = Rank.WORK

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.start_ticks


@dataclass(frozen=True, slots=True)
class Seen:
    """All that a workspace holds of one device now, and its part, in MiB.

    `urgent`: the device is full, and a neighbour has less than its own part.
    """

    part_mib: int
    processes: tuple[Held, ...]
    urgent: bool = False

    @property
    def used_mib(self) -> int | None:
        """The sum; None where one of them is not told."""
        amounts = [each.memory_mib for each in self.processes]
        return None if None in amounts else sum(filter(None, amounts))

    @property
    def is_short(self) -> bool:
        """Whether it is known to hold less than its part."""
        return self.used_mib is not None and self.used_mib < self.part_mib


@dataclass(frozen=True, slots=True)
class Over:
    """A workspace that holds more than its part. Times are of one clock that never goes back.

    `asked` is the process that was asked to end last, at `asked_at`; `done` are those that nothing more is
    done with.
    """

    since: float
    seen_at: float
    asked: tuple[int, int] | None = None
    asked_at: float = 0.0
    killed: bool = False
    done: frozenset[tuple[int, int]] = frozenset()
    within_since: float | None = None
    """Since when it holds no more than its part, where it does so now."""


@dataclass(frozen=True, slots=True)
class Act:
    """What is to be told, and done: ASKED is a SIGTERM to `process`, KILLED a SIGKILL."""

    step: ShareStep
    used_mib: int
    process: Held | None = None
    ends_in_s: int = 0


def decide(before: Over | None, seen: Seen, now: float) -> tuple[Over | None, tuple[Act, ...]]:
    """The next state of one workspace on one device, and what is due; None: it is within its part.

    `now` is in seconds of a clock that never goes back. Called about once a second.
    """
    used = seen.used_mib
    if used is None:
        return None, (Act(ShareStep.UNKNOWN, 0),)
    if used <= seen.part_mib:
        return _within(before, used, now)
    acts: list[Act] = []
    if before is None:
        before = Over(now, now)
        acts.append(Act(ShareStep.OVER, used, ends_in_s=0 if seen.urgent else int(GRACE_S)))
    elif now - before.seen_at > GAP_S:
        before = Over(now, now)
    over = replace(before, seen_at=now, within_since=None)
    if not seen.urgent and now - over.since < GRACE_S:
        return over, tuple(acts)
    if over.asked is not None and now - over.asked_at < KILL_AFTER_S:
        return over, tuple(acts)
    still = next((each for each in seen.processes if each.identity == over.asked), None)
    if still is not None and still.memory_mib and not over.killed:
        acts.append(Act(ShareStep.KILLED, used, still))
        return replace(over, asked_at=now, killed=True), tuple(acts)
    if over.asked is not None:
        over = replace(over, asked=None, killed=False, done=over.done | {over.asked})
    chosen = next_to_end(seen, over.done)
    if chosen is not None:
        acts.append(Act(ShareStep.ASKED, used, chosen))
        over = replace(over, asked=chosen.identity, asked_at=now)
    return over, tuple(acts)


def _within(before: Over | None, used_mib: int, now: float) -> tuple[Over | None, tuple[Act, ...]]:
    if before is None:
        return None, ()
    since = now if before.within_since is None else before.within_since
    if now - since >= STEADY_S:
        return None, (Act(ShareStep.BACK, used_mib),)
    return replace(before, seen_at=now, within_since=since), ()


def next_to_end(seen: Seen, done: frozenset[tuple[int, int]]) -> Held | None:
    """The process that holds most; the app's own only where no other holds any. None: there is none."""
    possible = [
        each
        for each in seen.processes
        if each.rank is not Rank.AGENT and each.memory_mib and each.identity not in done
    ]
    return min(possible, key=lambda each: (each.rank, -(each.memory_mib or 0), each.pid), default=None)


def part_mib(device_mib: int, share_milli: int, asked_mib: int) -> int:
    """How much of a device a share may hold: what its size asks for, else its part of the device's memory."""
    return asked_mib or device_mib * share_milli // 1000


def is_full(device_mib: int, used_mib: int | None) -> bool:
    """Whether next to nothing is left of a device's memory. What is not told is not full."""
    return used_mib is not None and (device_mib - used_mib) * 100 < device_mib * FULL_PCT
