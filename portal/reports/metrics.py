"""What Prometheus is told: GPUs under the names of DCGM's exporter, and Berth's own gauges.

A fixed number of queries for any number of devices. What was not measured has no sample; what is simulated
carries the label `simulated="true"`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from uuid import UUID

from django.db.models import Count, Exists, Min, OuterRef
from django.utils import timezone

from portal.inventory import series
from portal.inventory.models import AllocatedDevice, Device, Pool, PoolState
from portal.reports.exposition import Gauge, labels_text
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from provisioning.gpu import dcgm_names
from provisioning.gpu.samples import Sample
from provisioning.types import DeviceInfo, DeviceKind

DEVICE_STATES = ("free", "allocated", "allocated_idle", "checking", "cordoned", "unhealthy", "gone")
ANY_POOL = ""


def gauges(now: datetime | None = None) -> list[Gauge]:
    """Everything, in the order of the page."""
    now = now or timezone.now()
    devices = list(
        Device.objects.select_related("node", "node__pool")
        .annotate(held=Exists(AllocatedDevice.objects.filter(device=OuterRef("pk"), active=True)))
        .order_by("node__pool__slug", "node__name", "index", "uuid")
    )
    idle = series.idle_times(now)
    pools = list(Pool.objects.order_by("slug"))
    return [
        *_dcgm(devices, _newest(now)),
        *_devices(devices, idle),
        *_pools(pools),
        *_workspaces(pools, now),
    ]


def _newest(now: datetime) -> dict[str, Sample]:
    """What nodes show now; the newest minute where they show nothing."""
    now_s = now.timestamp()
    return series.newest_minutes(now_s=now_s) | series.newest(now_s=now_s)


def _dcgm(devices: Iterable[Device], samples: Mapping[str, Sample]) -> list[Gauge]:
    found = {name: Gauge(name, text) for name, text in dcgm_names.help_texts().items()}
    for device in devices:
        sample = samples.get(device.uuid)
        if sample is None:
            continue
        text = ""
        for name, labels, value in dcgm_names.gauges(sample, _info(device), hostname=device.node.name):
            text = text or labels_text(labels | _whose(device.node.pool))
            found[name].add(value, text)
    return list(found.values())


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


def _whose(pool: Pool) -> dict[str, str]:
    return {"pool": pool.slug, "simulated": "true" if pool.simulated else "false"}


def _state(device: Device, idle: Mapping[UUID, int]) -> str:
    """The first that is true, of what matters most."""
    if not device.present:
        return "gone"
    if not device.healthy:
        return "unhealthy"
    if device.cordoned or device.node.cordoned:
        return "cordoned"
    if device.checking:
        return "checking"
    if not device.held:  # type: ignore[attr-defined]
        return "free"
    return "allocated_idle" if device.pk in idle else "allocated"


def _devices(devices: Iterable[Device], idle: Mapping[UUID, int]) -> list[Gauge]:
    count = Gauge("berth_devices", "Accelerators by state; idle is what was measured to do nothing.")
    idle_s = Gauge("berth_device_idle_seconds", "For how long a device that is held has done nothing.")
    by_pool: dict[str, tuple[Pool, Counter[str]]] = {}
    for device in devices:
        pool = device.node.pool
        state = _state(device, idle)
        by_pool.setdefault(pool.slug, (pool, Counter()))[1][state] += 1
        if state == "allocated_idle":
            labels = {"UUID": device.uuid, "Hostname": device.node.name, **_whose(pool)}
            idle_s.add(idle[device.pk], labels)
    for pool, states in by_pool.values():
        for state in DEVICE_STATES:
            count.add(states[state], {"state": state, **_whose(pool)})
    return [count, idle_s]


def _pools(pools: Iterable[Pool]) -> list[Gauge]:
    online = Gauge("berth_pool_online", "1 while the pool's driver answers.")
    for pool in pools:
        online.add(pool.enabled and pool.state == PoolState.ONLINE, _whose(pool))
    return [online]


def _workspaces(pools: Iterable[Pool], now: datetime) -> list[Gauge]:
    by_state = Gauge("berth_workspaces", "Workspaces by state; those that wait or rest have no pool yet.")
    length = Gauge("berth_queue_length", "Workspaces that wait for capacity, by the pool that they name.")
    oldest = Gauge("berth_queue_oldest_wait_seconds", "How long the first that still waits has waited.")
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
    known = {pool.slug: _whose(pool) for pool in pools}
    any_pool = {"pool": ANY_POOL, "simulated": "false"}
    for (pool, state), number in sorted(states.items()):
        by_state.add(number, {"state": state, **known.get(pool, any_pool)})
    for key, labels in {ANY_POOL: any_pool, **known}.items():
        length.add(waiting[key], labels)
        wait_s = (now - since[key]).total_seconds() if key in since else 0
        oldest.add(max(0, round(wait_s)), labels)
    return [by_state, length, oldest]
