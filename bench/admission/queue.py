"""CPU time of a cycle, a creation and a preview with a long queue, through the portal's own functions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.catalog.models import Flavor, Template
from portal.common.domain_events import emit
from portal.people.accounts.models import Team
from portal.scheduling import admission, cycle, snapshot_cache
from portal.scheduling.models import QueueState
from portal.workspaces import services
from portal.workspaces.domain_events import RequestChanged
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.order import WorkspaceOrder

WAITS, STARTS = "h100-x4", "t4-x1"
"""A flavor whose devices are all in use, and one with free devices (`site.SPARE`)."""


def measure(count: int) -> dict[str, Any]:
    """Measure each operation `count` times on a settled site: CPU milliseconds, and SQL statements."""
    cycle.run()
    cycle.write_statuses()
    template = Template.objects.get(slug="bench")
    flavors = {flavor.slug: flavor for flavor in Flavor.objects.select_related("pool")}
    teams = list(Team.objects.prefetch_related("members"))
    running = list(Workspace.objects.filter(state=State.RUNNING).select_related("team", "owner")[:count])
    created = 0

    def create(slug: str) -> None:
        nonlocal created
        team = teams[created % len(teams)]
        services.create(
            actor=team.members.all()[0],
            order=WorkspaceOrder(team=team, template=template, flavor=flavors[slug], name=f"long-{created}"),
        )
        created += 1

    def preview(number: int, slug: str) -> None:
        team = teams[number % len(teams)]
        admission.assess(template=template, flavor=flavors[slug], team=team, actor=team.members.all()[0])

    def changed(number: int) -> None:
        emit(RequestChanged(running[number % len(running)]))

    def nothing(_: int) -> None:
        return None

    def expire_forecast(_: int) -> None:
        _discard_forecast()

    def measured(work: Callable[[int], Any], before: Callable[[int], None] = nothing) -> dict[str, Any]:
        work(count)
        return _timed(work, before, count)

    return {
        "waiting": Workspace.objects.filter(state=State.PENDING).count(),
        "preview, nothing changed": measured(lambda n: preview(n, WAITS)),
        "preview, a second later": measured(lambda n: preview(n, WAITS), expire_forecast),
        "preview, a workspace changed": measured(lambda n: preview(n, WAITS), changed),
        "preview of what starts": measured(lambda n: preview(n, STARTS), changed),
        "creation that waits": measured(lambda _: create(WAITS)),
        "creation that starts": measured(lambda _: create(STARTS)),
        "decision of a cycle": measured(lambda _: cycle.decide()),
        "telling all, nothing changed": measured(lambda _: cycle.write_statuses()),
        "telling all, after a creation": measured(lambda _: cycle.write_statuses(), lambda _: create(WAITS)),
        "reading it all": _timed(lambda _: _read_snapshot(), nothing, max(1, count // 4)),
        "shown_ms": QueueState.objects.get().shown_ms,
    }


def _timed(work: Callable[[int], Any], before: Callable[[int], None], count: int) -> dict[str, Any]:
    times, statements = [], []
    for number in range(count):
        before(number)
        with CaptureQueriesContext(connection) as queries:
            began = time.process_time()
            work(number)
            times.append((time.process_time() - began) * 1000)
        statements.append(len(queries))
    ordered = sorted(times)
    return {
        "p50_ms": round(statistics.median(ordered)),
        "p95_ms": round(ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]),
        "max_ms": round(ordered[-1]),
        "statements": max(statements),
    }


def _discard_forecast() -> None:
    """Discard the forecast of the preview snapshot, which expires after a second."""
    with snapshot_cache.preview_cache.use() as snapshot:
        snapshot.forecast = None


def _read_snapshot() -> None:
    snapshot_cache.forget()
    with snapshot_cache.preview_cache.use(timezone.now()):
        pass
