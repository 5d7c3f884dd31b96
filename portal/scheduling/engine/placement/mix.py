"""The request shapes that a cluster expects, with their popularity.

Fragmentation is measured against the mix: free capacity that no usual request can use has no value. A mix is
learnt from recent requests (`RequestMix.learnt`). A pool without history expects the catalog's flavors, or
`DEFAULT_MIX` if the catalog is empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provisioning.types import AcceleratorRequest, ResourceRequest

WINDOW = 2000
"""Number of latest requests that a mix is learnt from. All have the same weight."""
CATALOG_WEIGHT = 10
"""Weight of the catalog, in requests, while no requests exist. Fades out as requests arrive."""
LEARN_PERCENT = 25
MAX_LEARN_AFTER = 250
"""A mix is learnt again after this many new requests."""
SCARCITY_ONE = 16
"""Scarcity of a shape that can use all free capacity. Unit: 1/16."""
_KEEP_PERCENT = 99
_TOTAL_WEIGHT = 10_000


@dataclass(frozen=True, slots=True)
class Shape:
    """The part of a request that matters for fragmentation. Empty `models` means any model."""

    cpu_milli: int
    memory_mib: int
    count: int
    share_milli: int
    models: tuple[str, ...] = ()
    mig_profile: str = ""

    @classmethod
    def of(cls, request: ResourceRequest) -> Shape:
        accelerators = request.accelerators
        return cls(
            cpu_milli=request.cpu_milli,
            memory_mib=request.memory_mib,
            count=accelerators.count,
            share_milli=accelerators.share_milli if accelerators.count else 0,
            models=tuple(sorted(set(accelerators.allowed_models))),
            mig_profile=accelerators.mig_profile if accelerators.count else "",
        )


@dataclass(frozen=True, slots=True)
class RequestMix:
    """Shapes with their weights, the most popular first.

    `scarcity` is the scarcity of the capacity that each shape can use, for fragmentation and for room, in
    units of 1/`SCARCITY_ONE`; 0 for a shape that could never fit the pool. Shapes without an entry are not
    scarce.
    """

    shapes: tuple[tuple[Shape, int], ...]
    scarcity: tuple[tuple[Shape, tuple[int, int]], ...] = ()

    @classmethod
    def of(cls, requests: Iterable[ResourceRequest]) -> RequestMix:
        """Return the mix of past requests, in any order. A multi-node request counts once per node."""
        return cls.weighted((request, 1) for request in requests)

    @classmethod
    def weighted(cls, requests: Iterable[tuple[ResourceRequest, int]]) -> RequestMix:
        """Return the mix of weighted requests. Those with weight 0 are omitted."""
        counts: Counter[ResourceRequest] = Counter()
        for request, weight in requests:
            counts[request] += weight * request.nodes
        shapes: Counter[Shape] = Counter()
        for request, weight in counts.items():
            if weight > 0:
                shapes[Shape.of(request)] += weight
        return cls(tuple(sorted(shapes.items(), key=_popularity, reverse=True)))

    @classmethod
    def learnt(cls, recent: Sequence[ResourceRequest], offered: Sequence[ResourceRequest]) -> RequestMix:
        """Return the mix of the last requests (at most `WINDOW`) of a pool whose catalog offers `offered`.

        Each request has weight 1. Without requests, the catalog has a total weight of `CATALOG_WEIGHT`,
        spread evenly over its entries, which fades out in proportion as the window fills. Returns
        `DEFAULT_MIX` if both are empty.
        """
        recent = recent[-WINDOW:]
        if not recent and not offered:
            return DEFAULT_MIX
        # Scaled so that both are integers: a request is WINDOW × entries / CATALOG_WORTH.
        weight = WINDOW * max(len(offered), 1)
        entry = CATALOG_WEIGHT * (WINDOW - len(recent))
        return cls.weighted(
            [*((request, weight) for request in recent), *((item, entry) for item in offered)]
        )

    def as_json(self) -> list[list[Any]]:
        """Return the stored form."""
        scarcity = dict(self.scarcity)
        return [
            [shape.cpu_milli, shape.memory_mib, shape.count, shape.share_milli, list(shape.models),
             shape.mig_profile, weight, *scarcity.get(shape, ())]
            for shape, weight in self.shapes
        ]  # fmt: skip

    @classmethod
    def from_json(cls, data: Iterable[Sequence[Any]]) -> RequestMix:
        """Return the mix from the form of `as_json`."""
        shapes, scarcity = [], []
        for cpu, memory, count, share, models, profile, weight, *scarce in data:
            shape = Shape(cpu, memory, count, share, tuple(models), profile)
            shapes.append((shape, weight))
            if scarce:
                scarcity.append((shape, (scarce[0], scarce[1])))
        return cls(tuple(shapes), tuple(scarcity))

    def typical(self) -> tuple[tuple[Shape, int], ...]:
        """Return the most popular shapes, 99 % of the mix, with a total weight of about 10,000."""
        return _typical([item for item in self.shapes if not item[0].mig_profile])

    def typical_accelerated(self) -> tuple[tuple[Shape, int], ...]:
        """Return the typical shapes among those with whole or shared devices."""
        return _typical([item for item in self.shapes if item[0].count and not item[0].mig_profile])

    def with_scarcity(self, scarcity: Mapping[Shape, tuple[int, int]]) -> RequestMix:
        """Return the mix with these scarcities."""
        return replace(self, scarcity=tuple((s, scarcity[s]) for s, _ in self.shapes if s in scarcity))

    def fragmentation_weights(self) -> tuple[list[tuple[Shape, int]], int]:
        """Return weight × scarcity of the typical shapes with devices, and the total weight at scarcity 1."""
        typical, scarcity = self.typical(), dict(self.scarcity)
        weights = [
            (s, weight * scarcity.get(s, (SCARCITY_ONE, SCARCITY_ONE))[0]) for s, weight in typical if s.count
        ]
        return weights, SCARCITY_ONE * sum(weight for _, weight in typical)

    def room_weights(self) -> tuple[list[tuple[Shape, int]], int]:
        """Return weight × scarcity for room of the typical accelerated shapes, and their weight at 1."""
        typical, scarcity = self.typical_accelerated(), dict(self.scarcity)
        weights = [(s, weight * scarcity.get(s, (SCARCITY_ONE, SCARCITY_ONE))[1]) for s, weight in typical]
        return weights, SCARCITY_ONE * sum(weight for _, weight in typical)

    def mig_profiles(self) -> tuple[tuple[str, int], ...]:
        """Return the weight of each requested MIG profile, by name."""
        weights: Counter[str] = Counter()
        for shape, weight in self.shapes:
            if shape.mig_profile:
                weights[shape.mig_profile] += weight * shape.count
        return tuple(sorted(weights.items()))


def is_learning_due(learnt_count: int, fresh: int) -> bool:
    """Return whether to learn a mix from `learnt_count` requests again after `fresh` more requests."""
    return fresh > 0 and (fresh * 100 >= LEARN_PERCENT * learnt_count or fresh >= MAX_LEARN_AFTER)


def _popularity(item: tuple[Shape, int]) -> tuple[object, ...]:
    shape, weight = item
    return (weight, shape.cpu_milli, shape.memory_mib, shape.count, shape.share_milli, shape.models,
            shape.mig_profile)  # fmt: skip


def _typical(shapes: list[tuple[Shape, int]]) -> tuple[tuple[Shape, int], ...]:
    total = sum(weight for _, weight in shapes)
    weighted_shapes: list[tuple[Shape, int]] = []
    covered = 0
    for shape, weight in shapes:
        if covered * 100 >= _KEEP_PERCENT * total:
            break
        covered += weight
        weighted_shapes.append((shape, weight))
    return tuple(
        (shape, max(1, (weight * _TOTAL_WEIGHT + covered // 2) // covered))
        for shape, weight in weighted_shapes
    )


def _shape(weight: int, gpus: int, share_milli: int = 1000) -> tuple[ResourceRequest, int]:
    cores = 8 * gpus * share_milli // 1000 or 2
    accelerators = AcceleratorRequest(count=gpus, share_milli=share_milli)
    return ResourceRequest(cores * 1000, cores * 4096, accelerators=accelerators), weight


# Typical demand of data scientists without history: mostly one device or a part of one.
DEFAULT_MIX = RequestMix.of(
    request
    for request, weight in (
        _shape(10, 0),
        _shape(10, 1, 250),
        _shape(20, 1, 500),
        _shape(40, 1),
        _shape(10, 2),
        _shape(6, 4),
        _shape(4, 8),
    )
    for _ in range(weight)
)
