"""Domain events of accounts."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from portal.common.actors import SystemActor
from portal.common.domain_events import DomainEvent
from portal.people.accounts.models import Team, User


@dataclass(frozen=True, slots=True)
class SignedOut(DomainEvent):
    """A session of a user at the portal has ended."""

    user_id: UUID


@dataclass(frozen=True, slots=True)
class UserDeactivated(DomainEvent):
    """A user was deactivated. Everything running or waiting in their name has to end."""

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
    """A team was archived. Everything running or waiting in it has to end."""

    team: Team
    actor: User | SystemActor


@dataclass(frozen=True, slots=True)
class TeamDeletion(DomainEvent):
    """Start or end of a team's deletion. Its settings have to end.

    They end twice, because operators may add some in between.
    """

    team: Team


@dataclass(frozen=True, slots=True)
class TeamDeletionStarted(TeamDeletion):
    """`actor` deletes a team in this transaction. Its workspaces and homes have to end."""

    actor: User | SystemActor


@dataclass(frozen=True, slots=True)
class TeamDeleted(TeamDeletion):
    """A team is deleted: its workspaces and homes are gone. `former_slug` can be used again."""

    former_slug: str


@dataclass(frozen=True, slots=True)
class MembershipRevoked(DomainEvent):
    """A user was removed from a team, regardless of their workspaces, which have to end."""

    user: User
    team: Team
    actor: User | SystemActor
