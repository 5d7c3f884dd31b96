"""Inspects processes through /proc: identity, ownership, and ports."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from provisioning.service.environ import MARKER

WORKSPACE_MARKER = "BERTH_WORKSPACE"
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ServiceLeftover:
    """A running process that an earlier supervisor of this instance started."""

    pid: int
    service: str


def started_at(pid: int) -> int | None:
    """Return the process's start time in clock ticks since boot, or None if it does not exist.

    Together with the PID it identifies a process: a PID alone may have been reused.
    """
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] in {"Z", "X"}:
        return None
    return int(fields[19])


def boot_id() -> str:
    """Return an ID that differs after each boot of the machine."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def environ_of(pid: int) -> dict[str, str]:
    """Return the initial environment of a process; empty if it has ended or is not readable."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (part.partition(b"=") for part in raw.split(b"\0") if part)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def leftovers(instance_id: str) -> list[ServiceLeftover]:
    """Return service processes of this instance except this one. Never includes workspaces."""
    processes = []
    for entry in PROC.iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        service = _service_of(int(entry.name), instance_id)
        if service:
            processes.append(ServiceLeftover(int(entry.name), service))
    return sorted(processes, key=lambda leftover: leftover.pid)


def _service_of(pid: int, instance_id: str) -> str:
    environ = environ_of(pid)
    owner, _, service = environ.get(MARKER, "").partition(":")
    return service if owner == instance_id and WORKSPACE_MARKER not in environ else ""


def end(leftover: Iterable[ServiceLeftover], instance_id: str, *, grace_s: float = 5.0) -> None:
    """End these processes: with SIGTERM, then SIGKILL after `grace_s`. Returns when all have ended."""
    handles: dict[int, int] = {}
    try:
        for process in leftover:
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(process.pid)
                handles[handle] = process.pid
                # Checked again after opening the pidfd, so the PID cannot have been reused.
                if not _service_of(process.pid, instance_id):
                    os.close(handle)
                    del handles[handle]
        for kind, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10.0)):
            for handle in list(handles):
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(handle, kind)
                    # A suspended process would not receive the signal.
                    signal.pidfd_send_signal(handle, signal.SIGCONT)
            deadline = time.monotonic() + wait_s
            while handles and (remaining := deadline - time.monotonic()) > 0:
                ended, _, _ = select.select(list(handles), [], [], remaining)
                for handle in ended:
                    os.close(handle)
                    del handles[handle]
    finally:
        for handle in handles:
            os.close(handle)


def port_is_free(address: str, port: int) -> bool:
    """Return whether this user can listen there. Raises `PermissionError` for a privileged port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except PermissionError:
            raise
        except OSError:
            return False
    return True


def holder_of(port: int) -> str:
    """Describe the process that listens on `port`, as far as this user may see it."""
    inodes = set()
    for table in ("net/tcp", "net/tcp6"):
        with contextlib.suppress(OSError):
            for line in (PROC / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    for entry in PROC.iterdir():
        if not entry.name.isdecimal() or not inodes:
            continue
        with contextlib.suppress(OSError):
            for handle in (entry / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(handle.readlink()) in inodes:
                        name = (entry / "comm").read_text().strip()
                        return f"{name} (process {entry.name})"
    return "another program"
