"""What the site has of each resource when nothing is broken: the most that anybody could ever hold."""

from __future__ import annotations

from django.db.models import Count, Q, Sum

from portal.inventory.models import Device, Node
from portal.quotas import resources
from portal.quotas.models import SiteLimit
from provisioning.types import DeviceKind

MIG_INSTANCES_AT_MOST = 7
"""Of the smallest profile on one device; those of larger profiles are fewer."""
HOURS_AT_MOST = 720
"""GPU-hours are asked for 30 days at a time."""


def site_sizes(*, usable: bool = False) -> dict[str, int]:
    """By resource, over all enabled pools; `gpu_hours` are all real accelerators for 30 days.

    Devices and nodes count whatever their health, since they may come back; with `usable` only those
    that work now. A resource that no pool has is missing; MIG profiles are missing unless instances
    stand (see `size_of`). Site limits are applied.
    """
    found: dict[str, int] = {}
    nodes = Node.objects.filter(pool__enabled=True)
    devices = Device.objects.filter(present=True, node__pool__enabled=True)
    if usable:
        nodes = nodes.filter(online=True, cordoned=False)
        devices = devices.filter(healthy=True, cordoned=False, node__online=True, node__cordoned=False)

    def add(resource: str, amount: int) -> None:
        found[resource] = found.get(resource, 0) + amount

    for simulated, cpu, memory, disk in (
        nodes.order_by()
        .values_list("pool__simulated")
        .annotate(Sum("cpu_milli"), Sum("memory_mib"), Sum("disk_mib"))
    ):
        prefix = resources.SIMULATED if simulated else ""
        for name, amount in ((resources.CPU, cpu), (resources.MEMORY, memory), (resources.DISK, disk)):
            if amount:
                add(prefix + name, amount)
    for simulated, model, kind, profile, count in (
        devices.order_by()
        .values_list("node__pool__simulated", "model", "kind", "mig_profile")
        .annotate(count=Count("pk"))
    ):
        if kind == DeviceKind.MIG.value:
            if profile:
                add(resources.mig(profile, simulated=simulated), count * 1000)
            continue
        add(resources.gpu(model), count * 1000)
        if not simulated:
            add(resources.GPU, count * 1000)
    if resources.GPU in found:
        found[resources.GPU_HOURS] = found[resources.GPU] * 3600 * HOURS_AT_MOST
    for resource, amount in SiteLimit.objects.values_list("resource", "amount"):
        if resource in found:
            found[resource] = min(found[resource], amount)
    return found


def size_of(resource: str) -> int | None:
    """The most of it that anybody could ever hold; None where nothing but quota limits it."""
    if resource == resources.WORKSPACES:
        limit = SiteLimit.objects.filter(resource=resource).first()
        return limit.amount if limit else None
    if resource.startswith("mig:"):
        return _mig_size(resource)
    return site_sizes().get(resource, 0)


def _mig_size(resource: str) -> int:
    """As many as could be cut out of all devices in MIG mode; instances that stand already count at least."""
    simulated = resource.startswith("mig:simulated-")
    devices = Device.objects.filter(present=True, node__pool__enabled=True, node__pool__simulated=simulated)
    cut = devices.filter(~Q(kind=DeviceKind.MIG.value), mig_mode=True).count()
    return max(cut * MIG_INSTANCES_AT_MOST * 1000, site_sizes().get(resource, 0))
