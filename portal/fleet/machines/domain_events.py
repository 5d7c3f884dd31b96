"""What machines tell the rooms above them."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from portal.common.domain_events import DomainEvent


@dataclass(frozen=True, slots=True)
class MachineEnded(DomainEvent):
    """A machine is believed no more: it has left, or was revoked."""

    pool_id: UUID
    name: str


@dataclass(frozen=True, slots=True)
class MachineLeaving(DomainEvent):
    """A machine wants to leave; what is placed there goes first: at once with `stop`, else with notice."""

    pool_id: UUID
    name: str
    stop: bool
