"""Checks on one machine that would spoil each other's figures take turns, and copy from memory that is near.

The turns are locks on files, which the kernel gives back when their holder dies. Nobody waits for ever: who
does not get a turn has not measured, and that is no pass.
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
LOOK_S = 0.05
# Probes whose point is a figure, and those that need all of the way to the host.
MEASURING = frozenset({"copy", "memory", "pcie", "peers", "all_pairs", "all_reduce", "two_nodes", "burn"})
OVER_PCIE = frozenset({"pcie", "peers", "two_nodes"})
# They load the links of several devices, where no NVLink is those over PCIe, below other switches as well.
ALONE = frozenset({"all_pairs", "all_reduce"})


@dataclass(frozen=True, slots=True)
class Turn:
    """A lock by its name. Several may hold one that is not `alone`, as long as nobody has it alone."""

    name: str
    alone: bool


def folder() -> Path | None:
    """The same for all checks of one user on this machine; None where there can be none."""
    base = os.environ.get("BERTH_HOME") or tempfile.gettempdir()
    found = Path(base) / f"gpu-turns-{os.getuid()}"
    try:
        found.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return found


def turns_for(probe: str, link: str, *, alone: bool) -> tuple[Turn, ...]:
    """What a probe has to hold. `link`: what its device shares; `alone`: no other check measures then."""
    if probe not in MEASURING:
        return ()
    found = [Turn("measure", alone or probe in ALONE)]
    if probe in OVER_PCIE and link:
        found.append(Turn(f"link-{link.replace(':', '_')}", True))
    return tuple(found)


def shared_link(bus: str, root: Path = Path("/")) -> str:
    """The nearest PCIe switch above a device, else its root; the device itself where nothing is known."""
    place = pci_place(bus, root)
    return place.switch or place.root or bus


def near_cpus(bus: str, root: Path = Path("/")) -> tuple[int, ...]:
    """The CPUs of the device's NUMA node; none where the kernel does not say."""
    try:
        return tuple(cpu_list((root / "sys/bus/pci/devices" / bus / "local_cpulist").read_text()))
    except OSError:
        return ()


@contextmanager
def holding(where: Path, turns: Sequence[Turn], *, wait_s: float = WAIT_S) -> Iterator[bool]:
    """Hold all of `turns` for the length of the block; false where that took longer than `wait_s`."""
    until = time.monotonic() + wait_s
    with ExitStack() as stack:
        got = True
        for turn in turns:
            file = stack.enter_context((where / turn.name).open("a"))
            got = _lock(file.fileno(), turn.alone, until)
            if not got:
                break
        yield got


def _lock(file: int, alone: bool, until: float) -> bool:
    how = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    while True:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(LOOK_S)
        else:
            return True


@contextmanager
def near(cpus: Collection[int]) -> Iterator[bool]:
    """Run on these CPUs, as far as they may be used; whether that was so. Memory is then theirs as well."""
    before = os.sched_getaffinity(0)
    wanted = set(cpus) & before
    moved = False
    if wanted:
        with suppress(OSError):
            os.sched_setaffinity(0, wanted)
            moved = True
    try:
        yield moved
    finally:
        if moved:
            with suppress(OSError):
                os.sched_setaffinity(0, before)
