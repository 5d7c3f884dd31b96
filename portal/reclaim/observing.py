"""Evaluates agents' reports once a minute: the idle time and resource use of each workspace.

One small row per workspace; one query reads all running workspaces, and one statement writes all changes.
History is in separate tables, which are written on change and only used for display.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any
from uuid import UUID

import msgspec
from django.db import connection, transaction
from django.db.models import Exists, F, OuterRef, TextField
from django.db.models.functions import Cast
from django.utils import timezone

from portal.catalog.models import MAX_LIFETIME_H
from portal.reclaim import pacing
from portal.reclaim.engine.activity import AgentReport, IdleClock, Signal, advance_clock
from portal.reclaim.engine.devices import unused_count
from portal.reclaim.models import Absence, ActivityChange, IdleKind, IdlePeriod, LastPass, WorkspaceActivity
from portal.reclaim.usage_readings import Accelerators, GpuFigures, reading_of
from portal.workspaces import usage_samples
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace

INTERVAL_S = 60.0
FRESH_S = 3 * INTERVAL_S
"""Maximum age of a current observation."""
HISTORY = timedelta(days=2)
MAX_CHANGES = 500
"""Maximum number of changes shown per workspace."""
MIN_IDLE_PERIOD_S = 600.0
"""Minimum length of a recorded idle period, in seconds."""
IDLE_PERIODS_KEPT = timedelta(days=31)
LONGEST = timedelta(hours=MAX_LIFETIME_H)
WRITTEN_AT_ONCE = 500
COLUMNS = (
    *("pk", "generation", "resources_text", "template__activity"),
    *("status__heartbeat_at", "seen_text", "status__gpu_idle_since"),
    *("reclaim_activity__generation", "reclaim_activity__idle_s", "reclaim_activity__gpu_idle_s"),
    *("reclaim_activity__active", "reclaim_activity__report"),
)
PLAIN = ("generation", "idle_s", "gpu_idle_s", "unused_gpus", "active", "report", "signals")
UPDATED = ("observed_at", *PLAIN)
WITH_KERNELS = frozenset({"jupyter", "marimo"})
_encode = msgspec.json.Encoder().encode
_report = msgspec.json.Decoder(AgentReport).decode


class _Resources(msgspec.Struct):
    accelerators: Accelerators


class AppUsage(msgspec.Struct):
    count: int | None = None
    busy: int | None = None
    last_activity: str | None = None


class HeartbeatFigures(msgspec.Struct):
    """The relevant figures of a heartbeat, validated by `workspaces.reports`."""

    kernels: AppUsage | None = None
    terminals: AppUsage | None = None
    cpu_seconds: float | None = None
    rss_mib: int | None = None
    jobs: int | None = None
    jobs_cpu_seconds: float | None = None
    jobs_io_bytes: int | None = None
    jobs_unused_servers: int | None = None
    monitors_cpu_seconds: float | None = None
    editor_cpu_seconds: float | None = None
    edited_at: str | None = None
    kernels_cpu_seconds: float | None = None
    kernels_io_bytes: int | None = None
    gpus: list[GpuFigures] | None = None
    gpus_stale_s: int | None = None
    traffic_bytes: int | msgspec.UnsetType | None = msgspec.UNSET
    progress: dict[str, float] | None = None


_resources = msgspec.json.Decoder(_Resources).decode
_decode_figures = msgspec.json.Decoder(HeartbeatFigures).decode


def _parse_heartbeat(text: str) -> HeartbeatFigures:
    """Parse a heartbeat. Malformed rows count as unmeasured, so that they do not block other rows."""
    try:
        return _decode_figures(text)
    except msgspec.MsgspecError:
        return HeartbeatFigures()


def is_accelerated(resources: str) -> bool:
    """Return whether a workspace's resources (JSON) include accelerators."""
    return bool(_resources(resources).accelerators.count)


@dataclass(frozen=True, slots=True)
class ActivityRecord:
    """The stored state of a start before an observation."""

    generation: int
    idle_s: float
    gpu_idle_s: float
    active: str | None
    report: str


@dataclass(slots=True)
class ObservedActivity:
    """The state of a start after an observation: the columns of `WorkspaceActivity`."""

    workspace_id: UUID
    generation: int
    observed_at: datetime
    idle_s: float
    gpu_idle_s: float
    active: str | None
    report: str
    signals: str
    kept_until: datetime | None = None
    unused_gpus: int = 0


