"""Workspace events for other apps. The emitter holds the lock on each workspace, or has just created it."""

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
    """A person queued a workspace and waits for the result."""

    workspace: Workspace


@dataclass(frozen=True, slots=True)
class WorkspaceRequested(DomainEvent):
    """A person requested a new workspace, or started a stopped or failed one."""

    workspace: Workspace


@dataclass(frozen=True, slots=True)
class StateChanged(DomainEvent):
    """The state of these workspaces has changed."""

    workspaces: tuple[Workspace, ...]


@dataclass(frozen=True, slots=True)
class RequestChanged(DomainEvent):
    """The desired state or the rank in the queue has changed; the state has not."""

    workspace: Workspace


@dataclass(frozen=True, slots=True)
class StopRequested(DomainEvent):
    """A person asked to stop the workspace, or to keep it stopped."""

    workspace: Workspace


@dataclass(frozen=True, slots=True)
class WorkspaceExtended(DomainEvent):
    """A person extended a running workspace by `seconds`."""

    workspace: Workspace
    seconds: int


@dataclass(frozen=True, slots=True)
class EndpointChanged(DomainEvent):
    """The endpoint of a workspace's app has changed."""

    workspace: Workspace


@dataclass(frozen=True, slots=True)
class WorkspaceReady(DomainEvent):
    """The app of a workspace answers, so its owner can work."""

    workspace: Workspace


@dataclass(frozen=True, slots=True)
class WorkspaceFailed(DomainEvent):
    """A workspace failed to start or ended unexpectedly. `reason` explains why."""

    workspace: Workspace
    termination: TerminationReason
    reason: Reason


@dataclass(frozen=True, slots=True)
class EngineRequeued(DomainEvent):
    """The engine has preempted a running workspace and has queued it again."""

    workspace: Workspace


@dataclass(frozen=True, slots=True)
class WorkspaceWaits(DomainEvent):
    """A workspace is still queued, or was queued again."""

    workspace: Workspace


@dataclass(frozen=True, slots=True)
class PreflightDue(DomainEvent):
    """It is time to reconcile a workspace that waits for GPU checks."""

    workspace: Workspace


@dataclass(frozen=True, slots=True)
class HomeMoveDue(DomainEvent):
    """It is time to reconcile a workspace that waits for its home."""

    workspace: Workspace


@dataclass(frozen=True, slots=True)
class HomeMoveEnded(DomainEvent):
    """A home move that a workspace waits for has ended. The workspace is not locked."""

    workspace: UUID


@dataclass(frozen=True, slots=True)
class PreemptionDue(DomainEvent):
    """It is time to preempt a workspace."""

    workspace: Workspace


@dataclass(frozen=True, slots=True)
class AllocationsReleased(DomainEvent):
    """A workspace released its allocation; `used` says whether its programs may have run there."""

    workspace: Workspace
    devices: tuple[UUID, ...]
    used: bool


@dataclass(frozen=True, slots=True)
class HomesMeasured(DomainEvent):
    """A node measured its home folders, with or without an owner."""

    node: Node
    homes: tuple[HomeUsage, ...]


@dataclass(frozen=True, slots=True)
class HomesChanged(DomainEvent):
    """Homes have moved between nodes, or their owners' average use has changed."""

    nodes: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class UnknownWorkspacesReported(DomainEvent):
    """A node reported external names of workspaces that the portal does not know. They are being ended."""

    pool: Pool
    node: str
    names: tuple[str, ...]
