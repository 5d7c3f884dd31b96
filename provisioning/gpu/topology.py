"""Topology of GPUs: NVLink islands, and placement on PCIe and NUMA."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_BUS_ID = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# Stands for a switch of unknown address: a machine has one fabric.
SOME_SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class PciLocation:
    """`root` is the host bridge (`pci0000:16`), `switch` the nearest PCIe switch above (empty: none)."""

    numa: int = -1
    root: str = ""
    switch: str = ""


@dataclass(frozen=True, slots=True)
class NvlinkFacts:
    """NVLinks of one GPU: active ones, total, and the PCI bus ids of remote ends."""

    active: int = 0
    total: int = 0
    peers: tuple[str, ...] = ()
    switched: bool = False


def islands(links: Mapping[str, NvlinkFacts]) -> dict[str, str]:
    """Return island names by PCI bus id, for GPUs that share an island with another.

    GPUs belong together if links connect them, directly or through switches. The name is `nvlink-` and the
    bus id of the island's first GPU, so it is stable as long as that GPU stays.
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


def pci_place(bus: str, root: Path = Path("/")) -> PciLocation:
    """Return the device's location from the kernel; empty if unknown."""
    folder = root / "sys/bus/pci/devices" / bus
    try:
        numa = int((folder / "numa_node").read_text())
    except (OSError, ValueError):
        numa = -1
    try:
        parts = folder.resolve(strict=True).parts
    except OSError:
        return PciLocation(numa)
    roots = [part for part in parts if part.startswith("pci") and ":" in part]
    above = [part for part in parts if _BUS_ID.fullmatch(part)][:-1]
    # Root port, upstream port, downstream port: fewer means no switch.
    switch = above[-2] if len(above) >= 3 else ""
    return PciLocation(numa, roots[0] if roots else "", switch)
