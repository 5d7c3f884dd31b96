"""Previews a policy: replays it on recorded activity before it is saved."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Max, Min, Q, Sum
from django.utils import timezone

from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event
from portal.fleet.inventory.models import Allocation
from portal.reclaim import effective, homes
from portal.reclaim.engine.replay import Period, RecordedRun, replay
from portal.reclaim.keeping import MAX_KEEP_S
from portal.reclaim.models import (
    IdleKind,
    IdlePeriod,
    LastPass,
    PolicyScope,
    ReclaimPolicy,
    WorkspaceActivity,
)
from portal.reclaim.observing import MIN_IDLE_PERIOD_S
from provisioning.types import WHOLE_DEVICE_MILLI

DAYS = 30
MAX_STARTS = 20_000
SHOWN = 20


@dataclass(frozen=True, slots=True)
class Interruption:
    """A workspace that would have been stopped while in use or unobserved."""

    workspace: UUID
    name: str
    team: str
    at: datetime
    cause: str


@dataclass(frozen=True, slots=True)
class Preview:
    """The stops since `since` that the policies, including this one, would have caused besides actual stops.

    - `recorded_since`: when the portal began to record idle times; None: not yet.
    - `starts`: number of starts replayed, all of them unless `cut`.
    - `workspaces`, `stops`, `releases`: stopped workspaces, number of stops, and those that only release
      GPUs.
    - `gpu_hours`: GPU-hours that would have been free.
    - `interrupted`: stops of workspaces in use.
    """

    since: datetime
    recorded_since: datetime | None
    starts: int
    cut: bool
    workspaces: int
    stops: int
    releases: int
    gpu_hours: float
    interrupted: int
    interruptions: tuple[Interruption, ...]
    homes: int = 0
    """Number of homes in scope that are not archived; `homes_due` of them would be warned at once."""
    homes_due: int = 0


def preview(draft: ReclaimPolicy) -> Preview:
    """Replay the recorded activity of the workspaces in scope, in the last 30 days.

    Uses the same decision function as live passes. Recorded keeps apply; further ones are unknown. Does not
    replay extensions, spent GPU-hours and requested ends. Five queries.
    """
    every, due = _homes(draft)
    return replace(_replay_starts(draft), homes=every, homes_due=due)


def _homes(draft: ReclaimPolicy) -> tuple[int, int]:
    rows = [row for row in effective.all_rows() if row.pk != draft.pk]
    if draft.scope in (PolicyScope.TEMPLATE, PolicyScope.FLAVOR):
        return 0, 0
    policies = effective.policy_set([*rows, draft])
    return homes.count_due(policies, pool=draft.pool_id, team=draft.team_id)


def _replay_starts(draft: ReclaimPolicy) -> Preview:
    now = timezone.now()
    recorded = LastPass.objects.filter(pk=1).values_list("recorded_since", flat=True).first()
    since = now - timedelta(days=DAYS)
    if recorded is None:
        return Preview(since, None, 0, False, 0, 0, 0, 0.0, 0, ())
    since = max(since, recorded)
    rows = [row for row in effective.all_rows() if row.pk != draft.pk]
    policies = effective.policy_set([*rows, draft])
    starts = _starts(draft, since)
    cut = len(starts) > MAX_STARTS
    starts = starts[:MAX_STARTS]
    periods = idle_periods({(row["workspace"], row["generation"]) for row in starts}, since)
    kept_periods = keep_periods({row["workspace"] for row in starts}, since)
    stops, releases, hours, stopped = 0, 0, 0.0, set()
    interrupted: list[Interruption] = []
    for row in starts:
        key = (row["workspace"], row["generation"])
        begin_s = max(row["begin"], since).timestamp()
        end_s = min(row["end"] or now, now).timestamp() if not row["open"] else now.timestamp()
        own = periods.get(key, {})
        past = RecordedRun(
            begin_s,
            end_s,
            tuple(own.get(IdleKind.ALL, ())),
            tuple(own.get(IdleKind.GPU, ())),
            # Only use the keeps of this start.
            tuple(
                period
                for period in kept_periods.get(row["workspace"], ())
                if row["begin"].timestamp() <= period.begin_s < end_s
            ),
        )
        gpus = (row["milli"] or 0) / WHOLE_DEVICE_MILLI
        scope_keys = effective.ScopeKeys(
            row["workspace__pool"],
            row["workspace__template"],
            row["workspace__flavor"],
            row["workspace__team"],
            bool(row["milli"]),
        )
        for stop in replay(past, policies.policy(scope_keys)):
            stops += 1
            releases += stop.released
            stopped.add(row["workspace"])
            hours += gpus * stop.freed_s / 3600
            if stop.interrupted:
                at = datetime.fromtimestamp(stop.at_s, UTC)
                interrupted.append(
                    Interruption(
                        row["workspace"],
                        row["workspace__name"],
                        row["workspace__team__slug"],
                        at,
                        stop.cause.value,
                    )
                )
    interrupted.sort(key=lambda interruption: interruption.at)
    return Preview(
        since,
        recorded,
        len(starts),
        cut,
        len(stopped),
        stops,
        releases,
        round(hours, 1),
        len({interruption.workspace for interruption in interrupted}),
        tuple(interrupted[:SHOWN]),
    )


def _starts(draft: ReclaimPolicy, since: datetime) -> list[dict[str, Any]]:
    """Return the starts in scope since then, newest first, with their resources."""
    rows = Allocation.objects.filter(Q(released_at=None) | Q(released_at__gt=since), granted_at__isnull=False)
    if draft.scope != PolicyScope.SITE:
        rows = rows.filter(**{f"workspace__{draft.scope}": draft.subject})
    starts: Any = (
        rows.values(
            "workspace",
            "generation",
            "workspace__name",
            "workspace__pool",
            "workspace__template",
            "workspace__flavor",
            "workspace__team",
            "workspace__team__slug",
        )
        .annotate(
            begin=Min("granted_at"),
            end=Max("released_at"),
            open=Max("pk", filter=Q(released_at=None)),
            milli=Sum("devices__milli"),
        )
        .order_by("-begin")[: MAX_STARTS + 1]
    )
    return list(starts)


def idle_periods(
    starts: set[tuple[UUID, int]], since: datetime
) -> dict[tuple[UUID, int], dict[str, list[Period]]]:
    """Return idle periods by start and kind, earliest first, including current ones."""
    periods: dict[tuple[UUID, int], dict[str, list[Period]]] = {}

    def add(key: tuple[UUID, int], kind: str, begin_s: float, end_s: float) -> None:
        if key in starts:
            periods.setdefault(key, {}).setdefault(kind, []).append(Period(begin_s, end_s))

    ended_periods = IdlePeriod.objects.filter(ended_at__gt=since).order_by("began_at")
    for workspace, generation, kind, began_at, ended_at in ended_periods.values_list(
        "workspace_id", "generation", "kind", "began_at", "ended_at"
    ).iterator(chunk_size=2000):
        add((workspace, generation), kind, began_at.timestamp(), ended_at.timestamp())
    current_activity = WorkspaceActivity.objects.filter(
        Q(idle_s__gte=MIN_IDLE_PERIOD_S) | Q(gpu_idle_s__gte=MIN_IDLE_PERIOD_S)
    )
    for workspace, generation, observed_at, idle_s, gpu_idle_s in current_activity.values_list(
        "workspace_id", "generation", "observed_at", "idle_s", "gpu_idle_s"
    ):
        end_s = observed_at.timestamp()
        for kind, seen_s in ((IdleKind.ALL, idle_s), (IdleKind.GPU, gpu_idle_s)):
            if seen_s >= MIN_IDLE_PERIOD_S:
                add((workspace, generation), kind, end_s - seen_s, end_s)
    return periods


def keep_periods(workspaces: set[UUID], since: datetime) -> dict[UUID, list[Period]]:
    """Return the periods for which users kept these workspaces, from the audit log."""
    periods: dict[UUID, list[Period]] = {}
    keep_events = Event.objects.filter(
        kind=AuditKind.WORKSPACE_KEPT, at__gt=since - timedelta(seconds=MAX_KEEP_S)
    ).order_by("at")
    for workspace, at, data in keep_events.values_list("workspace_id", "at", "data").iterator(
        chunk_size=2000
    ):
        seconds = data.get("seconds")
        if workspace in workspaces and isinstance(seconds, int | float):
            periods.setdefault(workspace, []).append(Period(at.timestamp(), at.timestamp() + seconds))
    return periods
