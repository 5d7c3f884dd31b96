"""Detects processes that are running commands, and measures what processes use."""

# ruff: noqa: PTH123, UP031

from __future__ import annotations

import os

from .commands import (
    ADAPTER,
    EDITOR_PROCESSES,
    MULTIPLEXERS,
    WORKERS,
    is_monitor,
    is_placeholder,
    is_prompt,
    program_of,
)
from .processes import command_line, descendants, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .processes import Table

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Jobs:
    """The number of running commands, their processes, and those of kernels.

    `commands`: the processes of each command, without descendants in other groups.
    `monitor_pids`: programs that only show the activity of others.
    `viewed_terminals`: terminals in which a monitor or multiplexer writes, so output is not a sign of work.
    """

    __slots__ = ("commands", "count", "kernel_pids", "monitor_pids", "pids", "viewed_terminals")

    def __init__(
        self,
        commands: list[set[int]],
        pids: set[int],
        kernel_pids: set[int],
        monitor_pids: set[int],
        viewed_terminals: set[int],
    ) -> None:
        self.commands = commands
        self.count = len(commands)
        self.pids = pids
        self.kernel_pids = kernel_pids
        self.monitor_pids = monitor_pids
        self.viewed_terminals = viewed_terminals


def jobs_of(
    pids: list[int], table: Table, agent: int, app: int, *, editor_kernels: frozenset[int] = frozenset()
) -> Jobs:
    """Return the running commands, without shells, kernels, monitors, placeholders, multiplexers and the app.

    A shell gives each command its own process group in its session, in the foreground of a terminal or in the
    background. Commands that outlive their shell are in a session without leader, or are orphans of the
    agent: `agent` is its PID, and `app` the PID of the process that it started. Processes started by a kernel
    are in the kernel's group. `editor_kernels` are kernels that an editor has started itself.

    The processes of a command include its descendants, and those of all terminals: a loop of a shell starts
    its commands one after another.
    """
    own_session = table[agent][5] if agent in table else 0
    members: dict[tuple[int, int], list[int]] = {}
    groups = set()
    for pid in pids:
        row = table[pid]
        group, session = row[4], row[5]
        members.setdefault((session, group), []).append(pid)
        orphaned = row[0] == agent and pid != app
        detached = session not in table or orphaned
        if session == own_session or not (group != session or detached):
            continue
        if not (detached and ADAPTER in command_line(pid)):
            groups.add((session, group))
    viewers = set()
    monitors: set[int] = set()
    for key in list(groups):
        lines = {pid: command_line(pid) for pid in members[key]}
        own = {pid for pid, line in lines.items() if is_monitor(line)}
        shown = own | {pid for pid in members[key] if table[pid][0] in own}
        shown |= {pid for pid in members[key] if table[pid][0] in shown}
        if shown == set(members[key]):
            groups.remove(key)
            viewers.update(members[key])
            # When a monitor started by another one ends, its CPU time counts for the other: omit it here.
            monitors.update(pid for pid in own if table[pid][0] not in own)
        elif all(is_placeholder(line) for line in lines.values()):
            groups.remove(key)
        elif {program_of(line) for line in lines.values()} <= MULTIPLEXERS:
            viewers.update(members[key])
            inside = [pid for pid in pids if table[pid][0] in members[key] and pid not in members[key]]
            if all(is_prompt(command_line(pid)) for pid in inside):
                groups.remove(key)
    kernels = {pid: command for pid in pids if (command := kernel_command(pid, table, app))}
    kernels.update((pid, command_line(pid)) for pid in editor_kernels if pid in table)
    started = set()
    for pid in pids:
        row = table[pid]
        if row[0] in kernels and row[4:6] == table[row[0]][4:6] and (row[5], row[4]) not in groups:
            command = command_line(pid)
            of_kernel = command == kernels[row[0]] or any(marker in command for marker in (*WORKERS, ADAPTER))
            if not command or of_kernel or is_placeholder(command):
                continue
            if is_monitor(command):
                monitors.add(pid)
            else:
                started.add(pid)
    commands = with_descendants({pid for key in groups for pid in members[key]} | started, table)
    commands.update(pid for pid in pids if table[pid][6])
    commands -= viewers
    waiting = {pid for pid in kernels if not table[pid][6]} - viewers
    viewed = {table[pid][6] for pid in viewers} - {0}
    kernel_pids = with_descendants(waiting, table) - commands - monitors
    separate = [set(members[key]) for key in groups] + [{pid} for pid in started]
    return Jobs(separate, commands, kernel_pids, monitors, viewed)


def editor_pids(pids: list[int], table: Table, app: int) -> set[int]:
    """Return VS Code's server, `app` and its own children, without processes started for users."""
    own = {app, *(pid for pid in pids if table[pid][0] == app)}
    return {pid for pid in pids if pid in own or any(mark in command_line(pid) for mark in EDITOR_PROCESSES)}


def with_descendants(pids: set[int], table: Table) -> set[int]:
    return pids.union(*(descendants(pid, table) for pid in pids))


def kernel_command(pid: int, table: Table, app: int) -> bytes:
    """Return the command line of a possible kernel, otherwise an empty one.

    Jupyter's kernels lead a session; marimo's are processes that Python started for its server.
    """
    row = table[pid]
    if pid == app:
        return b""
    if row[5] == pid:
        return command_line(pid)
    command = command_line(pid) if row[0] == app else b""
    return command if b"multiprocessing" in command else b""


class Meter:
    """CPU time and I/O of processes. Both only grow, although processes end.

    `io_bytes` is None after a measurement in which that of some process was unreadable.
    """

    def __init__(self) -> None:
        self.seen: dict[int, tuple[int, int]] = {}
        self.ticks = 0
        self.bytes = 0
        self.io_bytes: int | None = 0

    def measure(self, pids: set[int], table: Table) -> None:
        """Add the use of the processes since the last call."""
        seen, readable = {}, True
        for pid in pids:
            ticks = table[pid][2]
            ticks_before, bytes_before = self.seen.get(pid, (0, 0))
            if ticks < ticks_before:
                ticks_before = bytes_before = 0  # another process
            io_bytes = bytes_before
            try:
                io_bytes = io_bytes_of(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
            except (OSError, ValueError, KeyError):
                readable = False
            self.ticks += ticks - ticks_before
            self.bytes += max(io_bytes - bytes_before, 0)
            seen[pid] = (ticks, io_bytes)
        self.seen = seen
        self.io_bytes = self.bytes if readable else None

    def cpu_seconds(self) -> float:
        return round(self.ticks / CLOCK_TICKS, 2)


def io_bytes_of(pid: int) -> int:
    """Return the bytes that a process has read and written, caches included. Raises `OSError`."""
    with open("/proc/%d/io" % pid, "rb") as handle:
        lines = dict(line.split(b":") for line in handle.read().splitlines())
    return int(lines[b"rchar"]) + int(lines[b"wchar"])


def with_own_time(pids: set[int], table: Table) -> Table:
    """Return rows of these processes with their own CPU ticks, without those of children that have ended."""
    rows = {}
    for pid in pids:
        text = read_text("/proc/%d/stat" % pid)
        if text:
            fields = text[text.rfind(")") + 2 :].split()
            rows[pid] = (*table[pid][:2], int(fields[11]) + int(fields[12]), *table[pid][3:])
    return rows
