"""Prometheus metrics: Berth's own, and GPU metrics with the names of the DCGM exporter.

Berth's own metrics follow the rules of `promtool check metrics`: base units, one unit per metric. The
exporter's names do not, so they have a separate URL.

The number of queries is constant. Missing measurements have no sample; simulated devices have the label
`simulated="true"`. States and amounts are those of `inventory.device_states` and `inventory.counting`, as in
pages and REST.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Count, Min
from django.utils import timezone
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from portal.fleet.inventory import counting, resources, series
from portal.fleet.inventory.device_states import KNOWN, DeviceState, annotate_state
from portal.fleet.inventory.models import AllocatedDevice, Device, Node, Pool, PoolState
from portal.reports import start_counts
from portal.reports.models import Figure, StartCount
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from provisioning.gpu import dcgm_names
from provisioning.gpu.samples import Sample
from provisioning.types import WHOLE_DEVICE_MILLI, DeviceInfo, DeviceKind

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ANY_POOL = ""
# The library adds a suffix to counters, as OpenMetrics requires; the exporter does not.
_AS_THE_EXPORTER = re.compile(
    rb"^# (HELP|TYPE) (%s)_total " % "|".join(sorted(dcgm_names.COUNTERS)).encode(), re.MULTILINE
)
Labels = Mapping[str, str]
Family = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily
MIB = 1024 * 1024
MILLI = 1000


def exposition(now: datetime | None = None) -> bytes:
    """Return Berth's metrics in Prometheus' text format 0.0.4."""
    return _text(families, now)


def gpu_exposition(now: datetime | None = None) -> bytes:
    """Return GPU metrics in the form of the DCGM exporter."""
    return _AS_THE_EXPORTER.sub(rb"# \1 \2 ", _text(gpu_families, now))


def _text(families: Callable[[datetime], list[Family]], now: datetime | None) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PortalCollector(families, now or timezone.now()))
    return generate_latest(registry)


class PortalCollector(Collector):
    """Reads metrics from the database for one scrape. Families without samples are omitted."""

    def __init__(self, families: Callable[[datetime], list[Family]], now: datetime) -> None:
        self.families = families
        self.now = now

    def describe(self) -> Iterable[Family]:
        """Return nothing, so that registration does not read the database."""
        return ()

    def collect(self) -> Iterator[Family]:
        return (family for family in self.families(self.now) if family.samples)


def families(now: datetime | None = None) -> list[Family]:
    """Return Berth's metric families in order."""
    now = now or timezone.now()
    devices = _known_devices(now)
    pools = list(Pool.objects.filter(deleted_at=None).order_by("slug"))
    return [
        *_devices(devices, series.idle_times(now)),
        *_resources(pools, devices, now),
        *_teams(devices, series.current_samples(devices, now=now)),
        *_pools(pools),
        *_workspaces(pools, now),
        *_starts(),
    ]


def exposition_name(family: Family) -> str:
    """Return the name of a family in the text format."""
    return f"{family.name}_total" if isinstance(family, CounterMetricFamily) else family.name


def gpu_families(now: datetime | None = None) -> list[Family]:
    """Return the DCGM exporter's metric families in order."""
    now = now or timezone.now()
    devices = _known_devices(now)
    return _dcgm(devices, series.current_samples(devices, now=now))


def _known_devices(now: datetime) -> list[Any]:
    return list(
        annotate_state(Device.objects.filter(KNOWN).select_related("node", "node__pool"), now).order_by(
            "node__pool__slug", "node__name", "index", "uuid"
        )
    )


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text)


def _as_exported(name: str, text: str) -> Family:
    return (CounterMetricFamily if name in dcgm_names.COUNTERS else GaugeMetricFamily)(name, text)


def _dcgm(devices: Iterable[Device], samples: Mapping[str, Sample]) -> list[Family]:
    families = {name: _as_exported(name, text) for name, text in dcgm_names.help_texts().items()}
    for device in devices:
        sample = samples.get(device.uuid)
        if sample is None:
            continue
        labels: dict[str, str] = {}
        for name, own_labels, value in dcgm_names.readings(sample, _info(device), hostname=device.node.name):
            labels = labels or own_labels | _pool_labels(device.node.pool)
            families[name].add_sample(name, labels, value)
    return list(families.values())


