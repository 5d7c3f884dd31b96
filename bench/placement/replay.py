"""Replay one workload: requests arrive one by one, are placed or dropped, and never leave.

Each request follows the same path as in the portal (`site`). By default the mix is learnt while requests
arrive, with the portal's functions and after the same number of requests as in the portal.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.placement.site import DEFAULT_LAYOUT, EngineAlone, Layout, Site, pools_of, set_mix
from bench.placement.traces import Workload
from portal.catalog.initial_catalog import FLAVORS
from portal.catalog.services import accelerator_sizes
from portal.scheduling.engine.placement.engine import DEFAULT_MIX, RequestMix
from portal.scheduling.engine.placement.mix import MAX_LEARN_AFTER, WINDOW, Shape, is_learning_due
from portal.scheduling.engine.placement.scoring.tables import FragmentationTable
from portal.scheduling.engine.placement.types import NodeCapacity
from portal.scheduling.pool_nodes import PoolNodes
from provisioning.types import AcceleratorRequest, ResourceRequest

MIXES = {
    "learnt": "as in the portal: the catalog of the cluster, then learnt from the requests as they arrive",
    "catalog": "what the portal's catalog of the cluster offers, never learnt",
    "default": "the built-in one, never learnt",
    "known": "all requests of the workload, known beforehand",
}

VERDICT_EVERY = 50


@dataclass(slots=True)
class Curve:
    """Allocation and fragmentation in percent of the cluster's GPUs, by arrived percent."""

    allocation: dict[int, float] = field(default_factory=dict)
    fragmentation: dict[int, float] = field(default_factory=dict)
    placed: int = 0
    decision_s: list[float] = field(default_factory=list, repr=False)


class FragmentationMeter:
    """The published measure of fragmentation, independent of the engine's: CPU and GPU, without memory."""

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
        """Return the milli-GPUs that are fragments now."""
        return self.total / self._table.total_weight

    def _measure(self, rows: np.ndarray) -> np.ndarray:
        free = self._free[rows]
        kind = np.broadcast_to(self._kind[rows], free.shape)
        memory = np.zeros(len(rows), np.int64)
        return self._table.loss(kind, self._cpu[rows], memory, free, uniform=True)


class Learner:
    """The mix of one replay, kept like a pool's in `portal.scheduling.request_mix`."""

    def __init__(self, nodes: Sequence[NodeCapacity], workload: Workload, kind: str = "learnt") -> None:
        self._offered = catalog_flavors(nodes)
        self._learns = kind == "learnt"
        self._known = self._fresh = 0
        if kind == "known":
            self.mix = RequestMix.of(workload.past)
        elif kind == "default":
            self.mix = DEFAULT_MIX
        else:
            self.mix = RequestMix.learnt((), self._offered)

    def arrived(self, until: Sequence[ResourceRequest], pools: Collection[PoolNodes]) -> None:
        """Learn from the requests before `until`, which have all been decided."""
        self._fresh += 1
        if self._learns and is_learning_due(self._known, self._fresh):
            self._known, self._fresh = len(until), 0
            self.mix = RequestMix.learnt(until, self._offered)
        elif not self._learns and self._fresh >= MAX_LEARN_AFTER:
            self._fresh = 0
        else:
            return
        set_mix(pools, self.mix)


def catalog_flavors(nodes: Sequence[NodeCapacity]) -> list[ResourceRequest]:
    """Return the flavors that the portal's catalog creates automatically for these nodes."""
    flavors = [ResourceRequest(item["cpu_milli"], item["memory_mib"]) for item in FLAVORS]
    largest: dict[str, NodeCapacity] = {}
    for node in sorted(nodes, key=lambda node: (-len(node.devices), -node.cpu_milli, -node.memory_mib)):
        if node.devices:
            largest.setdefault(node.devices[0].model, node)
    for model, node in sorted(largest.items()):
        for count, cpu, memory in accelerator_sizes(len(node.devices), node.cpu_milli, node.memory_mib):
            accelerators = AcceleratorRequest(count=count, model=model)
            flavors.append(ResourceRequest(cpu, memory, accelerators=accelerators))
    return flavors


def replay(
    nodes: Sequence[NodeCapacity],
    workload: Workload,
    policy: str,
    *,
    measure: bool = True,
    mix: str = "learnt",
    layout: Layout = DEFAULT_LAYOUT,
) -> Curve:
    """Replay as the portal decides, with one of `MIXES`; time each decision with its bookkeeping.

    Every `VERDICT_EVERY`th request is previewed first. Raises `AssertionError` if its result differs.
    """
    learner = Learner(nodes, workload, mix)
    pools = pools_of(nodes, learner.mix, policy=policy, layout=layout)
    site = EngineAlone(pools) if layout.engine_alone else Site(pools)
    meter = FragmentationMeter(nodes, workload.past) if measure else None
    capacity = sum(device.free_milli for node in nodes for device in node.devices)
    arrived = granted = 0
    curve = Curve()
    allocation: dict[int, list[float]] = defaultdict(list)
    fragmentation: dict[int, list[float]] = defaultdict(list)
    for place, request in enumerate(workload.arrivals, 1):
        accelerators = request.accelerators
        predicted = site.preview(request) if place % VERDICT_EVERY == 0 else None
        begun = time.perf_counter()
        parts = site.submit(request)
        curve.decision_s.append(time.perf_counter() - begun)
        assert predicted is None or predicted == parts, "a preview is what a creation gets"
        learner.arrived(workload.arrivals[max(0, place - WINDOW) : place], site.pools.values())
        arrived += accelerators.count * accelerators.share_milli
        if parts:
            curve.placed += 1
            for part in parts:
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
    """Return the most popular 95 % of the shapes, without memory, as in the published measure."""
    bare = [ResourceRequest(request.cpu_milli, 0, accelerators=request.accelerators) for request in past]
    typical: list[tuple[Shape, int]] = []
    for shape, weight in RequestMix.of(bare).shapes:
        if sum(count for _, count in typical) >= 0.95 * len(past):
            break
        typical.append((shape, weight))
    return typical
