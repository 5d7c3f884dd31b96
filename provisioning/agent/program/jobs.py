"""Which processes are commands that somebody waits for."""

from __future__ import annotations

from .processes import command_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .processes import Table

WORKERS = (b"multiprocessing", b"loky")
"""In the command lines of processes that a program keeps beside itself, with work and without."""
ADAPTER = b"debugpy/adapter"
"""Of the process that stays beside a kernel once a debugger was attached. Who stands in one is busy."""


def jobs_of(pids: list[int], table: Table, agent: int, app: int) -> int:
    """How many commands run beside the shells, kernels and the app that they were started from.

    A shell gives each command a process group of its own in its session, in the foreground of a terminal or
    in the background. What a shell has left behind is in a session whose leader is gone, or has come to the
    agent as an orphan: `agent` is its process, and `app` the one that it has started itself. What a kernel
    has started is in its own group.
    """
    own_session = table[agent][5] if agent in table else 0
    found = set()
    for pid in pids:
        row = table[pid]
        group, session = row[4], row[5]
        orphaned = row[0] == agent and pid != app
        left = session not in table or orphaned
        if session == own_session or not (group != session or left):
            continue
        if not (left and ADAPTER in command_line(pid)):
            found.add((session, group))
    kernels = {pid: command for pid in pids if (command := kernel_command(pid, table, app))}
    started = 0
    for pid in pids:
        row = table[pid]
        if row[0] in kernels and row[4:6] == table[row[0]][4:6] and (row[5], row[4]) not in found:
            command = command_line(pid)
            own = command == kernels[row[0]] or any(word in command for word in (*WORKERS, ADAPTER))
            started += bool(command) and not own
    return len(found) + started


def kernel_command(pid: int, table: Table, app: int) -> bytes:
    """The command line of what may be a kernel, else an empty one.

    Jupyter's lead a session; marimo's are processes that Python has made for its server.
    """
    row = table[pid]
    if pid == app:
        return b""
    if row[5] == pid:
        return command_line(pid)
    command = command_line(pid) if row[0] == app else b""
    return command if b"multiprocessing" in command else b""
