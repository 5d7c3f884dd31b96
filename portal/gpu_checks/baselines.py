"""What a device's figures are held against besides the datasheet: earlier passes, its own and of others."""

from __future__ import annotations

from statistics import median
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef

from portal.gpu_checks.models import CheckKind, CheckVerdict, GpuCheckRun
from portal.inventory.models import Device

ENOUGH_DEVICES = 3
"""With fewer others a median says more about them than about the model."""
ENOUGH_NEIGHBOURS = 2
MAX_DEVICES = 64
DRIVER = "driver_version"
"""Stands beside `free_mib` among the measures of a run."""


def of_fleet(device: Device) -> dict[str, float]:
    """The median of the last passes of other devices of this model, and what this one last had free."""
    others = _last_passes(
        Device.objects.filter(
            model=device.model, kind=device.kind, node__pool__simulated=device.node.pool.simulated
        ).exclude(pk=device.pk)
    )
    found = _medians(others, ENOUGH_DEVICES)
    found.pop("free_mib", None)
    own = GpuCheckRun.objects.filter(device=device, **_PASSED).order_by("-created_at").first()
    if own is not None and _same_driver(own, device) and "free_mib" in (had := figures(own)):
        found["free_mib"] = had["free_mib"]
    return found


def clean_free_mib(device: Device) -> int | None:
    """What the device had free when it was last clean, if its driver is still the same."""
    last = (
        GpuCheckRun.objects.filter(device=device, kind=CheckKind.SCRUB, verdict=CheckVerdict.PASS)
        .order_by("-created_at")
        .first()
    )
    return device.clean_free_mib if last is not None and _same_driver(last, device) else None


def _same_driver(run: GpuCheckRun, device: Device) -> bool:
    """Another driver keeps another amount of memory for itself."""
    return bool(run.measures.get("free_mib", {}).get(DRIVER) == device.node.driver_version)


def of_node(device: Device) -> dict[str, float]:
    """The median of the last passes of its neighbours of the same model."""
    others = Device.objects.filter(node=device.node_id, model=device.model, kind=device.kind)
    found = _medians(_last_passes(others.exclude(pk=device.pk)), ENOUGH_NEIGHBOURS)
    found.pop("free_mib", None)
    return found


_PASSED: dict[str, Any] = {"kind": CheckKind.CHECK, "verdict": CheckVerdict.PASS}


def _last_passes(devices: Any) -> list[dict[str, float]]:
    """The figures of the last pass of each device."""
    later = GpuCheckRun.objects.filter(
        device=OuterRef("device"), created_at__gt=OuterRef("created_at"), **_PASSED
    )
    runs = GpuCheckRun.objects.filter(device__in=devices, **_PASSED).filter(~Exists(later))
    found: dict[UUID, dict[str, float]] = {}
    for run in runs.only("device", "measures").order_by("-created_at")[:MAX_DEVICES]:
        found.setdefault(run.device_id, figures(run))
    return list(found.values())


def figures(run: GpuCheckRun) -> dict[str, float]:
    """A run's figures by name."""
    return {
        name: float(each["value"])
        for name, each in run.measures.items()
        if isinstance(each, dict) and isinstance(each.get("value"), int | float)
    }


def _medians(of: list[dict[str, float]], enough: int) -> dict[str, float]:
    names = {name for each in of for name in each}
    values = {name: [each[name] for each in of if name in each] for name in names}
    return {name: median(found) for name, found in sorted(values.items()) if len(found) >= enough}
