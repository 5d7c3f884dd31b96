"""The request shapes that a cluster expects, by popularity.

The mix is what fragmentation is measured against: free capacity that none of the usual requests can
use is worth nothing. It is best taken from the recent past (`RequestMix.of`); `DEFAULT_MIX` serves a
pool without a past.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from provisioning.types import AcceleratorRequest, ResourceRequest

_KEEP_PERCENT = 95
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
    """Shapes with their weights, the most popular first."""

    shapes: tuple[tuple[Shape, int], ...]

    @classmethod
    def of(cls, requests: Iterable[ResourceRequest]) -> RequestMix:
        """The mix of past requests; their order does not matter."""
        counts = Counter(requests)
        shapes: Counter[Shape] = Counter()
        for request, count in counts.items():
            shapes[Shape.of(request)] += count
        return cls(tuple(sorted(shapes.items(), key=_popularity, reverse=True)))

    def typical(self) -> tuple[tuple[Shape, int], ...]:
        """The most popular shapes that make up 95 % of all, weights scaled to about 10,000."""
        return _typical([item for item in self.shapes if not item[0].mig_profile])

    def typical_accelerated(self) -> tuple[tuple[Shape, int], ...]:
        """The same among the shapes that ask for whole or shared devices."""
        return _typical([item for item in self.shapes if item[0].count and not item[0].mig_profile])

    def mig_profiles(self) -> tuple[tuple[str, int], ...]:
        """Weight of each MIG profile asked for, by name."""
        weights: Counter[str] = Counter()
        for shape, weight in self.shapes:
            if shape.mig_profile:
                weights[shape.mig_profile] += weight * shape.count
        return tuple(sorted(weights.items()))


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