def _info(device: Device) -> DeviceInfo:
    return DeviceInfo(
        uuid=device.uuid,
        index=device.index,
        model=device.model,
        memory_mib=device.memory_mib,
        kind=DeviceKind(device.kind),
        parent_uuid=device.parent_uuid,
        mig_profile=device.mig_profile,
        facts=device.facts if isinstance(device.facts, dict) else {},
    )


def _pool_labels(pool: Pool) -> dict[str, str]:
    return {"pool": pool.slug, "simulated": "true" if pool.simulated else "false"}


def _devices(devices: Iterable[Any], idle: Mapping[UUID, int]) -> list[GaugeMetricFamily]:
    count = _gauge("berth_devices", "Accelerators by state; a partitioned GPU counts as its MIG instances.")
    idle_s = _gauge("berth_device_idle_seconds", "Seconds for which an allocated device has been idle.")
    devices = list(devices)
    pools = {device.node.pool_id: device.node.pool for device in devices}
    states = counting.states_by_pool(counting.countable_devices(devices))
    for device in devices:
        pool = device.node.pool
        if device.used_milli and device.pk in idle:
            labels = {"UUID": device.uuid, "Hostname": device.node.name, **_pool_labels(pool)}
            idle_s.add_sample(idle_s.name, labels, idle[device.pk])
    for key, of_pool in states.items():
        for state in DeviceState:
            labels = {"state": state.value, **_pool_labels(pools[key])}
            count.add_sample(count.name, labels, of_pool[state])
    return [count, idle_s]


_AMOUNTS = {
    "total": ("capacity", "in any state"),
    "in_service": ("in_service", "neither failed, cordoned nor offline"),
    "allocated": ("allocated", "allocated to workspaces"),
    "free": ("free", "in service, not being checked, and not allocated"),
}
"""Field of `Count` → its part of the metric name, and its help text."""


@dataclass(frozen=True, slots=True)
class _Quantity:
    """A quantity: its metric is `prefix_<amount>suffix`, in `factor` of the inventory's base unit."""

    prefix: str
    suffix: str
    text: str
    factor: float


_GPUS = _Quantity("berth_gpus", "", "GPUs and MIG instances by resource", 1 / WHOLE_DEVICE_MILLI)
_OF_NODES = {
    resources.CPU: _Quantity("berth_cpu", "_cores", "CPU cores", 1 / MILLI),
    resources.MEMORY: _Quantity("berth_memory", "_bytes", "Memory of nodes", MIB),
    resources.DISK: _Quantity("berth_disk", "_bytes", "Disk of nodes", MIB),
}


def _resources(pools: Iterable[Pool], devices: Iterable[Any], now: datetime) -> list[GaugeMetricFamily]:
    """Return the amounts by resource and pool. Queries can sum up all models (`gpu`)."""
    by_pool = counting.counts_by_pool(Node.objects.all(), now, counting.countable_devices(devices))
    gauges = {
        (quantity, amount): _gauge(f"{quantity.prefix}_{name}{quantity.suffix}", f"{quantity.text}: {text}.")
        for quantity in (_GPUS, *_OF_NODES.values())
        for amount, (name, text) in _AMOUNTS.items()
    }
    for pool in pools:
        for resource, count in sorted(by_pool.get(pool.pk, {}).items()):
            quantity = _OF_NODES.get(resource.removeprefix(resources.SIMULATED))
            labels = _pool_labels(pool)
            if quantity is None:
                if not resources.is_accelerator(resource):
                    continue
                quantity, labels = _GPUS, {"resource": resource, **labels}
            for amount in _AMOUNTS:
                gauge = gauges[quantity, amount]
                gauge.add_sample(gauge.name, labels, getattr(count, amount) * quantity.factor)
    return list(gauges.values())


