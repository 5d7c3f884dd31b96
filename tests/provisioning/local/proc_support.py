"""Queries about processes through /proc."""

from __future__ import annotations

import contextlib
from pathlib import Path

from provisioning.drivers.local import processes


def alive(pid: int) -> bool:
    return processes.start_ticks(pid) is not None


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def open_descriptors(pid: int) -> set[str]:
    """Return all open descriptors of a process, by kernel names."""
    names = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            names.add(str(path.readlink()))
    return names


def open_ends(pid: int) -> set[str]:
    """Return the pipes and sockets of a process, by kernel names."""
    return {target for target in open_descriptors(pid) if target.startswith(("pipe:", "socket:"))}


def contents(pid: int, *words: str) -> list[str]:
    """Return which of `words` are in the writable memory of a process."""
    matches = set()
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            if not rights.startswith("rw"):
                continue
            first, last = (int(part, 16) for part in span.split("-"))
            try:
                memory.seek(first)
                data = memory.read(last - first)
            except OSError:
                continue
            matches |= {word for word in words if word.encode() in data}
    return sorted(matches)
