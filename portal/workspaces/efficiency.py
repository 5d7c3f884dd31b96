"""GPU efficiency of a workspace since its start, with one hint, from measured samples only.

Covers up to 7 days, and whole devices only: samples of a shared GPU include other workspaces, and MIG
instances report no utilisation. Returns no figures if there are too few samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Max, Sum
from django.utils import timezone

from portal.common.reasons.reason import Reason
from portal.fleet.inventory.models import AllocatedDevice, DeviceHour
from portal.workspaces.codes import EfficiencyCode
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from provisioning.types import WHOLE_DEVICE_MILLI, DeviceKind

HOUR_S = 3600
SPAN = timedelta(days=7)
MIN_MEASURED_S = 3 * HOUR_S
"""Seconds that must be measured per device before figures are shown."""
MIN_MEASURED = 0.8
"""Share of the time that must be measured before a hint is shown."""
UNUSED = 0.01
"""A device used for a smaller share of the time counts as unused."""
IN_USE = 0.05
LITTLE = 0.2
"""Threshold for memory and time."""
HALF = 0.5


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """The use of one device while the workspace held it.

    `measured_s` are the seconds with a utilisation sample, `used_s` the sum of utilisation over them.
    `memory_max_mib` is the peak memory use (`None` if not measured), `memory_mib` the size (0 if unknown).
    """

    uuid: str
    measured_s: int
    used_s: float
    memory_max_mib: int | None = None
    memory_mib: int = 0

    @property
    def used(self) -> float:
        """The used share of the measured time, 0 to 1."""
        return self.used_s / self.measured_s if self.measured_s else 0.0


@dataclass(frozen=True, slots=True)
class Efficiency:
    """GPU efficiency of a workspace.

    `used` is the share of the measured GPU time, or `None` if too little was measured. `measured` is the
    measured share of the time between `since` and `until`.
    """

    since: datetime
    until: datetime
    used: float | None
    measured: float
    hint: Reason | None


def judge(devices: Sequence[DeviceUse], held_s: float) -> tuple[float | None, float, Reason | None]:
    """Return the used share, the measured share, and one hint, for devices held for `held_s` seconds."""
    if not devices or held_s <= 0:
        return None, 0.0, None
    seen_s = sum(device.measured_s for device in devices)
    measured = min(1.0, seen_s / (held_s * len(devices)))
    if min(device.measured_s for device in devices) < MIN_MEASURED_S:
        return None, measured, None
    used = sum(device.used_s for device in devices) / seen_s
    return used, measured, _hint(devices, used) if measured >= MIN_MEASURED else None


def _hint(devices: Sequence[DeviceUse], used: float) -> Reason | None:
    """Return the most useful hint, or `None`."""
    idle = [device for device in devices if device.used < UNUSED]
    percent = round(used * 100)
    if len(idle) == len(devices):
        return Reason(EfficiencyCode.NONE_USED, {"held": len(devices)})
    if idle and all(device.used >= IN_USE for device in devices if device not in idle):
        return Reason(EfficiencyCode.SOME_UNUSED, {"held": len(devices), "used": len(devices) - len(idle)})
    memory_share = _memory_share(devices)
    if memory_share is not None and memory_share < LITTLE and used < HALF:
        return Reason(
            EfficiencyCode.SMALLER_WOULD_DO, {"memory": round(memory_share * 100), "percent": percent}
        )
    if used < LITTLE:
        return Reason(EfficiencyCode.MOSTLY_IDLE, {"percent": percent})
    return None


def _memory_share(devices: Sequence[DeviceUse]) -> float | None:
    """Return the highest peak memory use as a share, or `None` if a device was not measured."""
    shares = [
        device.memory_max_mib / device.memory_mib
        for device in devices
        if device.memory_max_mib is not None and device.memory_mib
    ]
    return max(shares) if len(shares) == len(devices) else None


def efficiency_of(workspace: Workspace, *, now: datetime | None = None) -> Efficiency | None:
    """Return the efficiency, or `None` if the workspace is not running, has no whole device, or is simulated.

    Uses two queries.
    """
    if workspace.state != State.RUNNING or workspace.simulated or not workspace.accelerated:
        return None
    now = now or timezone.now()
    rows = list(
        AllocatedDevice.objects.filter(
            allocation__workspace=workspace,
            allocation__generation=workspace.generation,
            allocation__granted_at__isnull=False,
            active=True,
        ).values_list(
            "device_id",
            "device__uuid",
            "device__memory_mib",
            "device__kind",
            "milli",
            "allocation__granted_at",
        )
    )
    whole_devices = all(
        kind == DeviceKind.GPU.value and milli == WHOLE_DEVICE_MILLI for *_, kind, milli, _at in rows
    )
    if not rows or not whole_devices:
        return None
    began_s = max((now - SPAN).timestamp(), *(row[-1].timestamp() for row in rows if row[-1] is not None))
    # Full hours only, because earlier samples include the memory of the previous holder.
    since_s = -(-began_s // HOUR_S) * HOUR_S
    sums: dict[UUID, dict[str, Any]] = {
        row["series__device_id"]: dict(row)
        for row in DeviceHour.objects.filter(
            series__device__in=[row[0] for row in rows], start_s__gte=since_s, start_s__lt=now.timestamp()
        )
        .values("series__device_id")
        .annotate(measured=Sum("gpu_s"), percent_s=Sum("gpu_pct_s"), memory=Max("memory_max_mib"))
    }
    devices = []
    for pk, uuid, memory_mib, *_rest in rows:
        row = sums.get(pk, {})
        seen_s, percent_s = row.get("measured") or 0, row.get("percent_s") or 0
        devices.append(DeviceUse(uuid, seen_s, percent_s / 100, row.get("memory"), memory_mib))
    used, measured, hint = judge(devices, now.timestamp() - since_s)
    return Efficiency(datetime.fromtimestamp(min(since_s, now.timestamp()), UTC), now, used, measured, hint)