@dataclass(slots=True)
class ObservationResult:
    """The result of an observation: new and updated rows, and the changes in them."""

    fresh: list[ObservedActivity] = field(default_factory=list)
    changed: list[ObservedActivity] = field(default_factory=list)
    changes: list[ObservedActivity] = field(default_factory=list)
    periods: list[IdlePeriod] = field(default_factory=list)

    def add(self, row: ObservedActivity, record: ActivityRecord | None) -> None:
        (self.fresh if record is None else self.changed).append(row)
        same = record is not None and record.generation == row.generation
        if record is None or not same or record.active != row.active:
            self.changes.append(row)
        if record is not None and (
            not same or row.idle_s < record.idle_s or row.gpu_idle_s < record.gpu_idle_s
        ):
            self.periods.extend(ended_idle_periods(row.workspace_id, record, row if same else None))


def run() -> int:
    """Observe all running workspaces with reports. Returns the number of rows written."""
    running = Workspace.objects.filter(state=State.RUNNING, status__heartbeat_at__isnull=False).annotate(
        resources_text=Cast("resources", TextField()), seen_text=Cast("status__activity", TextField())
    )
    look = ObservationResult()
    rates, readings = [], []
    for pk, generation, resources, activity, heartbeat_at, seen, idle_since, *before in running.values_list(
        *COLUMNS
    ).iterator(chunk_size=2000):
        record = ActivityRecord(*before) if before[0] is not None else None
        figures, accelerators = _parse_heartbeat(seen), _resources(resources).accelerators
        report = report_of(bool(accelerators.count), activity, heartbeat_at, figures, idle_since)
        row = next_activity(pk, generation, record, report)
        if row is not None:
            look.add(row, record)
            previous = record.report if record is not None and record.generation == generation else None
            readings.append(reading_of(pk, previous, report, figures.rss_mib, figures.gpus, accelerators))
            if figures.progress:
                rates.append(pacing.ReportedRates(pk, generation, report.at_s, figures.progress))
    WorkspaceActivity.objects.bulk_create(
        (
            WorkspaceActivity(workspace_id=row.workspace_id, **{name: getattr(row, name) for name in UPDATED})
            for row in look.fresh
        ),
        batch_size=WRITTEN_AT_ONCE,
        update_conflicts=True,
        unique_fields=["workspace"],
        update_fields=list(UPDATED),
    )
    _write(look.changed)
    _record_changes(look.changes)
    IdlePeriod.objects.bulk_create(look.periods, batch_size=WRITTEN_AT_ONCE)
    delete_stale()
    pacing.record_rates(rates)
    usage_samples.record(readings)
    LastPass.objects.filter(pk=1, recorded_since=None).update(recorded_since=timezone.now())
    return len(look.fresh) + len(look.changed)


def _write(rows: Sequence[ObservedActivity]) -> None:
    """Update all rows with one statement, which is built many times faster than that of `bulk_create`."""
    if not rows:
        return
    meta, quote = WorkspaceActivity._meta, connection.ops.quote_name
    own, at = meta.get_field("workspace"), meta.get_field("observed_at")
    sets = ", ".join(f"{quote(name)} = %s" for name in ("observed_at", *PLAIN))
    plain = attrgetter(*PLAIN)
    values = [
        (
            at.get_db_prep_value(row.observed_at, connection),
            *plain(row),
            own.get_db_prep_value(row.workspace_id, connection),
        )
        for row in rows
    ]
    # Without a transaction, SQLite would commit each row separately.
    with transaction.atomic(), connection.cursor() as cursor:
        # All names are from the model.
        statement = f"UPDATE {quote(meta.db_table)} SET {sets} WHERE {quote(own.column)} = %s"  # noqa: S608
        cursor.executemany(statement, values)


def _record_changes(rows: Sequence[ObservedActivity]) -> None:
    """Record changes of active signals, rounded to minutes, in one statement like `_write`."""
    if not rows:
        return
    meta, quote = ActivityChange._meta, connection.ops.quote_name
    own, at = meta.get_field("workspace"), meta.get_field("at")
    columns = ("workspace_id", "generation", "at", "active")
    values = [
        (
            own.get_db_prep_value(row.workspace_id, connection),
            row.generation,
            at.get_db_prep_value(row.observed_at.replace(second=0, microsecond=0), connection),
            row.active,
        )
        for row in rows
    ]
    # Without a transaction, SQLite would commit each row separately.
    with transaction.atomic(), connection.cursor() as cursor:
        # All names are from the model.
        names, places = ", ".join(quote(column) for column in columns), ", ".join(["%s"] * len(columns))
        statement = f"INSERT INTO {quote(meta.db_table)} ({names}) VALUES ({places})"  # noqa: S608
        cursor.executemany(statement, values)


