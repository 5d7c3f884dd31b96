"""Domain events of the inventory; portal/wiring.py connects them to handlers."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from portal.common.domain_events import DomainEvent
from portal.inventory.models import Pool


@dataclass(frozen=True, slots=True)
class InventoryApplied(DomainEvent):
    """A pool's inventory has been stored."""

    pool: Pool


@dataclass(frozen=True, slots=True)
class CapacityChanged(DomainEvent):
    """There are other pools, nodes or devices than before, or what they are is different."""


@dataclass(frozen=True, slots=True)
class NodesChanged(DomainEvent):
    """Nodes or devices have been cordoned, uncordoned, or changed their health."""

    nodes: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class CapacityFreed(DomainEvent):
    """Something may be placed that could not be before: whoever waits may fit now."""


@dataclass(frozen=True, slots=True)
class NodeUncordoned(DomainEvent):
    """A node is back in placement."""

    node_id: UUID


@dataclass(frozen=True, slots=True)
class DeviceUncordoned(DomainEvent):
    """A device is back in placement."""

    device_id: UUID
