"""Which GPUs are close: NVLink islands, and where each stands on PCIe and NUMA."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_BUS_ID = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# Stands for a switch that does not say where it is: there is one fabric in a machine.
SOME_SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class PciPlace:
    """`root` is the host bridge (`pci0000:16`), `switch` the nearest PCIe switch above (empty: none)."""

    numa: int = -1
    root: str = ""
    switch: str = ""


@dataclass(frozen=True, slots=True)
class Links:
    """NVLinks of one GPU: how many work, how many there are, and who is at the other ends (PCI bus ids)."""

    active: int = 0
    total: int = 0
    peers: tuple[str, ...] = ()
    switched: bool = False


def islands(links: Mapping[str, Links]) -> dict[str, str]:
    """PCI bus id → name of its island, for the GPUs that share one with another GPU.

    GPUs belong together when links join them, directly or through switches. The name is stable as long
    as the first GPU of the island stays: `nvlink-` and that GPU's bus id.
    """
    leader = {bus: bus for bus in links}

    def find(bus: str) -> str:
        while leader.setdefault(bus, bus) != bus:
            leader[bus] = leader[leader[bus]]
            bus = leader[bus]
        return bus

    for bus, own in links.items():
        for peer in own.peers:
            leader[find(peer)] = find(bus)
    members: dict[str, list[str]] = {}
    for bus in links:
        members.setdefault(find(bus), []).append(bus)
    return {bus: f"nvlink-{min(group)}" for group in members.values() if len(group) > 1 for bus in group}


def pci_place(bus: str, root: Path = Path("/")) -> PciPlace:
    """Where the kernel has the device; empty where it does not say."""
    folder = root / "sys/bus/pci/devices" / bus
    try:
        numa = int((folder / "numa_node").read_text())
    except (OSError, ValueError):
        numa = -1
    try:
        parts = folder.resolve(strict=True).parts
    except OSError:
        return PciPlace(numa)
    roots = [part for part in parts if part.startswith("pci") and ":" in part]
    above = [part for part in parts if _BUS_ID.fullmatch(part)][:-1]
    # Root port, upstream port, downstream port: with fewer there is no switch in between.
    switch = above[-2] if len(above) >= 3 else ""
    return PciPlace(numa, roots[0] if roots else "", switch)
