"""Commands that only listen: servers without a connection."""

# ruff: noqa: PTH115, PTH208, UP031

from __future__ import annotations

import os

from .processes import descendants, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .processes import Table

    Connections = dict[str, tuple[str, str, str]]

LISTENS, ESTABLISHED = "0A", "01"


def unused_servers(commands: list[set[int]], table: Table) -> int | None:
    """Return how many of these commands listen on TCP ports and have no connection; None if unknown.

    Connections between processes of the same command do not count: workers of a server talk to each other.
    """
    connections = tcp_connections()
    if connections is None:
        return None
    count = 0
    for pids in commands:
        own = [connections[inode] for inode in sockets_of(pids, table) if inode in connections]
        ends = {local for state, local, _remote in own if state == ESTABLISHED}
        used = any(state == ESTABLISHED and remote not in ends for state, _local, remote in own)
        count += not used and any(state == LISTENS for state, _local, _remote in own)
    return count


def tcp_connections() -> Connections | None:
    """Return (state, local end, remote end) of TCP sockets by inode, ends as the kernel writes them."""
    connections: Connections = {}
    readable = False
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        text = read_text(path)
        if text is None:
            continue
        readable = True
        for line in text.splitlines()[1:]:
            fields = line.split()
            connections[fields[9]] = (fields[3], fields[1], fields[2])
    return connections if readable else None


def sockets_of(pids: set[int], table: Table) -> set[str]:
    """Return the inodes of the sockets of these processes and their descendants."""
    inodes = set()
    for pid in pids.union(*(descendants(pid, table) for pid in pids)):
        try:
            entries = os.listdir("/proc/%d/fd" % pid)
        except OSError:
            continue
        for entry in entries:
            try:
                target = os.readlink("/proc/%d/fd/%s" % (pid, entry))
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    return inodes
