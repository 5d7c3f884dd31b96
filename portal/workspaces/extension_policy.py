"""Port to the policies that limit how far workspaces can be extended."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from portal.common.ports import Port
from portal.workspaces.models import Workspace


class ExtensionPolicy(Protocol):
    """Decides how far people may extend workspaces."""

    def longest_s(self, workspace: Workspace) -> int | None:
        """Return the policies' maximum total lifetime in seconds, or `None` for no limit."""

    def require_extendable(self, workspace: Workspace, until: datetime) -> None:
        """Check that a running, locked workspace may run until then. Changes nothing.

        Raises `StateConflict` if its team's GPU-hours are spent, or the capacity is reserved by then.
        """


extension_policy = Port[ExtensionPolicy]("ExtensionPolicy")
