"""Detects processes that are running commands."""

from __future__ import annotations

from .processes import command_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .processes import Table

WORKERS = (b"multiprocessing", b"loky")
"""Command lines of worker processes that a program keeps even when idle."""
ADAPTER = b"debugpy/adapter"
"""Command line of the process that remains beside a kernel after a debugger was attached. A user in a
debugger is busy."""


def jobs_of(pids: list[int], table: Table, agent: int, app: int) -> int:
    """Return the number of running commands, not counting shells, kernels and the app.

    A shell gives each command its own process group in its session, in the foreground of a terminal or in the
    background. Commands that outlive their shell are in a session without leader, or are orphans of the
    agent: `agent` is its PID, and `app` the PID of the process that it started. Processes started by a kernel
    are in the kernel's group.
    """
    own_session = table[agent][5] if agent in table else 0
    groups = set()
    for pid in pids:
        row = table[pid]
        group, session = row[4], row[5]
        orphaned = row[0] == agent and pid != app
        detached = session not in table or orphaned
        if session == own_session or not (group != session or detached):
            continue
        if not (detached and ADAPTER in command_line(pid)):
            groups.add((session, group))
    kernels = {pid: command for pid in pids if (command := kernel_command(pid, table, app))}
    started = 0
    for pid in pids:
        row = table[pid]
        if row[0] in kernels and row[4:6] == table[row[0]][4:6] and (row[5], row[4]) not in groups:
            command = command_line(pid)
            own = command == kernels[row[0]] or any(marker in command for marker in (*WORKERS, ADAPTER))
            started += bool(command) and not own
    return len(groups) + started


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
