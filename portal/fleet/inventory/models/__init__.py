"""Models of capacity (pools, nodes, devices), allocations and device samples."""

from __future__ import annotations

from portal.fleet.inventory.models.allocations import AllocatedDevice, Allocation
from portal.fleet.inventory.models.capacity import (
    CheckLevel,
    CordonCause,
    Device,
    Node,
    PlacementPolicy,
    Pool,
    PoolState,
    RebalancingPolicy,
)
from portal.fleet.inventory.models.maintenance import MAX_REASON, SITE, Maintenance
from portal.fleet.inventory.models.placement_lock import PlacementLock
from portal.fleet.inventory.models.samples import DeviceHour, DeviceMinute, DeviceSeries

__all__ = [
    "MAX_REASON",
    "SITE",
    "AllocatedDevice",
    "Allocation",
    "CheckLevel",
    "CordonCause",
    "Device",
    "DeviceHour",
    "DeviceMinute",
    "DeviceSeries",
    "Maintenance",
    "Node",
    "PlacementLock",
    "PlacementPolicy",
    "Pool",
    "PoolState",
    "RebalancingPolicy",
]
