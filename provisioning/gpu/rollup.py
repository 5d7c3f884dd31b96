"""Aggregate samples per minute and hour. Pure functions; merging is lossless.

A metric keeps count, sum, maximum, and a histogram with fixed bins for the 95th percentile. All of these are
additive, so an hour merged from minutes equals an hour computed from samples. The percentile is exact for
percentages and temperatures, and within one bin otherwise (`_WIDTHS`; at most 25 % for rates). Missing values
are counted as missing, never as 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from provisioning.gpu.ring import SampleWindow
from provisioning.gpu.samples import METRICS, THROTTLE_REASONS, ProcessUse

MINUTE_S = 60
HOUR_S = 3600
MAX_PROCESSES = 16
# Bin width; 0 means four bins per octave.
_WIDTHS: Mapping[str, int] = {
    "gpu_util_pct": 1,
    "memory_util_pct": 1,
    "memory_used_mib": 256,
    "power_mw": 10_000,
    "temperature_c": 1,
    "memory_temperature_c": 1,
    "sm_clock_mhz": 15,
    "memory_clock_mhz": 15,
    "pcie_tx_kib_s": 0,
    "pcie_rx_kib_s": 0,
    "nvlink_tx_kib_s": 0,
    "nvlink_rx_kib_s": 0,
}


@dataclass(frozen=True, slots=True)
class Metric:
    """`n` samples with a value. `bins` are (bin, count) in ascending order; `p95` is derived from them."""

    n: int
    sum: int
    max: int
    p95: int
    bins: tuple[tuple[int, int], ...]

    @property
    def mean(self) -> float:
        return self.sum / self.n


@dataclass(frozen=True, slots=True)
class ProcessShare:
    """A process's use in one minute: seconds observed, mean share of the SMs, peak memory."""

    pid: int
    seconds: int
    sm_pct: int | None
    memory_mib: int | None


@dataclass(frozen=True, slots=True)
class Rollup:
    """A device from `start_s` (UTC) for `span_s`, with `n` samples, at most one per `interval_s`.

    `throttle` has the seconds per reason, out of `throttle_n` samples with that value. `processes` are the
    largest of a minute and are dropped from hours.
    """

    uuid: str
    start_s: int
    span_s: int
    interval_s: int
    n: int
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    throttle: Mapping[str, int] = field(default_factory=dict)
    throttle_n: int = 0
    processes: tuple[ProcessShare, ...] = ()

    @property
    def missing_s(self) -> int:
        """Seconds without any sample."""
        return max(0, self.span_s - self.n * self.interval_s)

    def missing_of(self, metric: str) -> int:
        """Return the seconds without a value of this metric."""
        values = self.metrics.get(metric)
        return max(0, self.span_s - (values.n if values else 0) * self.interval_s)

    def figures(self, metric: str) -> tuple[float, int, int] | None:
        """Return (mean, maximum, 95th percentile), or None if never measured."""
        values = self.metrics.get(metric)
        return (values.mean, values.max, values.p95) if values else None


