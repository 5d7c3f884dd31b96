"""Counts and stops workspaces for `down`, Ctrl-C and `status`: `manage.py workspaces stop|count`."""

from __future__ import annotations

import time

from django.db.models import Count

from portal.common.actors import SYSTEM
from portal.workspaces import services
from portal.workspaces.lifecycle import HOLDING, State
from portal.workspaces.models import Workspace

STOP_LIMIT_S = 30.0
POLL_INTERVAL_S = 0.2


def counts() -> dict[str, int]:
    """Return the number of workspaces by state, without empty states."""
    by_state = dict(
        Workspace.objects.exclude(state=State.TERMINATED)
        .order_by()
        .values_list("state")
        .annotate(number=Count("pk"))
    )
    return {State(value).label.lower(): by_state[value] for value in State.values if value in by_state}


def stop(*, limit_s: float = STOP_LIMIT_S) -> str:
    """Stop all workspaces and wait until none holds resources. Returns the result as text."""
    holding = Workspace.objects.filter(state__in=HOLDING)
    before = holding.count()
    services.stop_all(actor=SYSTEM, reason="Berth is shutting down")
    deadline = time.monotonic() + limit_s
    while (left := holding.count()) and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL_S)
    if left:
        return f"{before - left} stopped, {left} not within {limit_s:.0f} s; the next start continues"
    return f"{before} stopped" if before else "none running"
