"""Port to the policies that end workspaces: limits of extensions."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from portal.common.ports import Port
from portal.workspaces.models import Workspace


class ExtensionPolicy(Protocol):
    """Decides how far people may extend workspaces."""

    def longest_s(self, workspace: Workspace) -> int | None:
        """Return the maximum total lifetime of the workspace in seconds by policy, or `None` for no limit."""

    def require_extendable(self, workspace: Workspace, until: datetime) -> None:
        """Check that a running workspace, which is locked, may run until then. Changes nothing.

        Raises `StateConflict` if the GPU-hours of its team are spent, or that time is reserved.
        """


extension_policy = Port[ExtensionPolicy]("ExtensionPolicy")
