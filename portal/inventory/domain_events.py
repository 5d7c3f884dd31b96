"""What inventory tells the rooms above it."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from portal.common.domain_events import DomainEvent
from portal.inventory.models import Pool


@dataclass(frozen=True, slots=True)
class InventoryApplied(DomainEvent):
    """What a pool's driver saw has been taken in."""

    pool: Pool


@dataclass(frozen=True, slots=True)
class CapacityChanged(DomainEvent):
    """There are other pools, nodes or devices than before, or what they are is different."""


@dataclass(frozen=True, slots=True)
class NodesChanged(DomainEvent):
    """Whether these nodes, or devices of theirs, take work is different."""

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
