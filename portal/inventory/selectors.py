"""Reads of capacity. Everybody who is signed in may see pools; what runs on them has its own rules."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import (
    Case,
    CharField,
    Count,
    Exists,
    F,
    IntegerField,
    OuterRef,
    Prefetch,
    Q,
    QuerySet,
    Subquery,
    Sum,
    Value,
    When,
)

from portal.common.errors import NotFound
from portal.common.reasons.codes import InventoryCode
from portal.common.reasons.reason import Reason
from portal.inventory import series
from portal.inventory.device_states import IDLE_AFTER_S, DeviceState, state_of
from portal.inventory.models import CordonCause, Device, Node, Pool
from provisioning.types import WHOLE_DEVICE_MILLI, DeviceKind


def pools() -> QuerySet[Pool]:
    """Pools with `node_count`, `online_count`, `device_count`."""
    return Pool.objects.annotate(
        node_count=Count("nodes", distinct=True),
        online_count=Count("nodes", filter=Q(nodes__online=True), distinct=True),
        device_count=Count("nodes__devices", filter=Q(nodes__devices__present=True), distinct=True),
    ).order_by("slug")


def pool_by_slug(slug: str) -> Pool:
    pool = pools().filter(slug=slug).first()
    if pool is None:
        raise NotFound(Reason(InventoryCode.NO_SUCH_POOL, {"slug": slug}))
    return pool


def nodes() -> QuerySet[Node]:
    """Nodes with `used_cpu_milli`, `used_memory_mib` (None when nothing is used) and present devices."""
    active = Q(allocations__released_at=None)
    return (
        Node.objects.select_related("pool")
        .annotate(
            used_cpu_milli=Sum("allocations__cpu_milli", filter=active),
            used_memory_mib=Sum("allocations__memory_mib", filter=active),
        )
        .prefetch_related(Prefetch("devices", devices().filter(present=True)))
        .order_by("pool__slug", "name")
    )


def devices() -> QuerySet[Device]:
    """Devices with `used_milli`: how much of 1000 is allocated, None when nothing is."""
    return (
        Device.objects.select_related("node", "node__pool")
        .annotate(used_milli=Sum("allocated__milli", filter=Q(allocated__active=True)))
        .order_by("node__pool__slug", "node__name", "index")
    )


def devices_with_state() -> QuerySet[Device]:
    """`devices()` with all that `state_with` needs beside the row, in the same query."""
    parts = Device.objects.filter(parent_uuid=OuterRef("uuid"), node=OuterRef("node"), present=True)
    its_gpu = Device.objects.filter(uuid=OuterRef("parent_uuid"), node=OuterRef("node"))
    found_bad = Q(healthy=False) | Q(cordoned=True, cordon_cause__in=(CordonCause.CHECK, CordonCause.SCRUB))
    return devices().annotate(
        newest_s=F("series__newest_s"),
        idle_since_s=F("series__idle_since_s"),
        parts=_counted(parts),
        parts_held=_counted(parts.filter(allocated__active=True)),
        gpu_failed=Exists(its_gpu.filter(found_bad)),
        gpu_cordoned=Exists(its_gpu.filter(cordoned=True)),
    )


def _counted(parts: QuerySet[Device]) -> Subquery:
    counted = parts.order_by().values("parent_uuid").annotate(n=Count("pk", distinct=True)).values("n")
    return Subquery(counted, output_field=IntegerField())


def state_with(device: Any, now: datetime) -> DeviceState:
    """The state of a device of `devices_with_state`; that of an instance follows its GPU's troubles."""
    taken = device.used_milli or 0
    if device.kind == DeviceKind.GPU and device.parts:
        # A GPU that is split is held as far as its instances are.
        taken = WHOLE_DEVICE_MILLI * (device.parts_held or 0) // device.parts
    fresh = device.newest_s is not None and device.newest_s >= int(now.timestamp()) - series.FRESH_S
    known = fresh and device.idle_since_s is not None
    return state_of(
        present=device.present,
        online=device.node.online,
        healthy=device.healthy and not device.gpu_failed,
        cordoned=device.cordoned,
        cordon_cause=device.cordon_cause,
        node_cordoned=device.node.cordoned or device.gpu_cordoned,
        checking=device.checking,
        taken_milli=taken,
        idle_s=device.newest_s - device.idle_since_s if known else 0,
    )


def devices_in(state: DeviceState, now: datetime) -> Q:
    """Those of `devices_with_state` that are in this state: as `state_with` says, for the database."""
    bad = (CordonCause.CHECK, CordonCause.SCRUB)
    nothing = Q(parts__gt=0, parts_held=None) | Q(parts=None, used_milli=None)
    fresh = Q(newest_s__gte=int(now.timestamp()) - series.FRESH_S)
    whole = Q(parts__gt=0, parts_held__gte=F("parts")) | Q(parts=None, used_milli__gte=WHOLE_DEVICE_MILLI)
    ladder = (
        (Q(present=False) | Q(node__online=False), DeviceState.GONE),
        (
            Q(healthy=False) | Q(gpu_failed=True) | Q(cordoned=True, cordon_cause__in=bad),
            DeviceState.FAILED,
        ),
        (Q(cordoned=True) | Q(node__cordoned=True) | Q(gpu_cordoned=True), DeviceState.CORDONED),
        (Q(checking=True), DeviceState.CHECKING),
        (nothing, DeviceState.FREE),
        (fresh & Q(idle_since_s__lte=F("newest_s") - IDLE_AFTER_S), DeviceState.IDLE),
        (whole, DeviceState.ALLOCATED),
    )
    return Q(
        pk__in=devices_with_state()
        .order_by()
        .annotate(
            word=Case(
                *(When(where, then=Value(word.value)) for where, word in ladder),
                default=Value(DeviceState.SHARED.value),
                output_field=CharField(),
            )
        )
        .filter(word=state.value)
        .values("pk")
    )


def capacity() -> dict[str, int]:
    """What all real pools that are online have and what is free: for the dashboard."""
    active = Q(allocations__released_at=None)
    real = Node.objects.filter(online=True, cordoned=False, pool__simulated=False, pool__enabled=True)
    total = real.aggregate(cpu=Sum("cpu_milli"), memory=Sum("memory_mib"), nodes=Count("pk"))
    used = real.filter(active).aggregate(
        cpu=Sum("allocations__cpu_milli"), memory=Sum("allocations__memory_mib")
    )
    accelerators = Device.objects.filter(node__in=real, present=True, healthy=True)
    busy = accelerators.filter(allocated__active=True).distinct().count()
    cpu, memory = total["cpu"] or 0, total["memory"] or 0
    device_count = accelerators.count()
    return {
        "nodes": total["nodes"],
        "cpu_milli": cpu,
        "free_cpu_milli": max(cpu - (used["cpu"] or 0), 0),
        "memory_mib": memory,
        "free_memory_mib": max(memory - (used["memory"] or 0), 0),
        "devices": device_count,
        "free_devices": device_count - busy,
    }
