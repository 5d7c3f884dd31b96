"""The request shapes that a cluster expects, by popularity.

The mix is what fragmentation is measured against: free capacity that none of the usual requests can
use is worth nothing. It is learnt from the recent past (`RequestMix.learnt`). A pool without a past
expects what the catalog offers; `DEFAULT_MIX` serves where that is nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provisioning.types import AcceleratorRequest, ResourceRequest

WINDOW = 2000
"""Requests that a mix is learnt from: the last ones, each of which counts the same."""
CATALOG_WORTH = 10
"""What is offered counts as so many requests while none has been made; less, the more there are."""
LEARN_PERCENT = 25
LEARN_AFTER_AT_MOST = 250
"""A mix is learnt again once so many of the requests that it knows are new."""
PLAIN = 16
"""The scarcity of a shape that can use all that is free: scarcities are in sixteenths."""
_KEEP_PERCENT = 99
_TOTAL_WEIGHT = 10_000


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a request matters for fragmentation. `models` empty means any model."""

    cpu_milli: int
    memory_mib: int
    count: int
    share_milli: int
    models: tuple[str, ...] = ()
    mig_profile: str = ""

    @classmethod
    def of(cls, request: ResourceRequest) -> Shape:
        wanted = request.accelerators
        return cls(
            cpu_milli=request.cpu_milli,
            memory_mib=request.memory_mib,
            count=wanted.count,
            share_milli=wanted.share_milli if wanted.count else 0,
            models=tuple(sorted(set(wanted.allowed_models))),
            mig_profile=wanted.mig_profile if wanted.count else "",
        )


@dataclass(frozen=True, slots=True)
class RequestMix:
    """Shapes with their weights, the most popular first.

    `scarcity` says of shapes how scarce that is what they can use: for fragmentation and for room, in units
    of 1/`PLAIN`; 0 for one that the pool could never take. Of a shape that is not named nothing is scarce.
    """

    shapes: tuple[tuple[Shape, int], ...]
    scarcity: tuple[tuple[Shape, tuple[int, int]], ...] = ()

    @classmethod
    def of(cls, requests: Iterable[ResourceRequest]) -> RequestMix:
        """The mix of past requests; their order does not matter. One of several nodes counts for each."""
        return cls.weighted((request, 1) for request in requests)

    @classmethod
    def weighted(cls, requests: Iterable[tuple[ResourceRequest, int]]) -> RequestMix:
        """The mix of requests that count so much each; what counts nothing is left out."""
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
        """The mix of the last requests (at most `WINDOW`) of a pool whose catalog offers `offered`.

        Each request counts 1. The catalog counts `CATALOG_WORTH` in all where there is no request, evenly
        by entry, and fades out in proportion as the window fills. `DEFAULT_MIX` where both are empty.
        """
        recent = recent[-WINDOW:]
        if not recent and not offered:
            return DEFAULT_MIX
        # In units that make both whole: a request is WINDOW × entries / CATALOG_WORTH.
        each = WINDOW * max(len(offered), 1)
        entry = CATALOG_WORTH * (WINDOW - len(recent))
        return cls.weighted([*((request, each) for request in recent), *((item, entry) for item in offered)])

    def as_json(self) -> list[list[Any]]:
        """The form in which it is kept."""
        scarcity = dict(self.scarcity)
        return [
            [shape.cpu_milli, shape.memory_mib, shape.count, shape.share_milli, list(shape.models),
             shape.mig_profile, weight, *scarcity.get(shape, ())]
            for shape, weight in self.shapes
        ]  # fmt: skip

    @classmethod
    def from_json(cls, data: Iterable[Sequence[Any]]) -> RequestMix:
        """The mix that `as_json` has written."""
        shapes, scarcity = [], []
        for cpu, memory, count, share, models, profile, weight, *scarce in data:
            shape = Shape(cpu, memory, count, share, tuple(models), profile)
            shapes.append((shape, weight))
            if scarce:
                scarcity.append((shape, (scarce[0], scarce[1])))
        return cls(tuple(shapes), tuple(scarcity))

    def typical(self) -> tuple[tuple[Shape, int], ...]:
        """The most popular shapes that make up 99 % of all, weights scaled to about 10,000."""
        return _typical([item for item in self.shapes if not item[0].mig_profile])

    def typical_accelerated(self) -> tuple[tuple[Shape, int], ...]:
        """The same among the shapes that ask for whole or shared devices."""
        return _typical([item for item in self.shapes if item[0].count and not item[0].mig_profile])

    def weighed(self, scarcity: Mapping[Shape, tuple[int, int]]) -> RequestMix:
        """The same requests, with these scarcities."""
        return replace(self, scarcity=tuple((s, scarcity[s]) for s, _ in self.shapes if s in scarcity))

    def fragmentation_weights(self) -> tuple[list[tuple[Shape, int]], int]:
        """Weight × scarcity of the typical shapes with devices, and the weight of all typical ones at 1."""
        typical, scarcity = self.typical(), dict(self.scarcity)
        weights = [(s, weight * scarcity.get(s, (PLAIN, PLAIN))[0]) for s, weight in typical if s.count]
        return weights, PLAIN * sum(weight for _, weight in typical)

    def room_weights(self) -> tuple[list[tuple[Shape, int]], int]:
        """The same among the typical shapes that ask for devices."""
        typical, scarcity = self.typical_accelerated(), dict(self.scarcity)
        weights = [(s, weight * scarcity.get(s, (PLAIN, PLAIN))[1]) for s, weight in typical]
        return weights, PLAIN * sum(weight for _, weight in typical)

    def mig_profiles(self) -> tuple[tuple[str, int], ...]:
        """Weight of each MIG profile asked for, by name."""
        weights: Counter[str] = Counter()
        for shape, weight in self.shapes:
            if shape.mig_profile:
                weights[shape.mig_profile] += weight * shape.count
        return tuple(sorted(weights.items()))


def learn_again(known: int, fresh: int) -> bool:
    """Whether a mix that was learnt from `known` requests is to be learnt again after `fresh` more."""
    return fresh > 0 and (fresh * 100 >= LEARN_PERCENT * known or fresh >= LEARN_AFTER_AT_MOST)


def _popularity(item: tuple[Shape, int]) -> tuple[object, ...]:
    shape, weight = item
    return (weight, shape.cpu_milli, shape.memory_mib, shape.count, shape.share_milli, shape.models,
            shape.mig_profile)  # fmt: skip


def _typical(shapes: list[tuple[Shape, int]]) -> tuple[tuple[Shape, int], ...]:
    total = sum(weight for _, weight in shapes)
    kept: list[tuple[Shape, int]] = []
    covered = 0
    for shape, weight in shapes:
        if covered * 100 >= _KEEP_PERCENT * total:
            break
        covered += weight
        kept.append((shape, weight))
    return tuple(
        (shape, max(1, (weight * _TOTAL_WEIGHT + covered // 2) // covered)) for shape, weight in kept
    )


def _shape(weight: int, gpus: int, share_milli: int = 1000) -> tuple[ResourceRequest, int]:
    cores = 8 * gpus * share_milli // 1000 or 2
    wanted = AcceleratorRequest(count=gpus, share_milli=share_milli)
    return ResourceRequest(cores * 1000, cores * 4096, accelerators=wanted), weight


# What data scientists ask for where nothing is known yet: mostly one device or a part of one.
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
