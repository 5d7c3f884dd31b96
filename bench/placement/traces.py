"""Read the openb traces: nodes, request lists, orders of arrival and published results."""

from __future__ import annotations

import csv
import gzip
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from portal.scheduling.engine.placement.types import DeviceCapacity, NodeCapacity
from provisioning.types import AcceleratorRequest, ResourceRequest

ARRIVED = (80, 90, 95, 100, 110, 120, 130)
_ARRIVALS = re.compile(r"openb_(?P<workload>.+)\.seed(?P<seed>\d+)\.names\.txt(\.gz)?$")
_REPEATED = re.compile(r"-tuned-\d+$")


class TraceError(Exception):
    """A trace is missing or cannot be read. The message names the trace and the expected files."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A list of requests in one order of arrival. `past` is the whole list, which defines the mix."""

    name: str
    seed: int
    arrivals: tuple[ResourceRequest, ...]
    past: tuple[ResourceRequest, ...]


def read_nodes(data: Path) -> list[NodeCapacity]:
    """Return the empty cluster."""
    return [
        _node(row["sn"], int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"])
        for row in _table(_plain_or_compressed(data / "openb" / "openb_node_list_gpu_node.csv"))
    ]


def renamed(nodes: list[NodeCapacity], seed: int) -> list[NodeCapacity]:
    """Return the same cluster with random names, in random order."""
    chance = random.Random(seed)
    names = [f"{chance.getrandbits(64):016x}" for _ in nodes]
    renamed_nodes = [
        _node(
            name,
            node.cpu_milli,
            node.memory_mib,
            len(node.devices),
            node.devices[0].model if node.devices else "",
        )
        for name, node in zip(names, nodes, strict=True)
    ]
    chance.shuffle(renamed_nodes)
    return renamed_nodes


def read_workloads(data: Path) -> Iterator[Workload]:
    """Yield every workload and seed in `data`."""
    folder = data / "openb" / "arrivals"
    files = sorted(
        (match["workload"], int(match["seed"]), path)
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := _ARRIVALS.match(path.name))
    )
    if not files:
        raise TraceError(f"{folder} holds no orders of arrival (openb_<workload>.seed<n>.names.txt.gz)")
    requests: dict[str, ResourceRequest] = {}
    current = ""
    for name, seed, path in files:
        if name != current:
            requests = _requests(_plain_or_compressed(data / "openb" / f"openb_pod_list_{name}.csv"))
            current = name
        names = [_REPEATED.sub("", line) for line in _text(path).split()]
        unknown = next((arrival for arrival in names if arrival not in requests), None)
        if unknown is not None:
            raise TraceError(f"{path.name} names the request {unknown}, which the list of {name} lacks")
        yield Workload(name, seed, tuple(requests[arrival] for arrival in names), tuple(requests.values()))


@dataclass(frozen=True, slots=True)
class Published:
    """Published allocation in percent by policy, workload and arrived percent."""

    by_seed: dict[tuple[str, str, int], dict[int, float]]
    mean: dict[tuple[str, str], dict[int, float]]

    def allocation(self, workload: str, seed: int, policy: str = "06-FGD") -> dict[int, float]:
        """Return the result for this seed, else the mean over ten seeds, else None."""
        return self.by_seed.get((workload, policy, seed)) or self.mean.get((workload, policy)) or {}


def read_published(data: Path) -> Published:
    """Return published results; empty if `data` has none."""
    by_seed, mean = {}, {}
    path = data / "published" / "alloc_by_seed.csv"
    if path.exists():
        for row in _table(path):
            key = (_short(row["workload"]), row["sc_policy"], int(row["seed"]))
            by_seed[key] = {arrived: float(row[str(arrived)]) for arrived in ARRIVED}
    path = data / "published" / "fgd_published_alloc.csv"
    if path.exists():
        for row in _table(path):
            values = {arrived: float(row[f"alloc_at_{arrived}pct_mean"]) for arrived in ARRIVED}
            mean[_short(row["workload"]), row["policy"]] = values
    return Published(by_seed, mean)


def _node(name: str, cpu_milli: int, memory_mib: int, gpus: int, model: str) -> NodeCapacity:
    return NodeCapacity(
        name=name,
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
        disk_mib=0,
        free_cpu_milli=cpu_milli,
        free_memory_mib=memory_mib,
        free_disk_mib=0,
        devices=tuple(DeviceCapacity(f"{name}-gpu-{index}", model, 0) for index in range(gpus)),
    )


def _requests(path: Path) -> dict[str, ResourceRequest]:
    return {row["name"]: _request(row) for row in _table(path)}


def _request(row: dict[str, str]) -> ResourceRequest:
    count = int(row["num_gpu"])
    models = tuple(model for model in (row.get("gpu_spec") or "").split("|") if model)
    share = int(row["gpu_milli"]) if count else 1000
    accelerators = AcceleratorRequest(count=count, share_milli=share, models=models if count else ())
    # One request of the traces asks for no memory, which no driver accepts.
    return ResourceRequest(
        max(1, int(row["cpu_milli"])), max(1, int(row["memory_mib"])), accelerators=accelerators
    )


def _short(workload: str) -> str:
    return workload.removeprefix("openb_pod_list_")


def _plain_or_compressed(path: Path) -> Path:
    """Return the file itself, or its compressed form."""
    packed = path.with_name(path.name + ".gz")
    if not path.exists() and not packed.exists():
        raise TraceError(f"{path} is missing (compressed or not)")
    return path if path.exists() else packed


def _text(path: Path) -> str:
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes()).decode()
    return path.read_text()


def _table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(_text(path).splitlines()))