def minute(
    window: SampleWindow,
    *,
    uuid: str,
    start_s: int,
    span_s: int = MINUTE_S,
    interval_s: int = 1,
    processes: Iterable[ProcessShare] = (),
) -> Rollup:
    """Aggregate the samples of `window` from `start_s` on. The later of two samples in an interval counts."""
    inside = (window.at_s >= start_s) & (window.at_s < start_s + span_s)
    slots = ((window.at_s[inside] - start_s) // interval_s).astype(np.int64)
    _, from_end = np.unique(slots[::-1], return_index=True)
    keep = np.flatnonzero(inside)[len(slots) - 1 - from_end]
    values = window.values[keep]
    metrics = {}
    for column, name in enumerate(METRICS):
        column_values = values[:, column]
        column_values = column_values[~np.isnan(column_values)].astype(np.int64)
        if len(column_values):
            metrics[name] = _metric(name, column_values.tolist())
    masks = [int(mask) for mask in window.throttle[keep] if mask >= 0]
    throttle = {
        name: count * interval_s
        for bit, name in THROTTLE_REASONS
        if (count := sum(1 for mask in masks if mask & bit))
    }
    return Rollup(
        uuid, start_s, span_s, interval_s, len(keep), metrics, throttle, len(masks), tuple(processes)
    )


def merge(parts: Iterable[Rollup], *, start_s: int, span_s: int = HOUR_S) -> Rollup:
    """Return one rollup of the whole span, identical to one computed from its samples.

    Gaps between parts count as missing. Raises ValueError if there are no parts, or they overlap, lie
    outside, or differ in device or interval.
    """
    ordered = sorted(parts, key=lambda part: part.start_s)
    if not ordered:
        raise ValueError("nothing to merge")
    end_s = start_s
    for part in ordered:
        if (part.uuid, part.interval_s) != (ordered[0].uuid, ordered[0].interval_s):
            raise ValueError("parts belong to several devices or intervals")
        if part.start_s < end_s or part.start_s + part.span_s > start_s + span_s:
            raise ValueError("parts overlap or lie outside the interval")
        end_s = part.start_s + part.span_s
    metrics = {}
    for name in METRICS:
        metric_parts = [part.metrics[name] for part in ordered if name in part.metrics]
        if metric_parts:
            metrics[name] = _join_metrics(name, metric_parts)
    throttle: Counter[str] = Counter()
    for part in ordered:
        throttle.update(part.throttle)
    return Rollup(
        ordered[0].uuid,
        start_s,
        span_s,
        ordered[0].interval_s,
        sum(part.n for part in ordered),
        metrics,
        dict(throttle),
        sum(part.throttle_n for part in ordered),
    )


def _metric(name: str, values: list[int]) -> Metric:
    bins = Counter(bin_of(name, value) for value in values)
    return _metric_of_bins(name, len(values), sum(values), max(values), bins)


def _join_metrics(name: str, parts: list[Metric]) -> Metric:
    bins: Counter[int] = Counter()
    for part in parts:
        bins.update(dict(part.bins))
    return _metric_of_bins(
        name, sum(part.n for part in parts), sum(part.sum for part in parts), max(p.max for p in parts), bins
    )


def _metric_of_bins(name: str, n: int, total: int, peak: int, bins: Counter[int]) -> Metric:
    ordered = tuple(sorted(bins.items()))
    rank = -(-n * 95 // 100)
    cumulative, p95 = 0, peak
    for number, count in ordered:
        cumulative += count
        if cumulative >= rank:
            p95 = min(peak, top_of(name, number))
            break
    return Metric(n, total, peak, p95, ordered)


def bin_of(name: str, value: int) -> int:
    """Return the bin of a nonnegative value."""
    width = _WIDTHS[name]
    if width:
        return value // width
    if value <= 0:
        return 0
    octave = value.bit_length() - 1
    quarter = ((value << 2) >> octave) & 3
    return 1 + 4 * octave + quarter


def top_of(name: str, number: int) -> int:
    """Return the largest value in a bin."""
    width = _WIDTHS[name]
    if width:
        return (number + 1) * width - 1
    if number <= 0:
        return 0
    octave, quarter = divmod(number - 1, 4)
    return max(1, -(-((5 + quarter) << octave) // 4) - 1)


class ProcessTally:
    """Accumulates the use of processes during one minute."""

    def __init__(self) -> None:
        self._seen: dict[int, list[int | None]] = {}

    def add(self, processes: Iterable[ProcessUse] | None) -> None:
        for use in processes or ():
            row = self._seen.setdefault(use.pid, [0, 0, 0, None])
            row[0] = (row[0] or 0) + 1
            if use.sm_pct is not None:
                row[1] = (row[1] or 0) + use.sm_pct
                row[2] = (row[2] or 0) + 1
            if use.memory_mib is not None:
                row[3] = max(row[3] or 0, use.memory_mib)

    def shares(self, interval_s: int) -> tuple[ProcessShare, ...]:
        """Return the processes with the most compute, then the most memory."""
        shares = [
            ProcessShare(pid, (count or 0) * interval_s, (total or 0) // counted if counted else None, memory)
            for pid, (count, total, counted, memory) in self._seen.items()
        ]
        shares.sort(key=lambda share: (-(share.sm_pct or 0), -(share.memory_mib or 0), share.pid))
        return tuple(shares[:MAX_PROCESSES])
