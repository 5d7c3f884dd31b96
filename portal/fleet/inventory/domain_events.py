"""Domain events of the inventory; portal/wiring.py connects them to handlers."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from portal.common.actors import SystemActor
from portal.common.domain_events import DomainEvent
from portal.fleet.inventory.models import Pool
from portal.people.accounts.models import User


@dataclass(frozen=True, slots=True)
class InventoryApplied(DomainEvent):
    """A pool's inventory has been stored."""

    pool: Pool


@dataclass(frozen=True, slots=True)
class PoolDeleted(DomainEvent):
    """`actor` deletes a pool, in this transaction; nothing is placed there."""

    pool: Pool
    actor: User | SystemActor


@dataclass(frozen=True, slots=True)
class CapacityChanged(DomainEvent):
    """Pools, nodes or devices have been added, removed, or changed in kind or size."""


@dataclass(frozen=True, slots=True)
class NodesChanged(DomainEvent):
    """These nodes, or devices on them, have begun or ceased to take work, or to have a warning."""

    nodes: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class CapacityFreed(DomainEvent):
    """Capacity has become free or returned to service: pending workspaces may fit now."""


@dataclass(frozen=True, slots=True)
class NodeUncordoned(DomainEvent):
    """A node is back in placement."""

    node_id: UUID


@dataclass(frozen=True, slots=True)
class NodeForgotten(DomainEvent):
    """What is left of a machine that has gone is removed."""

    node_id: UUID


@dataclass(frozen=True, slots=True)
class DeviceUncordoned(DomainEvent):
    """A device is back in placement."""

    device_id: UUID
