"""Processes by identity (PID, start time and boot), never by PID alone; Linux only.

Each process of a workspace carries its markers in its environment: BERTH_INSTANCE (which Berth on this
machine), BERTH_WORKSPACE (the external name), BERTH_GENERATION, and BERTH_ROLE=agent on the agent. Where
the sandbox was a spare before (`spares.py`), its first processes carry BERTH_SPARE, the spare's id,
instead of the workspace's markers. A scan of /proc for them is the last word on what still runs, whatever
the records say.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PROC = Path("/proc")
NO_SPARES: Mapping[str, tuple[str, int]] = {}


@dataclass(frozen=True, slots=True)
class Owned:
    """One live process of a workspace. `start_ticks` is field 22 of its stat file."""

    pid: int
    start_ticks: int
    workspace: str
    generation: int
    is_agent: bool
    is_namespace_init: bool


@cache
def boot_id() -> str:
    """Identifies this boot of the machine."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int) -> int | None:
    """When `pid` was started, in clock ticks since boot; None when it is gone or a zombie."""
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in ("Z", "X") else None


def scan(
    instance: str, workspace: str = "", *, spares: Mapping[str, tuple[str, int]] = NO_SPARES
) -> tuple[Owned, ...]:
    """Every live process that carries `instance`'s marker, of `workspace` or of all workspaces.

    `spares` says which workspace and generation have taken over a spare, by the spare's id; processes of
    other spares belong to no workspace. Descendants that dropped their environment are found through their
    parents. Processes of other users cannot be read and are none of ours. What an agent has just forked has
    the agent's environment until it becomes its own program; it is not an agent.
    """
    marker = f"BERTH_INSTANCE={instance}".encode()
    marked: dict[int, tuple[str, int, bool]] = {}
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in os.listdir(PROC):  # noqa: PTH208 - names are all that is wanted, and there are many
        if not entry.isdigit():
            continue
        pid = int(entry)
        fields = _stat(pid)
        if not fields or fields[0] in ("Z", "X"):
            continue
        parents[pid] = int(fields[1])
        ticks[pid] = int(fields[19])
        try:
            environ = (PROC / entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if marker in environ:
            values = dict(
                item.split(b"=", 1) for item in environ if item.startswith(b"BERTH_") and b"=" in item
            )
            name = values.get(b"BERTH_WORKSPACE", b"").decode("utf-8", "replace")
            number = values.get(b"BERTH_GENERATION", b"0")
            generation = int(number) if number.isdigit() else 0
            if not name:
                spare = values.get(b"BERTH_SPARE", b"").decode("utf-8", "replace")
                name, generation = spares.get(spare, ("", 0))
            if name:
                marked[pid] = (name, generation, values.get(b"BERTH_ROLE") == b"agent")
    agents = {pid for pid, (_, _, is_agent) in marked.items() if is_agent}
    for pid in agents:
        if parents[pid] in agents:
            marked[pid] = (*marked[pid][:2], False)
    for pid in parents:
        chain: list[int] = []
        current = pid
        while current in parents and current not in marked and len(chain) < 64:
            chain.append(current)
            current = parents[current]
        if current in marked:
            name, number_, _ = marked[current]
            for child in chain:
                marked[child] = (name, number_, False)
    return tuple(
        Owned(pid, ticks[pid], name, generation, is_agent, is_namespace_init(pid))
        for pid, (name, generation, is_agent) in sorted(marked.items())
        if not workspace or name == workspace
    )


def send(process: Owned | tuple[int, int], number: signal.Signals) -> bool:
    """Signal exactly this process; False when it is gone, also when its PID serves another now."""
    pid, ticks = (process.pid, process.start_ticks) if isinstance(process, Owned) else process
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if start_ticks(pid) != ticks:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def kill(found: Iterable[Owned], extra_pids: Iterable[int] = ()) -> None:
    """SIGKILL to all: first the inits of PID namespaces, with which everything inside them ends."""
    ordered = sorted(found, key=lambda process: not process.is_namespace_init)
    for process in ordered:
        send(process, signal.SIGKILL)
    known = {process.pid for process in ordered}
    for pid in extra_pids:
        ticks = start_ticks(pid)
        if pid not in known and ticks is not None:
            send((pid, ticks), signal.SIGKILL)


def _stat(pid: int) -> list[str] | None:
    """The fields of the stat file after the program's name: state, parent, …"""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text[text.rfind(")") + 2 :].split()


def is_namespace_init(pid: int) -> bool:
    """True for PID 1 of a nested PID namespace."""
    try:
        status = (PROC / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return False
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            numbers = line.split()[1:]
            return len(numbers) > 1 and numbers[-1] == "1"
    return False
