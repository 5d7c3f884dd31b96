"""`python -m bench.placement.mig`: acceptance of requests for MIG instances, beside first fit.

GPUs of one model are in MIG mode without instances. Requests arrive one by one, for a profile drawn from a
mix. Each gets an instance at once or is refused, and leaves after a random time. Both sides see the same
requests and may repartition idle slots. First fit takes the first GPU with room and its lowest position. The
engine knows the mix from earlier requests, as in the portal.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from portal.scheduling.engine.placement.engine import Cluster, RequestMix
from portal.scheduling.engine.placement.mig import with_repartition
from portal.scheduling.engine.placement.mig_layouts import Geometry, geometry
from portal.scheduling.engine.placement.types import DeviceCapacity, NodeCapacity
from provisioning.types import AcceleratorRequest, ResourceRequest

GPUS_PER_NODE = 8
MEAN_LIFE = 1000.0
"""Unit of time in which a GPU's slots are free or held."""
LOADS = (0.8, 1.0, 1.2)
KINDS = {
    "A30": ("NVIDIA A30", 24_576),
    "H100 80 GB": ("NVIDIA H100 80GB HBM3", 81_559),
}
# Weights of the profiles from the smallest to the largest.
SHAPES: dict[str, tuple[int, ...]] = {
    "uniform": (1, 1, 1, 1, 1, 1),
    "small": (30, 25, 20, 10, 10, 5),
    "large": (5, 10, 10, 20, 25, 30),
    "both ends": (30, 15, 5, 5, 15, 30),
    "halves": (40, 0, 0, 60, 0, 0),
    "mostly one slot": (80, 0, 10, 0, 10, 0),
}


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request for one instance of `profile`, which leaves `life` after its arrival."""

    at: float
    profile: str
    life: float


class Side(Protocol):
    """Grants and releases instances. `grant_instance` returns the value for `release`, or None."""

    def grant_instance(self, profile: str) -> Any: ...

    def release(self, grant: Any) -> None: ...


def profiles_of(layout: Geometry) -> list[str]:
    """Return the profiles without media extensions, the smallest first."""
    return [profile.name for profile in layout.profiles if not profile.media]


def weights_of(layout: Geometry, shape: str) -> dict[str, int]:
    """Return the mix over the layout's profiles. With fewer profiles, the middle ones are left out."""
    names, weights = profiles_of(layout), list(SHAPES[shape])
    while len(weights) > len(names):
        del weights[len(weights) // 2]
    return {name: weight for name, weight in zip(names, weights, strict=True) if weight}


def arrivals(
    layout: Geometry, weights: dict[str, int], *, gpus: int, load: float, count: int, seed: int
) -> list[Arrival]:
    """Return requests at a rate at which `load` of all slots would be held on average without refusals."""
    chance = random.Random(f"{seed}/{load}/{sorted(weights.items())}")
    width = {profile.name: profile.width for profile in layout.profiles}
    names = list(weights)
    total = sum(weights.values())
    mean_width = sum(width[name] * weight for name, weight in weights.items()) / total
    gap = MEAN_LIFE * mean_width / (load * gpus * layout.slots)
    now = 0.0
    sequence = []
    for _ in range(count):
        now += chance.expovariate(1 / gap)
        name = chance.choices(names, [weights[profile_name] for profile_name in names])[0]
        sequence.append(Arrival(now, name, chance.expovariate(1 / MEAN_LIFE)))
    return sequence


class FirstFit:
    """Takes the first GPU with room, and its lowest position."""

    def __init__(self, layout: Geometry, gpus: int) -> None:
        self._layout = layout
        self._free = [(1 << layout.slots) - 1] * gpus
        self._held: list[list[str]] = [[] for _ in range(gpus)]

    def grant_instance(self, name: str) -> tuple[int, int, str] | None:
        profile = self._layout.profile(name)
        assert profile is not None
        for gpu, free in enumerate(self._free):
            if self._held[gpu].count(name) >= profile.most:
                continue
            for bits in profile.masks():
                if not bits & ~free:
                    self._free[gpu] &= ~bits
                    self._held[gpu].append(name)
                    return gpu, bits, name
        return None

    def release(self, grant: tuple[int, int, str]) -> None:
        gpu, bits, name = grant
        self._free[gpu] |= bits
        self._held[gpu].remove(name)


class Engine:
    """The placement engine, on nodes with eight GPUs. Plans are carried out immediately."""

    def __init__(self, model: str, memory_mib: int, gpus: int, *, mix: RequestMix) -> None:
        nodes = [
            NodeCapacity(
                name=f"node-{first // GPUS_PER_NODE}",
                cpu_milli=10**6, memory_mib=10**6, disk_mib=0,
                free_cpu_milli=10**6, free_memory_mib=10**6, free_disk_mib=0,
                devices=tuple(
                    DeviceCapacity(f"gpu-{index}", model, memory_mib, mig_mode=True)
                    for index in range(first, min(first + GPUS_PER_NODE, gpus))
                ),
            )
            for first in range(0, gpus, GPUS_PER_NODE)
        ]  # fmt: skip
        self._states = {node.name: node for node in nodes}
        self._cluster = Cluster(nodes, mix=mix)
        self.created = 0
        self.placed = 0

    def grant_instance(self, profile: str) -> tuple[str, str] | None:
        request = ResourceRequest(1, 1, accelerators=AcceleratorRequest(count=1, mig_profile=profile))
        placement = self._cluster.find(request, repartition=True)
        if placement is None:
            return None
        part = placement.nodes[0]
        node = self._states[part.node]
        self.placed += 1
        if part.repartitions:
            self.created += 1
            node, part = with_repartition(node, part)
        (grant,) = part.devices
        self._put(node, grant.uuid, free_milli=0)
        return part.node, grant.uuid

    def release(self, grant: tuple[str, str]) -> None:
        name, uuid = grant
        self._put(self._states[name], uuid, free_milli=1000)

    def _put(self, node: NodeCapacity, uuid: str, *, free_milli: int) -> None:
        devices = tuple(
            replace(device, free_milli=free_milli) if device.uuid == uuid else device
            for device in node.devices
        )
        self._states[node.name] = replace(node, devices=devices)
        self._cluster.update(self._states[node.name])


def replay(side: Side, requests: Sequence[Arrival], *, warm_up: float = 0.25) -> float:
    """Return the percentage of requests after the warm-up that got an instance."""
    leaving: list[tuple[float, int, Any]] = []
    granted = 0
    first = int(len(requests) * warm_up)
    for number, request in enumerate(requests):
        while leaving and leaving[0][0] <= request.at:
            side.release(heapq.heappop(leaving)[2])
        place = side.grant_instance(request.profile)
        if place is not None:
            heapq.heappush(leaving, (request.at + request.life, number, place))
            granted += number >= first
    return 100.0 * granted / (len(requests) - first)


def mix_of(weights: dict[str, int]) -> RequestMix:
    """Return the mix as the portal would have learnt it."""
    return RequestMix.of(
        ResourceRequest(1, 1, accelerators=AcceleratorRequest(count=1, mig_profile=name))
        for name, weight in weights.items()
        for _ in range(weight)
    )


def compare(
    kind: str, shape: str, *, gpus: int, count: int, seeds: Sequence[int], loads: Sequence[float] = LOADS
) -> dict[str, Any]:
    """Return the acceptance of both sides by load, as means over the seeds."""
    model, memory_mib = KINDS[kind]
    layout = geometry(model, memory_mib)
    assert layout is not None
    weights = weights_of(layout, shape)
    row: dict[str, Any] = {"gpu": kind, "mix": shape, "loads": {}}
    differences = []
    for load in loads:
        first_fit, engine, created = [], [], []
        for seed in seeds:
            requests = arrivals(layout, weights, gpus=gpus, load=load, count=count, seed=seed)
            first_fit.append(replay(FirstFit(layout, gpus), requests))
            side = Engine(model, memory_mib, gpus, mix=mix_of(weights))
            engine.append(replay(side, requests))
            created.append(100.0 * side.created / max(side.placed, 1))
        pairs = zip(engine, first_fit, strict=True)
        differences += [one - other for one, other in pairs]
        row["loads"][load] = {
            "first_fit": statistics.mean(first_fit),
            "engine": statistics.mean(engine),
            "created": statistics.mean(created),
        }
    row["gain"] = statistics.mean(differences)
    row["worst"] = min(differences)
    return row


def main(arguments: list[str] | None = None) -> int:
    """Print a row per GPU model and mix. The exit code is 1 if first fit is better in one of them."""
    parser = argparse.ArgumentParser(prog="bench.placement.mig", description=__doc__)
    parser.add_argument("--gpus", type=int, default=24)
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--mix", action="append", choices=SHAPES)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows = []
    heads = " ".join(f"{f'{load:.0%}':>15}" for load in LOADS)
    print(f"{'GPU':<12}{'mix':<17}{heads}   gain  worst   new instances")
    for kind in options.kind or KINDS:
        for shape in options.mix or SHAPES:
            row = compare(kind, shape, gpus=options.gpus, count=options.requests, seeds=range(options.seeds))
            rows.append(row)
            cells = " ".join(
                f"{result['engine']:6.2f} ({result['first_fit']:5.2f})" for result in row["loads"].values()
            )
            created = statistics.mean(result["created"] for result in row["loads"].values())
            print(
                f"{kind:<12}{shape:<17}{cells}  {row['gain']:+5.2f}  {row['worst']:+5.2f}   {created:.0f} %",
                flush=True,
            )
    mean = statistics.mean(row["gain"] for row in rows)
    print(f"mean gain {mean:+.2f} points, worst mix {min(row['gain'] for row in rows):+.2f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return int(any(row["gain"] < 0 for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
