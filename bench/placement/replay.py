"""Replays one workload: requests arrive one by one, are placed or dropped, and never leave."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.placement.traces import Workload
from portal.scheduling.engine.placement.engine import Cluster, RequestMix
from portal.scheduling.engine.placement.mix import Shape
from portal.scheduling.engine.placement.scoring.tables import FragmentationTable
from portal.scheduling.engine.placement.types import NodeCapacity
from provisioning.types import ResourceRequest


@dataclass(slots=True)
class Curve:
    """Allocation and fragmentation in percent of the cluster's GPUs, by arrived percent."""

    allocation: dict[int, float] = field(default_factory=dict)
    fragmentation: dict[int, float] = field(default_factory=dict)
    placed: int = 0
    decision_s: list[float] = field(default_factory=list, repr=False)


class FragmentationMeter:
    """The published measure of fragmentation, apart from the engine's own: CPU and GPU, no memory."""

    def __init__(self, nodes: Sequence[NodeCapacity], past: Sequence[ResourceRequest]) -> None:
        self._index = {node.name: row for row, node in enumerate(nodes)}
        classes = sorted({(0, device.model) for node in nodes for device in node.devices})
        kinds = {model: place for place, (_, model) in enumerate(classes)}
        width = max(len(node.devices) for node in nodes)
        self._kind = np.array([[kinds[node.devices[0].model] if node.devices else 0] for node in nodes])
        self._free = np.zeros((len(nodes), width), np.int64)
        self._cpu = np.array([node.free_cpu_milli for node in nodes])
        self._column = [{device.uuid: place for place, device in enumerate(node.devices)} for node in nodes]
        for row, node in enumerate(nodes):
            self._free[row, : len(node.devices)] = [device.free_milli for device in node.devices]
        typical = _typical(past)
        self._table = FragmentationTable(typical, classes, width)
        self._loss = self._measure(np.arange(len(nodes)))
        self.total = int(self._loss.sum())

    def take(self, node: str, cpu_milli: int, grants: Sequence[tuple[str, int]]) -> None:
        row = self._index[node]
        self._cpu[row] -= cpu_milli
        for uuid, milli in grants:
            self._free[row, self._column[row][uuid]] -= milli
        loss = self._measure(np.array([row]))
        self.total += int(loss[0] - self._loss[row])
        self._loss[row] = loss[0]

    @property
    def lost_milli(self) -> float:
        """Milli-GPUs that are fragments now."""
        return self.total / self._table.total_weight

    def _measure(self, rows: np.ndarray) -> np.ndarray:
        free = self._free[rows]
        kind = np.broadcast_to(self._kind[rows], free.shape)
        memory = np.zeros(len(rows), np.int64)
        return self._table.loss(kind, self._cpu[rows], memory, free, uniform=True)


def replay(nodes: Sequence[NodeCapacity], workload: Workload, policy: str, *, measure: bool = True) -> Curve:
    """Replay through the engine that the portal uses; times each decision with its bookkeeping."""
    cluster = Cluster(nodes, policy=policy, mix=RequestMix.of(workload.past))
    meter = FragmentationMeter(nodes, workload.past) if measure else None
    capacity = sum(device.free_milli for node in nodes for device in node.devices)
    arrived = granted = 0
    curve = Curve()
    allocation: dict[int, list[float]] = defaultdict(list)
    fragmentation: dict[int, list[float]] = defaultdict(list)
    for request in workload.arrivals:
        wanted = request.accelerators
        begun = time.perf_counter()
        placement = cluster.find(request)
        if placement is not None:
            cluster.commit(placement, request)
        curve.decision_s.append(time.perf_counter() - begun)
        arrived += wanted.count * wanted.share_milli
        if placement is not None:
            curve.placed += 1
            for part in placement.nodes:
                grants = [(grant.uuid, grant.milli) for grant in part.devices]
                granted += sum(milli for _, milli in grants)
                if meter is not None:
                    meter.take(part.node, request.cpu_milli, grants)
        mark = round(100 * arrived / capacity)
        allocation[mark].append(100 * granted / capacity)
        if meter is not None:
            fragmentation[mark].append(100 * meter.lost_milli / capacity)
    curve.allocation = {mark: sum(values) / len(values) for mark, values in allocation.items()}
    curve.fragmentation = {mark: sum(values) / len(values) for mark, values in fragmentation.items()}
    return curve


def _typical(past: Sequence[ResourceRequest]) -> list[tuple[Shape, int]]:
    """The most popular 95 % of the shapes, without memory, as in the published measure."""
    bare = [ResourceRequest(request.cpu_milli, 0, accelerators=request.accelerators) for request in past]
    kept: list[tuple[Shape, int]] = []
    for shape, weight in RequestMix.of(bare).shapes:
        if sum(count for _, count in kept) >= 0.95 * len(past):
            break
        kept.append((shape, weight))
    return kept
