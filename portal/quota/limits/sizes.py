"""The site's total of each resource with everything in service: the upper bound of any request."""

from __future__ import annotations

from django.db.models import Q

from portal.fleet.inventory import counting
from portal.fleet.inventory.models import Device
from portal.quota.limits import resources
from portal.quota.limits.models import SiteLimit
from provisioning.types import DeviceKind

MAX_MIG_INSTANCES = 7
"""Instances of the smallest profile per device; larger profiles have fewer."""
MAX_HOURS = 720
"""Upper bound of a request for GPU-hours: 30 days."""


def site_sizes() -> dict[str, int]:
    """Return totals by resource over all enabled pools; `gpu_hours` are all real accelerators for 30 days.

    Devices and nodes count regardless of health, since they may recover. Resources without a pool are
    missing; MIG profiles are missing unless instances exist (see `size_of`). Site limits apply.
    """
    totals = counting.site_totals()
    if resources.GPU in totals:
        totals[resources.GPU_HOURS] = totals[resources.GPU] * 3600 * MAX_HOURS
    for resource, amount in SiteLimit.objects.values_list("resource", "amount"):
        if resource in totals:
            totals[resource] = min(totals[resource], amount)
    return totals


def size_of(resource: str) -> int | None:
    """Return the upper bound of a resource; None if only quota limits it."""
    if resource == resources.WORKSPACES:
        limit = SiteLimit.objects.filter(resource=resource).first()
        return limit.amount if limit else None
    if resource.startswith("mig:"):
        return _mig_size(resource)
    return site_sizes().get(resource, 0)


def _mig_size(resource: str) -> int:
    """Return the most instances possible on devices in MIG mode, in thousandths.

    Never less than the existing instances.
    """
    simulated = resource.startswith("mig:simulated-")
    devices = Device.objects.filter(present=True, node__pool__enabled=True, node__pool__simulated=simulated)
    cut = devices.filter(~Q(kind=DeviceKind.MIG.value), mig_mode=True).count()
    return max(cut * MAX_MIG_INSTANCES * 1000, site_sizes().get(resource, 0))