def _teams(devices: Iterable[Any], samples: Mapping[str, Sample]) -> list[GaugeMetricFamily]:
    """Return the allocated and used GPUs of each team. MIG instances count as parts of their GPU."""
    allocated = _gauge("berth_team_gpus_allocated", "GPUs allocated to workspaces of the team.")
    used = _gauge(
        "berth_team_gpus_used", "Sum of the measured utilization of these GPUs: 1 is one GPU at 100 %."
    )
    devices = list(devices)
    instances = Counter(device.parent_uuid for device in devices if device.parent_uuid and device.present)
    by_key = {device.pk: device for device in devices}
    held: defaultdict[tuple[str, bool], float] = defaultdict(float)
    busy: defaultdict[tuple[str, bool], float] = defaultdict(float)
    rows = AllocatedDevice.objects.filter(active=True).order_by("allocation__workspace__team__slug", "pk")
    for key, milli, team in rows.values_list("device", "milli", "allocation__workspace__team__slug"):
        device = by_key.get(key)
        if device is None:
            continue
        weight = 1 / max(1, instances.get(device.parent_uuid, 1)) if device.parent_uuid else 1.0
        of = (team, device.node.pool.simulated)
        held[of] += weight * milli / WHOLE_DEVICE_MILLI
        sample = samples.get(device.uuid)
        if sample is not None and sample.gpu_util_pct is not None:
            busy[of] += weight * sample.gpu_util_pct / 100 * milli / (device.used_milli or milli)
    for gauge, amounts in ((allocated, held), (used, busy)):
        for (team, simulated), amount in amounts.items():
            labels = {"team": team, "simulated": "true" if simulated else "false"}
            gauge.add_sample(gauge.name, labels, round(amount, 6))
    return [allocated, used]


def _pools(pools: Iterable[Pool]) -> list[GaugeMetricFamily]:
    online = _gauge("berth_pool_online", "1 if the pool is enabled and online, else 0.")
    for pool in pools:
        online.add_sample(
            online.name, _pool_labels(pool), float(pool.enabled and pool.state == PoolState.ONLINE)
        )
    return [online]


def _workspaces(pools: Iterable[Pool], now: datetime) -> list[GaugeMetricFamily]:
    by_state = _gauge("berth_workspaces", "Workspaces by state and pool, as far as they have a pool.")
    length = _gauge("berth_queue_length", "Queued workspaces, by the pool that their flavor requires.")
    oldest = _gauge("berth_queue_oldest_wait_seconds", "Waiting time of the oldest queued workspace.")
    rows = (
        Workspace.objects.exclude(state=State.TERMINATED)
        .order_by("pool__slug", "flavor__pool__slug", "state")
        .values_list("pool__slug", "flavor__pool__slug", "state")
        .annotate(Count("pk"), Min("requested_at"))
    )
    states: Counter[tuple[str, str]] = Counter()
    waiting: Counter[str] = Counter()
    since: dict[str, datetime] = {}
    for pool, desired_pool, state, number, first in rows:
        states[pool or ANY_POOL, state] += number
        if state == State.PENDING:
            key = desired_pool or ANY_POOL
            waiting[key] += number
            since[key] = min(first, since.get(key, first))
    pool_labels = {pool.slug: _pool_labels(pool) for pool in pools}
    any_pool = {"pool": ANY_POOL, "simulated": "false"}
    for (pool, state), number in sorted(states.items()):
        by_state.add_sample(by_state.name, {"state": state, **pool_labels.get(pool, any_pool)}, number)
    for key, labels in {ANY_POOL: any_pool, **pool_labels}.items():
        length.add_sample(length.name, labels, waiting[key])
        wait_s = (now - since[key]).total_seconds() if key in since else 0
        oldest.add_sample(oldest.name, labels, max(0, round(wait_s)))
    return [by_state, length, oldest]


def _starts() -> list[Family]:
    """Return the counters of `start_counts`, by team."""
    requests = CounterMetricFamily(
        "berth_workspace_requests", "Requests for workspaces: new ones, starts and retries.", labels=["team"]
    )
    starts = CounterMetricFamily(
        "berth_workspace_starts", "Workspaces that were placed on a node to start.", labels=["team"]
    )
    failures = CounterMetricFamily(
        "berth_workspace_failures",
        "Workspaces that failed to start or ended unexpectedly.",
        labels=["team", "reason"],
    )
    ready = HistogramMetricFamily(
        "berth_workspace_ready_seconds",
        "Time from the request until the workspace was ready.",
        labels=["team"],
    )
    counters = {Figure.REQUESTS: requests, Figure.STARTS: starts}
    times: defaultdict[str, dict[str, tuple[int, float]]] = defaultdict(dict)
    rows = StartCount.objects.filter(team__deleted_at=None).order_by("team__slug", "figure", "key")
    for figure, team, key, count, seconds in rows.values_list(
        "figure", "team__slug", "key", "count", "seconds"
    ):
        if figure == Figure.READY:
            times[team][key] = (count, seconds)
        elif figure == Figure.FAILURES:
            failures.add_metric([team, key], count)
        else:
            counters[Figure(figure)].add_metric([team], count)
    for team, buckets in times.items():
        ready.add_metric([team], *start_counts.histogram(buckets))
    return [requests, starts, failures, ready]