def report_of(
    accelerated: bool,
    activity: str,
    heartbeat_at: datetime,
    seen: HeartbeatFigures,
    idle_since: datetime | None,
) -> AgentReport:
    """Return the last heartbeat in the engine's form."""
    kernels, terminals, traffic = seen.kernels or AppUsage(), seen.terminals or AppUsage(), seen.traffic_bytes
    percents = [gpu.utilization_percent for gpu in seen.gpus or ()]
    measured = [percent for percent in percents if percent is not None]
    complete = bool(percents) and len(measured) == len(percents) and seen.gpus_stale_s is None
    return AgentReport(
        at_s=heartbeat_at.timestamp(),
        has_gpus=accelerated,
        # Only newer agents report VS Code's own kernels.
        has_kernels=activity in WITH_KERNELS or kernels.count is not None,
        # For unknown apps, terminals are a signal only if there are any.
        has_terminals=bool(activity) or terminals.count is not None,
        gpu_percent=max(measured) if complete else None,
        gpu_percents=tuple(percents) if seen.gpus_stale_s is None else (),
        gpu_idle_since_s=idle_since.timestamp() if idle_since is not None else None,
        cpu_seconds=seen.cpu_seconds,
        kernels=kernels.count,
        kernels_busy=kernels.busy,
        kernels_stamp=kernels.last_activity,
        kernels_cpu_seconds=seen.kernels_cpu_seconds,
        kernels_io_bytes=seen.kernels_io_bytes,
        terminals=terminals.count,
        terminals_stamp=terminals.last_activity,
        jobs=seen.jobs,
        jobs_cpu_seconds=seen.jobs_cpu_seconds,
        jobs_io_bytes=seen.jobs_io_bytes,
        jobs_unused_servers=seen.jobs_unused_servers,
        monitors_cpu_seconds=seen.monitors_cpu_seconds,
        editor_cpu_seconds=seen.editor_cpu_seconds,
        edited_at=seen.edited_at,
        has_traffic=traffic is not msgspec.UNSET,
        traffic_bytes=traffic if isinstance(traffic, int) else None,
    )


def next_activity(
    workspace_id: UUID, generation: int, record: ActivityRecord | None, report: AgentReport
) -> ObservedActivity | None:
    """Return the state after this report, or None if the report is not new."""
    same = record is not None and record.generation == generation
    before = clock_of(record) if record is not None and same else None
    clock, signals = advance_clock(before, report)
    if before is not None and clock is before:
        return None
    watched = before is not None and clock.last.at_s - before.last.at_s > 0
    return ObservedActivity(
        workspace_id=workspace_id,
        generation=generation,
        observed_at=datetime.fromtimestamp(report.at_s, UTC),
        idle_s=clock.idle_s,
        gpu_idle_s=clock.gpu_idle_s,
        active=active_kinds(signals) if watched else None,
        report=_encode(clock.last).decode(),
        signals=_encode(signals).decode(),
        unused_gpus=unused_count(clock.last.gpus_unused_since, clock.last.at_s),
    )


def clock_of(record: ActivityRecord) -> IdleClock | None:
    """Return the clock of a row, or None if it is malformed."""
    try:
        return IdleClock(_report(record.report), record.idle_s, record.gpu_idle_s)
    except msgspec.MsgspecError:
        return None


def clock_of_activity(row: ObservedActivity | WorkspaceActivity) -> IdleClock | None:
    """Return the clock after the last observation, or None if it is malformed."""
    return clock_of(ActivityRecord(row.generation, row.idle_s, row.gpu_idle_s, row.active, row.report))


def active_kinds(signals: Iterable[Signal]) -> str:
    """Return the active kinds in stored form."""
    return ",".join(sorted(signal.kind.value for signal in signals if signal.active))


