"""Prometheus metrics: GPUs under the names of the DCGM exporter, and Berth's own gauges.

The number of queries is constant. Missing measurements have no sample; simulated devices have the label
`simulated="true"`. States and amounts are those of `inventory.device_states` and `inventory.counting`, as in
pages and REST.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Count, Min
from django.utils import timezone
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from portal.fleet.inventory import counting, series
from portal.fleet.inventory.device_states import KNOWN, DeviceState, with_state
from portal.fleet.inventory.models import Device, Node, Pool, PoolState
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from provisioning.gpu import dcgm_names
from provisioning.gpu.samples import Sample
from provisioning.types import DeviceInfo, DeviceKind

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ANY_POOL = ""
# The library adds the OpenMetrics suffix to counter families; the exporter has none.
_AS_THE_EXPORTER = re.compile(
    rb"^# (HELP|TYPE) (%s)_total " % "|".join(sorted(dcgm_names.COUNTERS)).encode(), re.MULTILINE
)
Labels = Mapping[str, str]
Family = GaugeMetricFamily | CounterMetricFamily


def exposition(now: datetime | None = None) -> bytes:
    """Return all metrics in Prometheus' text format 0.0.4."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PortalCollector(now or timezone.now()))
    return _AS_THE_EXPORTER.sub(rb"# \1 \2 ", generate_latest(registry))


class PortalCollector(Collector):
    """Reads all metrics from the database for one scrape. Families without samples are omitted."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def describe(self) -> Iterable[Family]:
        """Return nothing, so that registration reads nothing."""
        return ()

    def collect(self) -> Iterator[Family]:
        return (family for family in families(self.now) if family.samples)


def families(now: datetime | None = None) -> list[Family]:
    """Return all families in order."""
    now = now or timezone.now()
    devices: list[Any] = list(
        with_state(Device.objects.filter(KNOWN).select_related("node", "node__pool"), now).order_by(
            "node__pool__slug", "node__name", "index", "uuid"
        )
    )
    pools = list(Pool.objects.filter(deleted_at=None).order_by("slug"))
    return [
        *_dcgm(devices, _newest_samples(devices, now)),
        *_devices(devices, series.idle_times(now)),
        *_resources(pools, devices, now),
        *_pools(pools),
        *_workspaces(pools, now),
    ]


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text)


def _as_exported(name: str, text: str) -> Family:
    return (CounterMetricFamily if name in dcgm_names.COUNTERS else GaugeMetricFamily)(name, text)


def _newest_samples(devices: Iterable[Device], now: datetime) -> dict[str, Sample]:
    """Return current samples of nodes, or the newest minute without one."""
    now_s = now.timestamp()
    real = (device for device in devices if not device.node.pool.simulated)
    return series.newest_minutes(now_s=now_s) | series.newest(real, now_s=now_s)


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
    idle_s = _gauge("berth_device_idle_seconds", "For how long a device that is held has done nothing.")
    by_pool: dict[str, tuple[Pool, Counter[str]]] = {}
    for device in devices:
        pool = device.node.pool
        if not device.partitioned:
            by_pool.setdefault(pool.slug, (pool, Counter()))[1][device.state] += 1
        if device.used_milli and device.pk in idle:
            labels = {"UUID": device.uuid, "Hostname": device.node.name, **_pool_labels(pool)}
            idle_s.add_sample(idle_s.name, labels, idle[device.pk])
    for pool, states in by_pool.values():
        for state in DeviceState:
            count.add_sample(count.name, {"state": state.value, **_pool_labels(pool)}, states[state.value])
    return [count, idle_s]


_AMOUNTS = {
    "total": "What there is, whatever its state",
    "in_service": "What is neither failed nor cordoned nor offline",
    "allocated": "What workspaces hold",
    "free": "What is in service, under no check, and held by nobody",
}


def _resources(pools: Iterable[Pool], devices: Iterable[Any], now: datetime) -> list[GaugeMetricFamily]:
    """Return the amounts of each resource and pool, in base units."""
    by_pool = counting.by_pool(Node.objects.all(), now, counting.counted(devices))
    families = []
    for amount, text in _AMOUNTS.items():
        gauge = _gauge(f"berth_resource_{amount}", f"{text}, in thousandths of a device or core and in MiB.")
        for pool in pools:
            for name, count in sorted(by_pool.get(pool.pk, {}).items()):
                gauge.add_sample(gauge.name, {"resource": name, **_pool_labels(pool)}, getattr(count, amount))
        families.append(gauge)
    return families


def _pools(pools: Iterable[Pool]) -> list[GaugeMetricFamily]:
    online = _gauge("berth_pool_online", "1 while the pool's driver answers.")
    for pool in pools:
        online.add_sample(
            online.name, _pool_labels(pool), float(pool.enabled and pool.state == PoolState.ONLINE)
        )
    return [online]


def _workspaces(pools: Iterable[Pool], now: datetime) -> list[GaugeMetricFamily]:
    by_state = _gauge("berth_workspaces", "Workspaces by state; those that wait or rest have no pool yet.")
    length = _gauge("berth_queue_length", "Workspaces that wait for capacity, by the pool that they name.")
    oldest = _gauge("berth_queue_oldest_wait_seconds", "How long the first that still waits has waited.")
    rows = (
        Workspace.objects.exclude(state=State.TERMINATED)
        .order_by("pool__slug", "flavor__pool__slug", "state")
        .values_list("pool__slug", "flavor__pool__slug", "state")
        .annotate(Count("pk"), Min("requested_at"))
    )
    states: Counter[tuple[str, str]] = Counter()
    waiting: Counter[str] = Counter()
    since: dict[str, datetime] = {}
    for pool, wanted, state, number, first in rows:
        states[pool or ANY_POOL, state] += number
        if state == State.PENDING:
            key = wanted or ANY_POOL
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
