"""What accounts tells the rooms above it."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from portal.common.domain_events import DomainEvent


@dataclass(frozen=True, slots=True)
class SignedOut(DomainEvent):
    """A user has ended a session of theirs at the portal."""

    user_id: UUID


@dataclass(frozen=True, slots=True)
class TeamsChanged(DomainEvent):
    """There is another team than before, or one has another name."""