def ended_idle_periods(
    workspace_id: UUID, record: ActivityRecord, after: ObservedActivity | None
) -> list[IdlePeriod]:
    """Return the idle periods that ended at the previous report. `after` is None if the workspace stopped."""
    clock = clock_of(record)
    if clock is None:
        return []
    periods = []
    for kind, seen_s, now_s in (
        (IdleKind.ALL, record.idle_s, after.idle_s if after is not None else 0.0),
        (IdleKind.GPU, record.gpu_idle_s, after.gpu_idle_s if after is not None else 0.0),
    ):
        if seen_s >= MIN_IDLE_PERIOD_S and now_s < seen_s:
            periods.append(
                IdlePeriod(
                    workspace_id=workspace_id,
                    generation=record.generation,
                    kind=kind,
                    began_at=datetime.fromtimestamp(clock.last.at_s - seen_s, UTC),
                    ended_at=datetime.fromtimestamp(clock.last.at_s, UTC),
                )
            )
    return periods


def delete_stale() -> None:
    """Delete rows of earlier starts and stopped workspaces. Records their last idle periods."""
    for stale in (
        WorkspaceActivity.objects.exclude(workspace__state=State.RUNNING),
        WorkspaceActivity.objects.exclude(generation=F("workspace__generation")),
    ):
        rows = list(stale.values_list("workspace_id", *ActivityRecord.__dataclass_fields__))
        if rows:
            periods = [
                period
                for pk, *fields in rows
                for period in ended_idle_periods(pk, ActivityRecord(*fields), None)
            ]
            IdlePeriod.objects.bulk_create(periods, batch_size=WRITTEN_AT_ONCE)
            for first in range(0, len(rows), WRITTEN_AT_ONCE):
                deletable = [pk for pk, *_kept in rows[first : first + WRITTEN_AT_ONCE]]
                stale.filter(pk__in=deletable).delete()


def prune() -> int:
    """Delete expired history, and return the number of deleted rows. Keeps the state at its new beginning."""
    now = timezone.now()
    oldest = now - HISTORY
    later = ActivityChange.objects.filter(workspace=OuterRef("workspace"), at__gt=OuterRef("at"))
    expired_changes = ActivityChange.objects.filter(Exists(later.filter(at__lte=oldest)), at__lt=oldest)
    deleted = expired_changes.delete()[0] + Absence.objects.filter(since__lt=now - LONGEST).delete()[0]
    return deleted + IdlePeriod.objects.filter(ended_at__lt=now - IDLE_PERIODS_KEPT).delete()[0]


def changes_of(workspace: Workspace) -> list[tuple[datetime, list[str] | None]]:
    """Return the changes of active signals in this start, oldest first. None: not observed."""
    rows = ActivityChange.objects.filter(workspace=workspace.pk, generation=workspace.generation)
    newest = list(rows.order_by("-at", "-pk").values_list("at", "active")[:MAX_CHANGES])
    return [
        (at, None if active is None else active.split(",") if active else []) for at, active in newest[::-1]
    ]


def signals_of(row: ObservedActivity | None) -> list[dict[str, Any]]:
    """Return the signals of the last observation."""
    return list(msgspec.json.decode(row.signals)) if row is not None else []


def current_activity(workspace: Workspace) -> ObservedActivity | None:
    """Return the activity of a running workspace up to its latest report, which may not be stored yet.

    Returns None if nothing is known about this start.
    """
    values = (
        WorkspaceActivity.objects.filter(workspace=workspace.pk, generation=workspace.generation)
        .values_list(*ObservedActivity.__dataclass_fields__)
        .first()
    )
    row = ObservedActivity(*values) if values is not None else None
    status = workspace.status
    if row is None or status.heartbeat_at is None:
        return row
    record = ActivityRecord(row.generation, row.idle_s, row.gpu_idle_s, row.active, row.report)
    report = report_of(
        bool(workspace.resources["accelerators"]["count"]),
        workspace.template.activity,
        status.heartbeat_at,
        _parse_heartbeat(json.dumps(status.activity)),
        status.gpu_idle_since,
    )
    newer = next_activity(workspace.pk, workspace.generation, record, report)
    if newer is not None:
        newer.kept_until = row.kept_until
    return newer or row


def is_fresh(observed_at: datetime, now: datetime | None = None) -> bool:
    """Return whether an observation is recent enough to count as current."""
    age_s = ((now or timezone.now()) - observed_at).total_seconds()
    return -INTERVAL_S <= age_s <= FRESH_S
