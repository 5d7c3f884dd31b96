"""Domain events of the inventory. portal/wiring.py connects them to handlers."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from portal.common.actors import SystemActor
from portal.common.domain_events import DomainEvent
from portal.fleet.inventory.models import Pool
from portal.people.accounts.models import User


@dataclass(frozen=True, slots=True)
class InventoryApplied(DomainEvent):
    """The inventory of a pool was stored."""

    pool: Pool


@dataclass(frozen=True, slots=True)
class PoolDeleted(DomainEvent):
    """`actor` deletes a pool in this transaction. The pool is empty."""

    pool: Pool
    actor: User | SystemActor


@dataclass(frozen=True, slots=True)
class CapacityChanged(DomainEvent):
    """Pools, nodes or devices have been added, removed, or changed in kind or size."""


@dataclass(frozen=True, slots=True)
class NodesChanged(DomainEvent):
    """Nodes, or devices on them, became available or unavailable for placement, or their warnings changed."""

    nodes: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class CapacityFreed(DomainEvent):
    """Capacity was released or returned to service, so pending workspaces may fit."""


@dataclass(frozen=True, slots=True)
class NodeUncordoned(DomainEvent):
    """A node was uncordoned."""

    node_id: UUID


@dataclass(frozen=True, slots=True)
class NodeForgotten(DomainEvent):
    """The node of a removed machine is being deleted."""

    node_id: UUID


@dataclass(frozen=True, slots=True)
class DeviceUncordoned(DomainEvent):
    """A device was uncordoned."""

    device_id: UUID
