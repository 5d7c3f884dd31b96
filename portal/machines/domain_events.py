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
