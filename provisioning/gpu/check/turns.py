"""Serialise checks on one machine that would distort each other's measurements, near their device's memory.

Turns are file locks, which the kernel releases if their holder dies. Waits are limited: a check without a
turn has not measured, which is not a pass.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from provisioning.gpu.host import cpu_list
from provisioning.gpu.topology import pci_place

WAIT_S = 60.0
POLL_INTERVAL_S = 0.05
# Probes that measure, and those that need the full bandwidth to the host.
MEASURING = frozenset(
    {"copy", "memory", "pcie", "peers", "all_pairs", "all_reduce", "two_nodes", "burn", "joint_burn"}
)
PCIE_PROBES = frozenset({"pcie", "peers", "two_nodes"})
# These load several devices or their links; without NVLink also PCIe links below other switches.
EXCLUSIVE_PROBES = frozenset({"all_pairs", "all_reduce", "joint_burn"})


@dataclass(frozen=True, slots=True)
class NamedLock:
    """A named lock. Without `alone` several can hold it, as long as no one holds it alone."""

    name: str
    alone: bool


def folder() -> Path | None:
    """Return the folder shared by all checks of one user on this machine; None if it cannot be created."""
    base = os.environ.get("BERTH_HOME") or tempfile.gettempdir()
    path = Path(base) / f"gpu-turns-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return path


def turns_for(probe: str, link: str, *, alone: bool) -> tuple[NamedLock, ...]:
    """Return the locks that a probe needs.

    `link`: the link that its device shares; `alone`: no other check may measure meanwhile.
    """
    if probe not in MEASURING:
        return ()
    turns = [NamedLock("measure", alone or probe in EXCLUSIVE_PROBES)]
    if probe in PCIE_PROBES and link:
        turns.append(NamedLock(f"link-{link.replace(':', '_')}", True))
    return tuple(turns)


def shared_link(bus: str, root: Path = Path("/")) -> str:
    """Return the nearest PCIe switch above a device, else its root; the device itself if unknown."""
    place = pci_place(bus, root)
    return place.switch or place.root or bus


def near_cpus(bus: str, root: Path = Path("/")) -> tuple[int, ...]:
    """Return the CPUs of the device's NUMA node; empty if unknown."""
    try:
        return tuple(cpu_list((root / "sys/bus/pci/devices" / bus / "local_cpulist").read_text()))
    except OSError:
        return ()


@contextmanager
def hold_turns(where: Path, turns: Sequence[NamedLock], *, wait_s: float = WAIT_S) -> Iterator[bool]:
    """Hold all `turns` during the block; yield False if that takes longer than `wait_s`."""
    until = time.monotonic() + wait_s
    with ExitStack() as stack:
        acquired = True
        for turn in turns:
            file = stack.enter_context((where / turn.name).open("a"))
            acquired = _lock(file.fileno(), turn.alone, until)
            if not acquired:
                break
        yield acquired


def _lock(file: int, alone: bool, until: float) -> bool:
    lock_mode = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    while True:
        try:
            fcntl.flock(file, lock_mode | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(POLL_INTERVAL_S)
        else:
            return True


@contextmanager
def on_cpus(cpus: Collection[int]) -> Iterator[bool]:
    """Run on these CPUs, if allowed; yield whether that succeeded. Memory is then allocated there too."""
    before = os.sched_getaffinity(0)
    allowed = set(cpus) & before
    moved = False
    if allowed:
        with suppress(OSError):
            os.sched_setaffinity(0, allowed)
            moved = True
    try:
        yield moved
    finally:
        if moved:
            with suppress(OSError):
                os.sched_setaffinity(0, before)
