"""What tests ask of processes through /proc."""

from __future__ import annotations

from pathlib import Path

from provisioning.drivers.local import processes


def alive(pid: int) -> bool:
    return processes.start_ticks(pid) is not None


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def open_ends(pid: int) -> set[str]:
    """The pipes and sockets that a process holds, by the kernel's names for them."""
    found = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(path.readlink())
        except OSError:
            continue
        if target.startswith(("pipe:", "socket:")):
            found.add(target)
    return found


def contents(pid: int, *words: str) -> list[str]:
    """Which of `words` are anywhere in the writable memory of a process."""
    found = set()
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
            found |= {word for word in words if word.encode() in data}
    return sorted(found)
