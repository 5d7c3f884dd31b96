"""What GPU checks tell, within the room and to those above it."""

from __future__ import annotations

from dataclasses import dataclass

from portal.common.domain_events import DomainEvent
from portal.workspaces.models import Workspace


@dataclass(frozen=True, slots=True)
class HandOutCheckEnded(DomainEvent):
    """A check before hand-out has ended; the workspace that waits for it is locked."""

    workspace: Workspace
