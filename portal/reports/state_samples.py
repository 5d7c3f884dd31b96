"""Samples device states and starts every 15 minutes, for plots and sums over time. Kept for 35 days.

The numbers are the same as in pages and metrics (`inventory.counting`, `start_counts`). Only this module
writes `PoolSample` and `StartSample`. Idempotent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from portal.common.plots import DAY_S, moment
from portal.fleet.inventory import counting
from portal.fleet.inventory.counting import CountedDevice, StateCounts
from portal.reports import start_counts
from portal.reports.models import PoolSample, StartSample

STEP_S = 900
KEEP_DAYS = 35
COLUMNS = ("in_use", "idle", "free", "checking", "maintenance", "out_of_service")


@dataclass(frozen=True, slots=True)
class StateHistory:
    """Device states at each step of `step_s` seconds from `start_s` (Unix time); None: no sample."""

    start_s: int
    points: tuple[StateCounts | None, ...]
    step_s: int = STEP_S

    @property
    def recorded(self) -> bool:
        """Whether there is a sample."""
        return any(point is not None for point in self.points)


@dataclass(frozen=True, slots=True)
class StartFigures:
    """Starts and failures since the time of the oldest sample within the requested period."""

    since: datetime
    starts: int
    failures: int


def run(now: datetime | None = None) -> bool:
    """Write the sample of this quarter of an hour unless it exists, and delete old ones.

    Returns whether it was written.
    """
    now_s = int((now or timezone.now()).timestamp())
    start_s = now_s - now_s % STEP_S
    if StartSample.objects.filter(pk=start_s).exists():
        return False
    starts, failures = start_counts.totals()
    samples = [
        PoolSample(start_s=start_s, pool_id=pool, **_columns(states))
        for pool, states in pool_states(counting.enabled_devices(now)).items()
    ]
    with transaction.atomic():
        PoolSample.objects.bulk_create(samples, ignore_conflicts=True)
        StartSample.objects.bulk_create(
            [StartSample(start_s=start_s, starts=starts, failures=failures)], ignore_conflicts=True
        )
    expired_s = now_s - KEEP_DAYS * DAY_S
    PoolSample.objects.filter(start_s__lt=expired_s).delete()
    StartSample.objects.filter(start_s__lt=expired_s).delete()
    return True


def _columns(states: StateCounts) -> dict[str, int]:
    return dict(zip(COLUMNS, astuple(states), strict=True))


def pool_states(devices: Iterable[CountedDevice]) -> dict[UUID, StateCounts]:
    """Return the states of these devices by pool. Omits pools without devices."""
    return {pool: counting.summarize(states) for pool, states in counting.states_by_pool(devices).items()}


def history(pools: Collection[UUID], *, days: int, now: datetime | None = None) -> StateHistory:
    """Return the summed states of these pools over the last few days. One query."""
    now_s = int((now or timezone.now()).timestamp())
    last_s = now_s - now_s % STEP_S
    count = days * DAY_S // STEP_S
    first_s = last_s - STEP_S * (count - 1)
    rows = PoolSample.objects.filter(start_s__gte=first_s, start_s__lte=last_s, pool__in=list(pools))
    sums = rows.order_by().values_list("start_s").annotate(*(Sum(name) for name in COLUMNS))
    counts = {start_s: StateCounts(*amounts) for start_s, *amounts in sums}
    return StateHistory(first_s, tuple(counts.get(first_s + STEP_S * step) for step in range(count)))


def started_since(moments: Collection[datetime]) -> list[StartFigures | None]:
    """Return the starts and failures since each of these times; None if there is no sample yet.

    One query for each time, and one for the current totals.
    """
    starts, failures = start_counts.totals()
    figures: list[StartFigures | None] = []
    for since in moments:
        sample = StartSample.objects.filter(start_s__gte=since.timestamp()).order_by("start_s").first()
        figures.append(
            None
            if sample is None
            else StartFigures(moment(sample.start_s), starts - sample.starts, failures - sample.failures)
        )
    return figures


def periods(now: datetime) -> tuple[datetime, datetime]:
    """Return the starts of the last 24 hours and the last 7 days."""
    return now - timedelta(hours=24), now - timedelta(days=7)
