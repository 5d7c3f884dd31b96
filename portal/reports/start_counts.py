"""Counts requests, starts and failures of workspaces, and the times from request to ready.

Counters must never decrease, so they are stored instead of derived from workspaces, which can be deleted.
Each event is counted in a separate, short transaction after the commit, so that nothing waits for it. If the
process ends before that, the event is lost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Case, F, Sum, Value, When

from portal.reports.models import Figure, StartCount
from portal.workspaces.domain_events import StateChanged, WorkspaceFailed, WorkspaceReady, WorkspaceRequested
from portal.workspaces.lifecycle import State

BOUNDS_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14_400.0, 86_400.0)
"""Upper bounds of the histogram's buckets; the last bucket has none."""
UNBOUNDED = "+Inf"


def count_request(event: WorkspaceRequested) -> None:
    """Count a request."""
    _add(Figure.REQUESTS, event.workspace.team_id)


def count_starts(event: StateChanged) -> None:
    """Count starts: workspaces that were just placed."""
    teams = Counter(
        workspace.team_id for workspace in event.workspaces if workspace.state == State.PROVISIONING
    )
    if teams:
        transaction.on_commit(partial(_write_starts, teams), robust=True)


def count_failure(event: WorkspaceFailed) -> None:
    """Count a failure by its reason."""
    _add(Figure.FAILURES, event.workspace.team_id, event.termination.value)


def count_ready(event: WorkspaceReady) -> None:
    """Count the time from request to ready in its bucket."""
    workspace = event.workspace
    if workspace.ready_at is None:
        return
    seconds = max(0.0, (workspace.ready_at - workspace.requested_at).total_seconds())
    place = bisect_left(BOUNDS_S, seconds)
    bucket = f"{BOUNDS_S[place]:g}" if place < len(BOUNDS_S) else UNBOUNDED
    _add(Figure.READY, workspace.team_id, bucket, seconds=seconds)


def totals() -> tuple[int, int]:
    """Return the number of all starts and all failures, including deleted teams. One query."""
    rows = StartCount.objects.filter(figure__in=(Figure.STARTS, Figure.FAILURES)).order_by()
    sums = dict(rows.values_list("figure").annotate(Sum("count")))
    return sums.get(Figure.STARTS, 0), sums.get(Figure.FAILURES, 0)


def histogram(rows: Mapping[str, tuple[int, float]]) -> tuple[list[tuple[str, float]], float]:
    """Return cumulative buckets and the sum of a team's READY rows: bucket → (count, seconds)."""
    buckets: list[tuple[str, float]] = []
    below = 0
    for bound in (*(f"{bound:g}" for bound in BOUNDS_S), UNBOUNDED):
        below += rows.get(bound, (0, 0.0))[0]
        buckets.append((bound, float(below)))
    return buckets, sum(seconds for _, seconds in rows.values())


def _add(figure: Figure, team: UUID, key: str = "", *, count: int = 1, seconds: float = 0.0) -> None:
    transaction.on_commit(partial(_write, figure, team, key, count, seconds), robust=True)


def _write_starts(teams: Mapping[UUID, int]) -> None:
    """Add the starts of several teams at once, because a cycle may place workspaces of many teams."""
    of_starts = StartCount.objects.filter(figure=Figure.STARTS.value, key="", team_id__in=list(teams))
    with transaction.atomic():
        # Lock in a fixed order, so that two writers cannot deadlock.
        keys = dict(of_starts.select_for_update().order_by("pk").values_list("team_id", "pk"))
        if keys:
            added = Case(*(When(pk=pk, then=Value(teams[team])) for team, pk in keys.items()))
            StartCount.objects.filter(pk__in=list(keys.values())).update(count=F("count") + added)
    for team in teams.keys() - keys.keys():
        _write(Figure.STARTS, team, "", teams[team], 0.0)


def _write(figure: Figure, team: UUID, key: str, count: int, seconds: float) -> None:
    row: dict[str, Any] = {"figure": figure.value, "team_id": team, "key": key}
    added = {"count": F("count") + count, "seconds": F("seconds") + seconds}
    if not StartCount.objects.filter(**row).update(**added):
        StartCount.objects.get_or_create(**row)
        StartCount.objects.filter(**row).update(**added)
