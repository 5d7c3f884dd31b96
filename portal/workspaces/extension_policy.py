"""How far the end of a workspace may be moved, asked of the policies that end workspaces."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from portal.common.ports import Port
from portal.workspaces.models import Workspace


class ExtensionPolicy(Protocol):
    """Decides how far people may extend workspaces."""

    def longest_s(self, workspace: Workspace) -> int | None:
        """Return for how many seconds a policy lets the workspace run in all; None for no limit."""

    def require_extendable(self, workspace: Workspace, until: datetime) -> None:
        """Check that a running workspace, which is locked, may go on until then. Changes nothing.

        Raises `StateConflict` where its team's GPU-hours are spent, or somebody has booked that time.
        """


extension_policy = Port[ExtensionPolicy]("ExtensionPolicy")
