"""What capacity there is, and what is known of its health."""

from __future__ import annotations

from portal.inventory.models.capacity import (
    CheckLevel,
    CordonCause,
    Device,
    Node,
    PlacementPolicy,
    Pool,
    PoolState,
)
from portal.inventory.models.checks import CheckCause, CheckKind, CheckStatus, CheckVerdict, GpuCheckRun
from portal.inventory.models.samples import DeviceHour, DeviceMinute, DeviceSeries

__all__ = [
    "CheckCause",
    "CheckKind",
    "CheckLevel",
    "CheckStatus",
    "CheckVerdict",
    "CordonCause",
    "Device",
    "DeviceHour",
    "DeviceMinute",
    "DeviceSeries",
    "GpuCheckRun",
    "Node",
    "PlacementPolicy",
    "Pool",
    "PoolState",
]
