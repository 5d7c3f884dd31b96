"""Processes of this PID namespace, read from /proc."""

# ruff: noqa: PTH123, PTH208, UP031

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    Table = dict[int, tuple[int, str, int, int, int, int, int]]


def read_text(path: str) -> str | None:
    """Return the content of a small file, or None."""
    try:
        with open(path, "rb") as handle:
            return handle.read().decode("utf-8", "replace")
    except OSError:
        return None


def process_table() -> Table:
    """Return {pid: (parent, state, CPU ticks, resident pages, group, session, terminal)}."""
    table = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            text = read_text("/proc/%s/stat" % entry)
            if text:
                fields = text[text.rfind(")") + 2 :].split()
                ticks = int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])
                table[int(entry)] = (
                    int(fields[1]),
                    fields[0],
                    ticks,
                    int(fields[21]),
                    int(fields[2]),
                    int(fields[3]),
                    int(fields[4]),
                )
    return table


def descendants(root: int, table: Table) -> list[int]:
    """Return live descendants of `root` in any session or group."""
    children: dict[int, list[int]] = {}
    for pid, row in table.items():
        if row[1] not in "ZX":
            children.setdefault(row[0], []).append(pid)
    pids: list[int] = []
    queue = [root]
    while queue:
        for child in children.get(queue.pop(), ()):
            pids.append(child)
            queue.append(child)
    return pids


def command_line(pid: int) -> bytes:
    """Return the arguments of a process, each terminated by NUL; empty if it has ended."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as handle:
            return handle.read(65536)
    except OSError:
        return b""
