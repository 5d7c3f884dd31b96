"""Stores measurements from nodes, rolls minutes up to hours, and deletes old ones.

Writers of a device's rows hold the lock of its `DeviceSeries`. If two messages are about the same minute, the
one with more measurements wins, regardless of their order. A roll-up never misses a minute that is written
concurrently. All operations are idempotent.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Min, Q

from portal.fleet.inventory.models import Device, DeviceHour, DeviceMinute, DeviceSeries
from provisioning import messages
from provisioning.gpu.rollup import HOUR_S, MINUTE_S, Metric, Rollup

log = logging.getLogger(__name__)

DAY_S = 86_400
MAX_SAMPLES_PER_MESSAGE = 1024
AHEAD_S = 120
"""Tolerated clock lead of a node, in seconds. Nodes send a minute only after its end."""
UNMEASURED_IDLE_S = 5
"""Maximum unmeasured seconds of an idle minute. More unmeasured time counts as use."""
SERIES_AT_ONCE = 64
LARGEST = 2**31 - 1

# Throttle reasons by cause. `idle` and clocks set by an operator are not throttling.
THERMAL = ("sw_thermal", "hw_thermal")
POWER = ("sw_power_cap", "hw_power_brake")
SLOWED = ("hw_slowdown", "sync_boost")

COLUMNS = (
    *("measured_s", "gpu_pct_s", "gpu_s", "gpu_used_s", "gpu_max_pct", "gpu_p95_pct"),
    *("memory_mib", "memory_max_mib", "power_mw", "power_max_mw", "temperature_c", "temperature_max_c"),
    *("sm_clock_mhz", "pcie_tx_kib_s", "pcie_rx_kib_s", "throttle_s", "thermal_s", "power_s", "slowed_s"),
)
"""Columns shared by minutes and hours, without their key."""


class InvalidRollup(ValueError):
    """A rollup is rejected. The message explains why."""


@dataclass(frozen=True, slots=True)
class RollupCounts:
    """Result of a message: minutes written, already known, without measurements, and rejected."""

    written: int = 0
    known: int = 0
    silent: int = 0
    refused: int = 0


# --- Minutes --------------------------------------------------------------------------------------


def apply_samples(
    *, pool_slug: str, node_name: str, rollups: Sequence[Any], now_s: float | None = None
) -> RollupCounts:
    """Store the minutes sent by a node's sampler: plain values of `Rollup`, newest last.

    Never raises for bad input: invalid values and unknown devices are logged and skipped. A node that does
    not know its pool sends an empty `pool_slug`; devices are then matched by node name and UUID.
    """
    now_s = time.time() if now_s is None else now_s
    if not isinstance(rollups, list | tuple) or len(rollups) > MAX_SAMPLES_PER_MESSAGE:
        log.warning(
            "ignored samples from %s: not a list of at most %d", _shorten(node_name), MAX_SAMPLES_PER_MESSAGE
        )
        return RollupCounts(refused=1)
    minutes: dict[tuple[str, int], DeviceMinute] = {}
    silent = refused = 0
    for item in rollups:
        try:
            rollup = messages.receive(item, Rollup)
            row = _minute_of(rollup, now_s)
        except ValueError as error:
            log.warning("ignored sample from %s: %s", _shorten(node_name), _shorten(error, 300))
            refused += 1
            continue
        if row is None:
            silent += 1
            continue
        key = (rollup.uuid, rollup.start_s)
        if key not in minutes or minutes[key].measured_s < row.measured_s:
            minutes[key] = row
    devices = _known_devices(str(pool_slug), str(node_name), {uuid for uuid, _ in minutes})
    by_device: dict[UUID, list[DeviceMinute]] = defaultdict(list)
    for (uuid, _), row in sorted(minutes.items()):
        if uuid in devices:
            by_device[devices[uuid]].append(row)
        else:
            log.warning(
                "ignored samples of %s from %s: no such device on that node",
                _shorten(uuid),
                _shorten(node_name),
            )
            refused += 1
    written = _write(by_device) if by_device else 0
    return RollupCounts(written, sum(map(len, by_device.values())) - written, silent, refused)


def _shorten(text: object, length: int = 80) -> str:
    """Return untrusted text, shortened and escaped for one log line."""
    return str(text)[:length].encode("unicode_escape").decode()


def _known_devices(pool_slug: str, node_name: str, uuids: Collection[str]) -> dict[str, UUID]:
    where = Q(uuid__in=[uuid for uuid in uuids if "\x00" not in uuid], node__name=node_name)
    if "\x00" in node_name + pool_slug:
        return {}
    if pool_slug:
        where &= Q(node__pool__slug=pool_slug)
    return dict(Device.objects.filter(where).values_list("uuid", "pk"))


@transaction.atomic
def _write(by_device: Mapping[UUID, list[DeviceMinute]]) -> int:
    """Write minutes that are new or more complete than stored ones. Returns the number written."""
    rows = {series.device_id: series for series in _locked_series(by_device)}
    if missing := [pk for pk in by_device if pk not in rows]:
        DeviceSeries.objects.bulk_create(
            [DeviceSeries(device_id=pk) for pk in missing], ignore_conflicts=True
        )
        rows |= {series.device_id: series for series in _locked_series(missing)}
    starts = [row.start_s for of_device in by_device.values() for row in of_device]
    measured = {
        (series, start): measured
        for series, start, measured in DeviceMinute.objects.filter(
            series__in=[series.pk for series in rows.values()],
            start_s__gte=min(starts),
            start_s__lte=max(starts),
        ).values_list("series_id", "start_s", "measured_s")
    }
    fresh = []
    for device, of_device in by_device.items():
        series = rows[device]
        for row in of_device:
            if measured.get((series.pk, row.start_s), 0) < row.measured_s:
                row.series = series
                fresh.append(row)
                _advance(series, row)
    if fresh:
        DeviceMinute.objects.bulk_create(
            fresh,
            update_conflicts=True,
            unique_fields=["series", "start_s"],
            update_fields=[*COLUMNS, "gpu_bins"],
        )
        touched = {row.series_id for row in fresh}
        DeviceSeries.objects.bulk_create(
            [series for series in rows.values() if series.pk in touched],
            update_conflicts=True,
            unique_fields=["id"],
            update_fields=["newest_s", "idle_since_s", "due_s"],
        )
    return len(fresh)


def _locked_series(devices: Iterable[UUID]) -> list[DeviceSeries]:
    # In a fixed order, so that concurrent messages do not deadlock.
    return list(DeviceSeries.objects.select_for_update().filter(device__in=list(devices)).order_by("pk"))


def _advance(series: DeviceSeries, row: DeviceMinute) -> None:
    """Update a series with a new minute: newest time, idle time, hours due for roll-up."""
    end_s = row.start_s + MINUTE_S
    idle = row.gpu_used_s == 0 and (row.gpu_s or 0) >= MINUTE_S - UNMEASURED_IDLE_S
    if end_s > series.newest_s:
        unbroken = row.start_s == series.newest_s and series.idle_since_s is not None
        if not idle:
            series.idle_since_s = None
        elif not unbroken:
            series.idle_since_s = row.start_s
        series.newest_s = end_s
    elif not idle and series.idle_since_s is not None and end_s > series.idle_since_s:
        # A minute that was sent again shows activity after all.
        series.idle_since_s = end_s if end_s < series.newest_s else None
    hour_s = row.start_s - row.start_s % HOUR_S
    series.due_s = hour_s if series.due_s is None else min(series.due_s, hour_s)


def oldest_kept_hour_s(now_s: float) -> int:
    """Return the start of the oldest hour of which all minutes are still stored."""
    oldest_s = int(now_s) - settings.BERTH_KEEP_MINUTES_DAYS * DAY_S
    return oldest_s - oldest_s % HOUR_S


def _minute_of(rollup: Rollup, now_s: float) -> DeviceMinute | None:
    """Return the row of a rollup, or None if nothing was measured. Raises `InvalidRollup`."""
    step = rollup.interval_s
    if rollup.span_s != MINUTE_S or rollup.start_s % MINUTE_S:
        raise InvalidRollup("not a whole minute")
    if rollup.start_s + MINUTE_S > now_s + AHEAD_S:
        raise InvalidRollup("it lies in the future: set the node's clock (NTP)")
    if rollup.start_s < oldest_kept_hour_s(now_s) + HOUR_S:
        raise InvalidRollup("it is older than minutes are kept: set the node's clock (NTP)")
    if not 1 <= step <= MINUTE_S or MINUTE_S % step:
        raise InvalidRollup("the interval does not divide a minute")
    samples_per_minute = MINUTE_S // step
    if not 0 <= rollup.n <= samples_per_minute or not 0 <= rollup.throttle_n <= rollup.n:
        raise InvalidRollup("more samples than there can be")
    if rollup.n == 0:
        return None
    for name, metric in rollup.metrics.items():
        _check(name, metric, rollup.n)
    row = DeviceMinute(start_s=rollup.start_s, measured_s=rollup.n * step)
    if gpu := rollup.metrics.get("gpu_util_pct"):
        if gpu.max > 100:
            raise InvalidRollup("more than 100 %")
        bins = dict(gpu.bins)
        if sum(bins.values()) != gpu.n or any(not 0 <= b <= 100 or c < 1 for b, c in bins.items()):
            raise InvalidRollup("its bins do not add up")
        row.gpu_pct_s, row.gpu_s, row.gpu_max_pct = gpu.sum * step, gpu.n * step, gpu.max
        row.gpu_used_s = (gpu.n - bins.get(0, 0)) * step
        row.gpu_p95_pct = gpu.p95
        row.gpu_bins = bytes(x for b, c in sorted(bins.items()) for x in (b, c * step))
    for metric_name, mean, most_name in (
        ("memory_used_mib", "memory_mib", "memory_max_mib"),
        ("power_mw", "power_mw", "power_max_mw"),
        ("temperature_c", "temperature_c", "temperature_max_c"),
        ("sm_clock_mhz", "sm_clock_mhz", ""),
        ("pcie_tx_kib_s", "pcie_tx_kib_s", ""),
        ("pcie_rx_kib_s", "pcie_rx_kib_s", ""),
    ):
        if distribution := rollup.metrics.get(metric_name):
            setattr(row, mean, round(distribution.mean))
            if most_name:
                setattr(row, most_name, distribution.max)
    if rollup.throttle_n:
        row.throttle_s = rollup.throttle_n * step
        row.thermal_s, row.power_s, row.slowed_s = (
            _longest_s(rollup, reasons) for reasons in (THERMAL, POWER, SLOWED)
        )
    return row


def _check(name: str, metric: Metric, n: int) -> None:
    small = name in ("temperature_c", "sm_clock_mhz")
    if not (
        1 <= metric.n <= n and 0 <= metric.p95 <= metric.max and 0 <= metric.sum <= metric.n * metric.max
    ):
        raise InvalidRollup(f"{_shorten(name)} is not plausible")
    if metric.max > (2**15 - 1 if small else LARGEST):
        raise InvalidRollup(f"{_shorten(name)} is too large")


def _longest_s(rollup: Rollup, reasons: Iterable[str]) -> int:
    """Return the seconds of the longest reason. Reasons overlap, so a sum would count seconds twice."""
    longest = max(rollup.throttle.get(name, 0) for name in reasons)
    return min(max(longest, 0), rollup.throttle_n * rollup.interval_s)


# --- Hours ----------------------------------------------------------------------------------------


def roll_up_hours() -> int:
    """Roll up hours with new minutes. Returns the number of hours written."""
    total = 0
    after = 0
    while True:
        with transaction.atomic():
            waiting = (
                DeviceSeries.objects.select_for_update(
                    skip_locked=connection.features.has_select_for_update_skip_locked
                )
                .filter(due_s__isnull=False, pk__gt=after)
                .order_by("pk")[:SERIES_AT_ONCE]
            )
            chunk = list(waiting)
            if not chunk:
                return total
            total += _roll(chunk)
        after = chunk[-1].pk


def _roll(chunk: Sequence[DeviceSeries]) -> int:
    due_rows = Q()
    by_due: dict[int, list[int]] = defaultdict(list)
    for series in chunk:
        if series.due_s is not None:
            by_due[series.due_s].append(series.pk)
    for due_s, keys in by_due.items():
        due_rows |= Q(series__in=keys, start_s__gte=due_s)
    hours: dict[tuple[int, int], _Hour] = {}
    rows = DeviceMinute.objects.filter(due_rows).values_list("series_id", "start_s", "gpu_bins", *COLUMNS)
    for series_id, start_s, bins, *values in rows.iterator(chunk_size=2000):
        key = (series_id, start_s - start_s % HOUR_S)
        hour = hours.get(key)
        if hour is None:
            hour = hours[key] = _Hour()
        hour.add(bins, values)
    DeviceHour.objects.bulk_create(
        [
            DeviceHour(series_id=series_id, start_s=start_s, **hour.columns())
            for (series_id, start_s), hour in hours.items()
        ],
        update_conflicts=True,
        unique_fields=["series", "start_s"],
        update_fields=list(COLUMNS),
    )
    DeviceSeries.objects.filter(pk__in=[series.pk for series in chunk]).update(due_s=None)
    return len(hours)


_SUMS = ("measured_s", "gpu_pct_s", "gpu_s", "gpu_used_s", "throttle_s", "thermal_s", "power_s", "slowed_s")
_MAXIMA = ("gpu_max_pct", "memory_max_mib", "power_max_mw", "temperature_max_c")
_MEANS = ("memory_mib", "power_mw", "temperature_c", "sm_clock_mhz", "pcie_tx_kib_s", "pcie_rx_kib_s")
_INDEX = {name: number for number, name in enumerate(COLUMNS)}
_SUM_AT = [(name, _INDEX[name]) for name in _SUMS]
_MAX_AT = [(name, _INDEX[name]) for name in _MAXIMA]
_MEAN_AT = [(name, _INDEX[name]) for name in _MEANS]


class _Hour:
    """Accumulator of an hour. Means are weighted by measured seconds; None stays None."""

    __slots__ = ("_bins", "_max", "_sum", "_weighted", "_weights")

    def __init__(self) -> None:
        self._sum: dict[str, int] = {}
        self._max: dict[str, int] = {}
        self._weighted: dict[str, int] = {}
        self._weights: dict[str, int] = {}
        self._bins: dict[int, int] = {}

    def add(self, bins: bytes | memoryview | None, values: Sequence[int | None]) -> None:
        seconds = values[0] or 0
        for name, at in _SUM_AT:
            if (value := values[at]) is not None:
                self._sum[name] = self._sum.get(name, 0) + value
        for name, at in _MAX_AT:
            if (value := values[at]) is not None:
                self._max[name] = max(value, self._max.get(name, value))
        for name, at in _MEAN_AT:
            if (value := values[at]) is not None:
                self._weighted[name] = self._weighted.get(name, 0) + value * seconds
                self._weights[name] = self._weights.get(name, 0) + seconds
        if bins is not None:
            pairs = bytes(bins)
            for percent, count in zip(pairs[::2], pairs[1::2], strict=True):
                self._bins[percent] = self._bins.get(percent, 0) + count

    def columns(self) -> dict[str, int]:
        means = {name: round(total / self._weights[name]) for name, total in self._weighted.items()}
        columns = self._sum | self._max | means
        if self._bins:
            columns["gpu_p95_pct"] = _percentile_95(self._bins)
        return columns


def _percentile_95(bins: Mapping[int, int]) -> int:
    """Return the smallest value that 95 % of all seconds do not exceed."""
    rank = -(-sum(bins.values()) * 95 // 100)
    seen = 0
    for value, count in sorted(bins.items()):
        seen += count
        if seen >= rank:
            return value
    return 0


# --- Retention ------------------------------------------------------------------------------------


def forget_old(*, now_s: float | None = None) -> int:
    """Delete expired minutes and hours, in small transactions. Returns the number of rows deleted.

    Minutes that have not been rolled up are kept.
    """
    now_s = time.time() if now_s is None else now_s
    minutes_s = oldest_kept_hour_s(now_s)
    hours_s = int(now_s) - settings.BERTH_KEEP_HOURS_DAYS * DAY_S
    deleted = 0
    keys = list(DeviceSeries.objects.order_by("pk").values_list("pk", flat=True))
    for first in range(0, len(keys), SERIES_AT_ONCE):
        chunk = keys[first : first + SERIES_AT_ONCE]
        rolled = DeviceSeries.objects.filter(Q(due_s=None) | Q(due_s__gte=minutes_s), pk__in=chunk)
        deleted += _forget(DeviceMinute, list(rolled.values_list("pk", flat=True)), minutes_s, DAY_S // 6)
        deleted += _forget(DeviceHour, chunk, hours_s, DAY_S * 60)
    return deleted


def _forget(
    model: type[DeviceMinute] | type[DeviceHour], series: Sequence[int], before_s: int, step_s: int
) -> int:
    """Delete rows older than `before_s`, in transactions that cover `step_s` seconds each."""
    total = 0
    rows = model.objects.filter(series__in=list(series), start_s__lt=before_s)
    while (oldest_s := rows.aggregate(Min("start_s"))["start_s__min"]) is not None:
        deleted, _ = rows.filter(start_s__lt=oldest_s + step_s).delete()
        total += deleted
    return total
