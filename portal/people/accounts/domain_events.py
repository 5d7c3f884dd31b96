"""What accounts tells the rooms above it."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from portal.common.actors import SystemActor
from portal.common.domain_events import DomainEvent
from portal.people.accounts.models import Team, User


@dataclass(frozen=True, slots=True)
class SignedOut(DomainEvent):
    """A session of a user's at the portal has ended, by their own will or another's."""

    user_id: UUID


@dataclass(frozen=True, slots=True)
class UserDeactivated(DomainEvent):
    """A user may no longer do anything here: what goes on or waits in their name has to end."""

    user: User
    actor: User | SystemActor


@dataclass(frozen=True, slots=True)
class UserReactivated(DomainEvent):
    """An account has been given back."""

    user: User
    actor: User | SystemActor


@dataclass(frozen=True, slots=True)
class UserDeleted(DomainEvent):
    """`actor` deletes an account for good, in this transaction, with or without workspaces and homes."""

    user: User
    actor: User | SystemActor
    delete_workspaces: bool
    delete_homes: bool


@dataclass(frozen=True, slots=True)
class MemberSet(DomainEvent):
    """A user is in a team from now on, or has another role in it."""

    team: Team
    user: User
    role: str
    actor: User | SystemActor


@dataclass(frozen=True, slots=True)
class TeamsChanged(DomainEvent):
    """There is another team than before, or one has another name."""


@dataclass(frozen=True, slots=True)
class PlaceWithdrawn(DomainEvent):
    """A user is in a team no more, whatever they have there: what goes on in the team's name has to end."""

    user: User
    team: Team
    actor: User | SystemActor
