"""Domain events of machines."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from portal.common.domain_events import DomainEvent


@dataclass(frozen=True, slots=True)
class MachineEnded(DomainEvent):
    """A machine has left or was revoked. It is no longer trusted."""

    pool_id: UUID
    name: str


@dataclass(frozen=True, slots=True)
class MachineLeaving(DomainEvent):
    """A machine wants to leave.

    With `stop`, its workspaces are stopped immediately, else preempted with notice.
    """

    pool_id: UUID
    name: str
    stop: bool
