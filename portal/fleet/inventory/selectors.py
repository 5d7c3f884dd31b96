"""Queries for capacity. Visible to all signed-in users; permissions on workspaces are separate."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import Count, Exists, IntegerField, OuterRef, Prefetch, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone

from portal.common.errors import NotFound
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.codes import InventoryCode
from portal.fleet.inventory.contact import in_contact
from portal.fleet.inventory.device_states import KNOWN, annotate_state
from portal.fleet.inventory.maintenance_state import is_active
from portal.fleet.inventory.models import Device, Node, Pool
from provisioning import mounts
from provisioning.types import DeviceKind

_INSTANCES = Device.objects.filter(parent_uuid=OuterRef("uuid"), node=OuterRef("node"), present=True)
_COUNTED_OF_POOL = (
    Device.objects.filter(KNOWN, Q(kind=DeviceKind.MIG.value) | ~Q(Exists(_INSTANCES)))
    .filter(node__pool=OuterRef("pk"))
    .order_by()
    .values("node__pool")
    .annotate(count=Count("pk"))
    .values("count")
)


def pools() -> QuerySet[Pool]:
    """Return pools with `node_count`, `online_count` and `device_count`.

    MIG instances are counted instead of the GPU that they partition.
    """
    return (
        Pool.objects.filter(deleted_at=None)
        .annotate(
            node_count=Count("nodes", filter=Q(nodes__retired=False), distinct=True),
            online_count=Count("nodes", filter=in_contact("nodes__", pool=""), distinct=True),
            device_count=Coalesce(Subquery(_COUNTED_OF_POOL, output_field=IntegerField()), 0),
        )
        .order_by("slug")
    )


def pool_by_slug(slug: str) -> Pool:
    pool = pools().filter(slug=slug).first()
    if pool is None:
        raise NotFound(Reason(InventoryCode.NO_SUCH_POOL, {"slug": slug}))
    return pool


def nodes() -> QuerySet[Node]:
    """Return nodes that are not retired, with allocated CPU, memory and disk, and devices with state.

    The amounts are in `used_*`, None if nothing is allocated. `closed`: whether the pool is in maintenance.
    """
    active = Q(allocations__released_at=None)
    return (
        Node.objects.filter(retired=False)
        .select_related("pool")
        .annotate(
            used_cpu_milli=Sum("allocations__cpu_milli", filter=active),
            used_memory_mib=Sum("allocations__memory_mib", filter=active),
            used_disk_mib=Sum("allocations__disk_mib", filter=active),
            closed=is_active(timezone.now()),
        )
        .prefetch_related(Prefetch("devices", devices_with_state().filter(KNOWN)))
        .order_by("pool__slug", "name")
    )


def folders_shown() -> list[str]:
    """Return folders that nodes in service offer to workspaces, in the syntax of templates.

    Folders that some nodes offer for writing end in `:rw`.
    """
    rows = Node.objects.filter(pool__enabled=True, retired=False).values_list("provides", flat=True)
    folders = {need.removeprefix(mounts.NEED) for row in rows for need in row if need.startswith(mounts.NEED)}
    return sorted(folder for folder in folders if f"{folder}{mounts.WRITABLE}" not in folders)


def devices() -> QuerySet[Device]:
    """Return devices with `used_milli`: the allocated part of 1000, or None."""
    return (
        Device.objects.select_related("node", "node__pool")
        .annotate(used_milli=Sum("allocated__milli", filter=Q(allocated__active=True)))
        .order_by("node__pool__slug", "node__name", "index")
    )


def devices_with_state(now: datetime | None = None) -> QuerySet[Any]:
    """Return devices with `state`, `used_milli`, `partitioned`, `gpu_out`; see `annotate_state`."""
    return annotate_state(
        Device.objects.select_related("node", "node__pool").order_by(
            "node__pool__slug", "node__name", "index"
        ),
        now or timezone.now(),
    )
