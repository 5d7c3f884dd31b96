"""Connects the rooms that the gateway process uses to extend workspaces (`portal.reclaim.bar`).

`portal.wiring` connects everything, and with it loads the scheduler, which this process does not need.
"""

from __future__ import annotations

from portal.common.domain_events import in_transaction
from portal.reclaim import extensions
from portal.workspaces.domain_events import WorkspaceExtended
from portal.workspaces.extension_policy import extension_policy


def connect() -> None:
    """Connect the port and the listener that an extension needs, as `portal.wiring` does."""
    extension_policy.connect(extensions.LimitExtensions())
    in_transaction(WorkspaceExtended, extensions.workspace_extended)
