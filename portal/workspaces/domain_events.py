"""What workspaces tell the rooms above them. Each workspace is locked by the emitter, or new."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from portal.common.domain_events import DomainEvent
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.models import Node, Pool
from portal.workspaces.lifecycle import TerminationReason
from portal.workspaces.models import Workspace
from provisioning.types import HomeUsage


@dataclass(frozen=True, slots=True)
class WorkspaceQueued(DomainEvent):
    """A person has put a workspace into the queue, and waits for what becomes of it."""

    workspace: Workspace


@dataclass(frozen=True, slots=True)
class StateChanged(DomainEvent):
    """These are in another state than before."""

    workspaces: tuple[Workspace, ...]


@dataclass(frozen=True, slots=True)
class RequestChanged(DomainEvent):
    """Another desired state than before, or another rank in the queue; the state is what it was."""

    workspace: Workspace


@dataclass(frozen=True, slots=True)
class StopAsked(DomainEvent):
    """A person has said that it shall be stopped, or stay so; it may be that already."""

    workspace: Workspace


@dataclass(frozen=True, slots=True)
class WorkspaceExtended(DomainEvent):
    """A person has moved the end of a running workspace by so many seconds."""

    workspace: Workspace
    seconds: int


@dataclass(frozen=True, slots=True)
class EndpointChanged(DomainEvent):
    """Its app answers, or will answer, somewhere else than before."""

    workspace: Workspace


@dataclass(frozen=True, slots=True)
class WorkspaceReady(DomainEvent):
    """Its app answers: its user can work from now on."""

    workspace: Workspace


@dataclass(frozen=True, slots=True)
class WorkspaceFailed(DomainEvent):
    """It could not be started, or ended without being asked to; `reason` says why."""

    workspace: Workspace
    termination: TerminationReason
    reason: Reason


@dataclass(frozen=True, slots=True)
class WorkspaceWaits(DomainEvent):
    """A workspace waits for a place, as it did before or again."""

    workspace: Workspace


@dataclass(frozen=True, slots=True)
class PreflightDue(DomainEvent):
    """A workspace that waits for checks of its devices is to be looked at."""

    workspace: Workspace


@dataclass(frozen=True, slots=True)
class PreemptionDue(DomainEvent):
    """The time at which a running workspace has to make room has come."""

    workspace: Workspace


@dataclass(frozen=True, slots=True)
class AllocationsReleased(DomainEvent):
    """A workspace has given back what it held; `used` says whether its programs may have run there."""

    workspace: Workspace
    devices: tuple[UUID, ...]
    used: bool


@dataclass(frozen=True, slots=True)
class HomesMeasured(DomainEvent):
    """A node has measured home folders that lie on it, whether anybody's or nobody's."""

    node: Node
    homes: tuple[HomeUsage, ...]


@dataclass(frozen=True, slots=True)
class StrangersFound(DomainEvent):
    """A node has told of all that runs there; these external names are of no workspace and end now."""

    pool: Pool
    node: str
    names: tuple[str, ...]
