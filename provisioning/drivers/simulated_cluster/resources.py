"""Free resources of a simulated cluster's nodes."""

from __future__ import annotations

from typing import Protocol

from provisioning.drivers.simulated_cluster.script import Hardware

Placed = tuple[tuple[int, tuple[int, ...]], ...]
"""Indexes of nodes, each with indexes of its GPUs."""


class Request(Protocol):
    """Resources per node, on `nodes` nodes, and where they were granted."""

    @property
    def nodes(self) -> int: ...
    @property
    def gpus(self) -> int: ...
    @property
    def cpu_milli(self) -> int: ...
    @property
    def memory_mib(self) -> int: ...
    @property
    def disk_mib(self) -> int: ...
    @property
    def placed(self) -> Placed: ...


class FreeResources:
    """Free resources by node. Nodes and GPUs that a changed configuration lacks are ignored."""

    def __init__(self, hardware: Hardware) -> None:
        self._gpus = hardware.gpus
        self._units = [list(range(hardware.gpus)) for _ in range(hardware.nodes)]
        amounts = (hardware.cpu_milli, hardware.memory_mib, hardware.disk_mib)
        self._amounts = [amounts] * hardware.nodes
        self._free_units = hardware.nodes * hardware.gpus

    def place_for(self, job: Request) -> Placed | None:
        """Return the first nodes and GPUs on which `job` fits, or None."""
        if job.nodes * job.gpus > self._free_units:
            return None
        placed: list[tuple[int, tuple[int, ...]]] = []
        for node, units in enumerate(self._units):
            cpu_milli, memory_mib, disk_mib = self._amounts[node]
            if (
                len(units) >= job.gpus
                and cpu_milli >= job.cpu_milli
                and memory_mib >= job.memory_mib
                and disk_mib >= job.disk_mib
            ):
                placed.append((node, tuple(units[: job.gpus])))
                if len(placed) == job.nodes:
                    return tuple(placed)
        return None

    def change(self, job: Request, sign: int) -> None:
        """Release the resources of `job` (`sign` 1), or take them (-1)."""
        for node, units in job.placed:
            if node >= len(self._units):
                continue
            cpu_milli, memory_mib, disk_mib = self._amounts[node]
            self._amounts[node] = (
                cpu_milli + sign * job.cpu_milli,
                memory_mib + sign * job.memory_mib,
                disk_mib + sign * job.disk_mib,
            )
            before = self._units[node]
            existing = {unit for unit in units if unit < self._gpus}
            after = sorted({*before} | existing if sign > 0 else {*before} - existing)
            self._units[node] = after
            self._free_units += len(after) - len(before)
