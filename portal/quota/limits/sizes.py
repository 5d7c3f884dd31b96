"""What the site has of each resource when nothing is broken: the most that anybody could ever hold."""

from __future__ import annotations

from django.db.models import Q

from portal.fleet.inventory import counting
from portal.fleet.inventory.models import Device
from portal.quota.limits import resources
from portal.quota.limits.models import SiteLimit
from provisioning.types import DeviceKind

MAX_MIG_INSTANCES = 7
"""Of the smallest profile on one device; those of larger profiles are fewer."""
MAX_HOURS = 720
"""GPU-hours are asked for 30 days at a time."""


def site_sizes() -> dict[str, int]:
    """By resource, over all enabled pools; `gpu_hours` are all real accelerators for 30 days.

    Devices and nodes count whatever their health, since they may come back. A resource that no pool has is
    missing; MIG profiles are missing unless instances stand (see `size_of`). Site limits are applied.
    """
    found = counting.site_totals()
    if resources.GPU in found:
        found[resources.GPU_HOURS] = found[resources.GPU] * 3600 * MAX_HOURS
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
    return max(cut * MAX_MIG_INSTANCES * 1000, site_sizes().get(resource, 0))
