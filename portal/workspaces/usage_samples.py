"""Stores measured use of workspaces by the minute, and replaces old minutes by hours.

Each measurement is in one table: all minutes of an hour move to `UsageHour` together. All operations are
idempotent. Statements are plain SQL, because 10,000 rows are written once a minute.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Min, Model

from portal.common.events import live
from portal.common.plots import DAY_S, HOUR_S
from portal.workspaces.models import UsageHour, UsageMinute
from provisioning.gpu.rollup import MINUTE_S

MINUTES_KEPT_S = DAY_S
HOURS_KEPT_S = 90 * DAY_S
MAX_INTERVAL_S = 3 * MINUTE_S
"""A reading covers the time since the previous one up to this length. After a longer gap it covers a minute.
"""
QUANTITIES = (
    ("cpu_milli", "cpu_max_milli"),
    ("memory_mib", "memory_max_mib"),
    ("gpu_pct", "gpu_max_pct"),
    ("gpu_memory_mib", "gpu_memory_max_mib"),
)
"""Columns of means, and of maxima in `UsageHour`."""
MEANS = tuple(mean for mean, _maximum in QUANTITIES)
MAXIMA = tuple(maximum for _mean, maximum in QUANTITIES)
WRITTEN_AT_ONCE = 2000
MILLI_PER_CORE = 1000


@dataclass(frozen=True, slots=True)
class UsageReading:
    """An agent's measurements of a running workspace at `at_s` (Unix time); None means not measured.

    `previous_s` is the time of the previous report of the same start, or None. Values are in the units of
    `UsageMinute`.
    """

    workspace_id: UUID
    at_s: float
    previous_s: float | None
    cpu_milli: int | None
    memory_mib: int | None
    gpu_pct: int | None
    gpu_memory_mib: int | None

    @property
    def measured(self) -> bool:
        """Whether at least one value was measured."""
        return not (self.cpu_milli is self.memory_mib is self.gpu_pct is self.gpu_memory_mib is None)

    @property
    def minutes(self) -> range:
        """The start times of the minutes after the previous report's, up to and including its own."""
        last_s = _minute_of(self.at_s)
        if self.previous_s is None or not 0 < self.at_s - self.previous_s <= MAX_INTERVAL_S:
            return range(last_s, last_s + 1, MINUTE_S)
        return range(_minute_of(self.previous_s) + MINUTE_S, last_s + 1, MINUTE_S)


def _minute_of(at_s: float) -> int:
    return int(at_s) // MINUTE_S * MINUTE_S


def record(readings: Iterable[UsageReading]) -> int:
    """Store the readings of an observation, and notify open pages. Returns the number of minutes.

    Minutes that are already stored stay unchanged. Uses one statement.
    """
    key = UsageMinute._meta.get_field("workspace")
    rows = [
        (
            key.get_db_prep_value(reading.workspace_id, connection),
            start_s,
            reading.cpu_milli,
            reading.memory_mib,
            reading.gpu_pct,
            reading.gpu_memory_mib,
        )
        for reading in readings
        if reading.measured
        for start_s in reading.minutes
    ]
    if not rows:
        return 0
    columns = ("workspace_id", "start_s", *MEANS)
    places = ", ".join(["%s"] * len(columns))
    # All names are from the model.
    statement = (
        f"INSERT INTO {_table(UsageMinute)} ({', '.join(columns)}) VALUES ({places}) "  # noqa: S608
        "ON CONFLICT (workspace_id, start_s) DO NOTHING"
    )
    for chunk in _chunks(rows):
        # Without a transaction, SQLite would commit each row separately.
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.executemany(statement, chunk)
    live.publish_measured()
    return len(rows)


def _chunks(rows: list[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    return (rows[first : first + WRITTEN_AT_ONCE] for first in range(0, len(rows), WRITTEN_AT_ONCE))


def _table(model: type[Model]) -> str:
    return connection.ops.quote_name(model._meta.db_table)


def roll_up(*, now_s: float | None = None) -> int:
    """Replace minutes older than a day by hours, and delete expired hours. Returns the number of new hours.

    Uses one transaction per hour, oldest first.
    """
    now_s = time.time() if now_s is None else now_s
    before_s = int(now_s - MINUTES_KEPT_S) // HOUR_S * HOUR_S
    total = 0
    while (oldest_s := _oldest_s(before_s)) is not None:
        total += _replace_hour(oldest_s // HOUR_S * HOUR_S)
    UsageHour.objects.filter(start_s__lt=now_s - HOURS_KEPT_S).delete()
    return total


def _oldest_s(before_s: int) -> int | None:
    oldest: int | None = UsageMinute.objects.filter(start_s__lt=before_s).aggregate(oldest=Min("start_s"))[
        "oldest"
    ]
    return oldest


@transaction.atomic
def _replace_hour(hour_s: int) -> int:
    """Replace the minutes of all workspaces in an hour by their means and maxima.

    The database calculates the means, because an hour of 10,000 workspaces has 600,000 minutes.
    """
    means = ", ".join(f"CAST(ROUND(AVG({name})) AS integer)" for name in MEANS)
    maxima = ", ".join(f"MAX({name})" for name in MEANS)
    # All names are from the model.
    statement = (
        f"INSERT INTO {_table(UsageHour)} (workspace_id, start_s, {', '.join((*MEANS, *MAXIMA))}) "  # noqa: S608
        f"SELECT workspace_id, %s, {means}, {maxima} FROM {_table(UsageMinute)} "
        "WHERE start_s >= %s AND start_s < %s GROUP BY workspace_id "
        "ON CONFLICT (workspace_id, start_s) DO NOTHING"
    )
    with connection.cursor() as cursor:
        cursor.execute(statement, [hour_s, hour_s, hour_s + HOUR_S])
        written = cursor.rowcount
    UsageMinute.objects.filter(start_s__gte=hour_s, start_s__lt=hour_s + HOUR_S).delete()
    return written
