"""Domain events of accounts."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from portal.common.actors import SystemActor
from portal.common.domain_events import DomainEvent
from portal.people.accounts.models import Team, User


@dataclass(frozen=True, slots=True)
class SignedOut(DomainEvent):
    """A user's portal session has ended."""

    user_id: UUID


@dataclass(frozen=True, slots=True)
class UserDeactivated(DomainEvent):
    """A user was deactivated. Listeners end everything that runs or waits in the user's name."""

    user: User
    actor: User | SystemActor


@dataclass(frozen=True, slots=True)
class UserReactivated(DomainEvent):
    """An account was reactivated."""

    user: User
    actor: User | SystemActor


@dataclass(frozen=True, slots=True)
class UserDeleted(DomainEvent):
    """`actor` deletes an account in this transaction, optionally with its workspaces and homes."""

    user: User
    actor: User | SystemActor
    delete_workspaces: bool
    delete_homes: bool


@dataclass(frozen=True, slots=True)
class MemberSet(DomainEvent):
    """A user was added to a team or has a new role in it."""

    team: Team
    user: User
    role: str
    actor: User | SystemActor


@dataclass(frozen=True, slots=True)
class TeamsChanged(DomainEvent):
    """A team was created, renamed or deleted."""


@dataclass(frozen=True, slots=True)
class TeamArchived(DomainEvent):
    """A team was archived. Listeners end everything that runs or waits in it."""

    team: Team
    actor: User | SystemActor


@dataclass(frozen=True, slots=True)
class TeamDeletion(DomainEvent):
    """A team's deletion starts or is complete. Listeners delete the team's settings.

    They do so both times, because operators may add settings between the two events.
    """

    team: Team


@dataclass(frozen=True, slots=True)
class TeamDeletionStarted(TeamDeletion):
    """`actor` deletes a team in this transaction. Listeners delete its workspaces and homes."""

    actor: User | SystemActor


@dataclass(frozen=True, slots=True)
class TeamDeleted(TeamDeletion):
    """A team has been deleted with its workspaces and homes. `former_slug` can be reused."""

    former_slug: str


@dataclass(frozen=True, slots=True)
class MembershipRevoked(DomainEvent):
    """A user was removed from a team. Listeners end the user's workspaces there."""

    user: User
    team: Team
    actor: User | SystemActor
