"""Decide which workspaces exceed their share of a GPU's memory, and what to do. Pure functions.

A GPU without MIG cannot limit allocations, so a share is enforced by ending processes. The owner is notified
first and has `GRACE_S` to free memory. Then processes are ended one by one, the largest first. If a neighbour
cannot get its own share, the first one is ended at once. Nothing is ended if the driver does not report
memory per process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from provisioning.share_messages import ShareStep

GRACE_S = 20.0
"""How long a workspace may exceed its share before a process is ended."""
KILL_AFTER_S = 5.0
"""Time from SIGTERM to SIGKILL, and between ends of two processes."""
STEADY_S = 10.0
"""How long it must stay within its share before the excess counts as over. Prevents oscillation."""
GAP_S = 5.0
"""After a longer gap in observations the timer restarts."""
FULL_PCT = 2
"""A device with less free memory than this, in percent, is full."""


class Rank(IntEnum):
    """Order in which a workspace's processes are ended. The agent is never ended."""

    WORK = 0
    APP = 1
    AGENT = 2


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process and its memory on the device in MiB; None if the driver does not report it.

    `start_ticks` is field 22 of its stat file; with the PID it identifies the process.
    """

    pid: int
    start_ticks: int
    memory_mib: int | None
    rank: Rank = Rank.WORK

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.start_ticks


@dataclass(frozen=True, slots=True)
class ShareUse:
    """A workspace's processes on one device, and its share in MiB.

    `urgent`: the device is full, and a neighbour has less than its own share.
    """

    part_mib: int
    processes: tuple[DeviceProcess, ...]
    urgent: bool = False

    @property
    def used_mib(self) -> int | None:
        """The total in MiB; None if any is unknown."""
        amounts = [process.memory_mib for process in self.processes]
        return None if None in amounts else sum(filter(None, amounts))

    @property
    def is_short(self) -> bool:
        """Whether it is known to use less than its share."""
        return self.used_mib is not None and self.used_mib < self.part_mib


@dataclass(frozen=True, slots=True)
class OverShare:
    """State of a workspace that exceeds its share. Times are from one monotonic clock.

    `asked` is the process that last got a SIGTERM, at `asked_at`. `done` are processes that need no further
    action.
    """

    since: float
    seen_at: float
    asked: tuple[int, int] | None = None
    asked_at: float = 0.0
    killed: bool = False
    done: frozenset[tuple[int, int]] = frozenset()
    within_since: float | None = None
    """When the workspace returned within its share; None while it exceeds the share."""


@dataclass(frozen=True, slots=True)
class ShareAction:
    """A notification and an action: ASKED is a SIGTERM to `process`, KILLED a SIGKILL."""

    step: ShareStep
    used_mib: int
    process: DeviceProcess | None = None
    ends_in_s: int = 0


def decide(
    before: OverShare | None, usage: ShareUse, now: float
) -> tuple[OverShare | None, tuple[ShareAction, ...]]:
    """Return the next state of one workspace on one device, and the actions; None means within its share.

    `now` is in seconds of a monotonic clock. Call it about once per second.
    """
    used = usage.used_mib
    if used is None:
        return None, (ShareAction(ShareStep.UNKNOWN, 0),)
    if used <= usage.part_mib:
        return _within_share(before, used, now)
    acts: list[ShareAction] = []
    if before is None:
        before = OverShare(now, now)
        acts.append(ShareAction(ShareStep.OVER, used, ends_in_s=0 if usage.urgent else int(GRACE_S)))
    elif now - before.seen_at > GAP_S:
        before = OverShare(now, now)
    over = replace(before, seen_at=now, within_since=None)
    if not usage.urgent and now - over.since < GRACE_S:
        return over, tuple(acts)
    if over.asked is not None and now - over.asked_at < KILL_AFTER_S:
        return over, tuple(acts)
    survivor = next((process for process in usage.processes if process.identity == over.asked), None)
    if survivor is not None and survivor.memory_mib and not over.killed:
        acts.append(ShareAction(ShareStep.KILLED, used, survivor))
        return replace(over, asked_at=now, killed=True), tuple(acts)
    if over.asked is not None:
        over = replace(over, asked=None, killed=False, done=over.done | {over.asked})
    chosen = next_to_end(usage, over.done)
    if chosen is not None:
        acts.append(ShareAction(ShareStep.ASKED, used, chosen))
        over = replace(over, asked=chosen.identity, asked_at=now)
    return over, tuple(acts)


def _within_share(
    before: OverShare | None, used_mib: int, now: float
) -> tuple[OverShare | None, tuple[ShareAction, ...]]:
    if before is None:
        return None, ()
    since = now if before.within_since is None else before.within_since
    if now - since >= STEADY_S:
        return None, (ShareAction(ShareStep.BACK, used_mib),)
    return replace(before, seen_at=now, within_since=since), ()


def next_to_end(usage: ShareUse, ended: frozenset[tuple[int, int]]) -> DeviceProcess | None:
    """Return the process that uses the most memory, or None; the app only if no other uses any."""
    possible = [
        process
        for process in usage.processes
        if process.rank is not Rank.AGENT and process.memory_mib and process.identity not in ended
    ]
    return min(
        possible, key=lambda process: (process.rank, -(process.memory_mib or 0), process.pid), default=None
    )


def part_mib(device_mib: int, share_milli: int, asked_mib: int) -> int:
    """Return the memory limit of a share in MiB: `asked_mib`, or else its fraction of the device."""
    return asked_mib or device_mib * share_milli // 1000


def is_full(device_mib: int, used_mib: int | None) -> bool:
    """Return whether the device's memory is nearly exhausted; False if unknown."""
    return used_mib is not None and (device_mib - used_mib) * 100 < device_mib * FULL_PCT
