"""`python -m portal.embedded.workspaces stop|count`: what `down`, Ctrl-C and `status` ask of the portal."""

from __future__ import annotations

import json
import os
import sys
import time

STOP_LIMIT_S = 30.0
POLL_INTERVAL_S = 0.2


def main(command: str) -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    import django

    django.setup()
    if command == "count":
        print(json.dumps(counts()))
        return 0
    if command == "stop":
        print(stop())
        return 0
    print(f"no such command: {command}", file=sys.stderr)
    return 2


def counts() -> dict[str, int]:
    """How many workspaces are in each state, those in none left out."""
    from django.db.models import Count

    from portal.workspaces.lifecycle import State
    from portal.workspaces.models import Workspace

    found = dict(
        Workspace.objects.exclude(state=State.TERMINATED)
        .order_by()
        .values_list("state")
        .annotate(number=Count("pk"))
    )
    return {State(value).label.lower(): found[value] for value in State.values if value in found}


def stop(*, limit_s: float = STOP_LIMIT_S) -> str:
    """Stop every workspace and wait until none holds anything, or until the limit. Words for it."""
    from portal.common.actors import SYSTEM
    from portal.workspaces import services
    from portal.workspaces.lifecycle import HOLDING
    from portal.workspaces.models import Workspace

    holding = Workspace.objects.filter(state__in=HOLDING)
    before = holding.count()
    services.stop_all(actor=SYSTEM, reason="Berth is being stopped")
    deadline = time.monotonic() + limit_s
    while (left := holding.count()) and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL_S)
    if left:
        return f"{before - left} stopped, {left} not within {limit_s:.0f} s; the next start goes on with them"
    return f"{before} stopped" if before else "none was running"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
