"""The portal's periodic sweeps, in the order in which beat starts them."""

from __future__ import annotations

from portal.scheduling import cycle
from portal.workspaces import reconcile
from portal.workspaces.homes import deletions


def sweep() -> int:
    """Reconcile all due rows, then homes and the queue. Returns the number of due rows."""
    due = reconcile.sweep()
    deletions.sweep()
    cycle.run_if_due()
    return due
