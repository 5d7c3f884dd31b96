"""Events of GPU checks."""

from __future__ import annotations

from dataclasses import dataclass

from portal.common.domain_events import DomainEvent
from portal.workspaces.models import Workspace


@dataclass(frozen=True, slots=True)
class PreflightCheckEnded(DomainEvent):
    """A preflight check has ended. The workspace that waits for it is locked."""

    workspace: Workspace
