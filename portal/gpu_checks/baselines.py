"""Baselines for a device's figures besides the datasheet: earlier passes of this and other devices."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from uuid import UUID

from django.db.models import Exists, OuterRef, Q, QuerySet

from portal.common.events.kinds import AuditKind
from portal.common.events.models import EventTarget, TargetKind
from portal.fleet.inventory.models import CheckLevel, Device
from portal.gpu_checks.models import CheckKind, CheckVerdict, GpuCheckRun
from provisioning.gpu.check.thresholds import OWN, lacks_datasheet

ENOUGH_DEVICES = 3
"""Minimum number of devices for a median; with fewer, it says little about the model."""
ENOUGH_NEIGHBOURS = 2
AGREE = 0.1
"""Maximum relative deviation from the median, for a model without a datasheet."""
MAX_DEVICES = 64
MAX_OWN_PASSES = 32
DRIVER, SOFTWARE, METRIC = "driver_version", "software", "metric"
"""Keys in a run's measures, besides `free_mib`."""


@dataclass(frozen=True, slots=True)
class Baselines:
    """Medians of the fleet and of the node, by figure, measured with `software`."""

    software: str = ""
    fleet: dict[str, float] = field(default_factory=dict)
    node: dict[str, float] = field(default_factory=dict)


def baselines_for(device: Device) -> Baselines:
    """Return the baselines for a check of this device, from passes with the last software of its node.

    Only the check knows the current software, so a check with other software ignores these baselines. Without
    a datasheet, no first pass would be possible, so values on which enough devices of the model agree are
    used.
    """
    same_model = Device.objects.filter(
        model=device.model, kind=device.kind, node__pool__simulated=device.node.pool.simulated
    )
    own = _own_figures_of(device)
    software = _software_of(same_model.filter(node=device.node_id)) or _software_of(same_model)
    if not software:
        return Baselines(fleet=own)
    others = same_model.exclude(pk=device.pk)
    fleet = _medians(_last_figures(others, software, _PASSED), ENOUGH_DEVICES)
    if not device.node.pool.simulated:
        fleet = _agreed_medians(_last_figures(same_model, software, _NOT_REFUTED), device.model) | fleet
    for name in ("free_mib", *OWN):
        fleet.pop(name, None)
    fleet |= _free_memory_of(device, software)
    neighbours = _last_figures(others.filter(node=device.node_id), software, _PASSED)
    node = _medians(neighbours, ENOUGH_NEIGHBOURS)
    for name in OWN:
        node.pop(name, None)
    return Baselines(software, fleet | own, node)


def _free_memory_of(device: Device, software: str) -> dict[str, float]:
    """Return the device's own free memory when it last passed, by ECC mode and display."""
    passes = GpuCheckRun.objects.filter(_PASSED, device=device).only("measures").order_by("-created_at")
    memory_by_metric: dict[str, float] = {}
    for run in passes[:MAX_OWN_PASSES]:
        metric = str(run.measures.get("free_mib", {}).get(METRIC, ""))
        if metric and software_of(run) == software and "free_mib" in (values := figures(run)):
            memory_by_metric.setdefault(metric, values["free_mib"])
    return memory_by_metric


def _own_figures_of(device: Device) -> dict[str, float]:
    """Return the device's own links and retired memory in its last check that did not fail.

    A person who returns the device to service accepts its current state.
    """
    accepted = EventTarget.objects.filter(
        kind=TargetKind.DEVICE,
        key=device.uuid,
        event__kind=AuditKind.DEVICE_UNCORDONED,
        event__actor__isnull=False,
    ).order_by("-event_id")
    runs = GpuCheckRun.objects.filter(
        device=device, kind=CheckKind.CHECK, verdict__in=[CheckVerdict.PASS, CheckVerdict.DEGRADED]
    )
    if (at := accepted.values_list("event__at", flat=True).first()) is not None:
        runs = runs.filter(created_at__gt=at)
    last = runs.order_by("-created_at").first()
    last_figures = figures(last) if last is not None else {}
    return {name: last_figures[name] for name in OWN if name in last_figures}


def _software_of(devices: QuerySet[Device]) -> str:
    """Return the software of the newest pass, or undecided check, of these devices."""
    newest = GpuCheckRun.objects.filter(_NOT_REFUTED, device__in=devices).order_by("-created_at").first()
    return software_of(newest) if newest is not None else ""


def software_of(run: GpuCheckRun) -> str:
    """Return the driver and libraries of a run, or an empty string."""
    return str(run.measures.get("free_mib", {}).get(SOFTWARE, ""))


def clean_free_mib(device: Device) -> int | None:
    """Return the device's free memory when it was last clean, if its driver has not changed."""
    last = (
        GpuCheckRun.objects.filter(device=device, kind=CheckKind.SCRUB, verdict=CheckVerdict.PASS)
        .order_by("-created_at")
        .first()
    )
    return device.clean_free_mib if last is not None and _same_driver(last, device) else None


def _same_driver(run: GpuCheckRun, device: Device) -> bool:
    """Return whether the run used the node's current driver. Drivers reserve different amounts of memory."""
    return bool(run.measures.get("free_mib", {}).get(DRIVER) == device.node.driver_version)


_PASSED = Q(kind=CheckKind.CHECK, verdict=CheckVerdict.PASS)
_NOT_REFUTED = _PASSED | Q(kind=CheckKind.CHECK, unjudged=True)


def _last_figures(devices: QuerySet[Device], software: str, condition: Q) -> list[dict[str, float]]:
    """Return each device's latest figures from its last run per level, if measured with this software."""
    later = GpuCheckRun.objects.filter(
        condition, device=OuterRef("device"), level=OuterRef("level"), created_at__gt=OuterRef("created_at")
    )
    runs = GpuCheckRun.objects.filter(condition, device__in=devices).filter(~Exists(later))
    figures_by_device: defaultdict[UUID, dict[str, float]] = defaultdict(dict)
    newest_first = runs.only("device", "measures").order_by("-created_at")
    for run in newest_first[: MAX_DEVICES * len(CheckLevel)]:
        if software_of(run) == software:
            figures_by_device[run.device_id] = figures(run) | figures_by_device[run.device_id]
    return list(figures_by_device.values())


def figures(run: GpuCheckRun) -> dict[str, float]:
    """Return a run's figures by name."""
    return {
        name: float(measure["value"])
        for name, measure in run.measures.items()
        if isinstance(measure, dict) and isinstance(measure.get("value"), int | float)
    }


def _medians(of: list[dict[str, float]], enough: int) -> dict[str, float]:
    names = {name for entry in of for name in entry}
    values = {name: [entry[name] for entry in of if name in entry] for name in names}
    return {name: median(series) for name, series in sorted(values.items()) if len(series) >= enough}


def _agreed_medians(of: list[dict[str, float]], model: str) -> dict[str, float]:
    """Return the values that enough devices agree on, for figures without a datasheet."""
    medians = {}
    for name in sorted({name for entry in of for name in entry if lacks_datasheet(name, model)}):
        values = [entry[name] for entry in of if name in entry]
        middle = median(values)
        near = [value for value in values if abs(value - middle) <= AGREE * middle]
        if len(near) >= ENOUGH_DEVICES:
            medians[name] = median(near)
    return medians
