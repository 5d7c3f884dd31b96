"""What the portal's clock does now and then, in the order in which it does it."""

from __future__ import annotations

from portal.scheduling import cycle
from portal.workspaces import reconcile
from portal.workspaces.homes import deletions


def sweep() -> int:
    """Reconcile all that is due, then look at homes and at the queue; returns how many were due."""
    due = reconcile.sweep()
    deletions.sweep()
    cycle.run_if_due()
    return due
