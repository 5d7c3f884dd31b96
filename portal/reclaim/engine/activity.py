"""What counts as activity: one function for each signal, and a clock that adds up idleness that was seen.

Nobody is idle by absence of data: what was not measured counts as active, and time that nobody watched, as
while the portal or the agent was away, counts for nothing and makes the clock begin anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

CPU_CORES = 0.05
"""From how many cores on average on a workspace computes: an app that only waits takes less."""
TRAFFIC_BYTES_S = 50_000.0
"""From how many bytes a second on average on somebody works by the gateway; open tabs move less."""
MAX_GAP_S = 150.0
"""A longer time between two reports was not watched."""


class SignalKind(StrEnum):
    """What is looked at. Its values are kept in histories: they stay."""

    GPU = "gpu"
    CPU = "cpu"
    KERNELS = "kernels"
    TERMINALS = "terminals"
    JOBS = "jobs"
    TRAFFIC = "traffic"


@dataclass(frozen=True, slots=True)
class Report:
    """What an agent reported at `at_s`; None for what was not measured.

    `has_gpus`, `has_kernels`, `has_terminals`, `has_traffic`: whether it could have reported some.
    `gpu_idle_since_s` is since when every report, those between two looks too, had all GPUs at 0 %. Stamps
    are texts: only their change counts. `traffic_bytes` are those since its start.
    """

    at_s: float
    has_gpus: bool = False
    has_kernels: bool = False
    has_terminals: bool = False
    has_traffic: bool = False
    gpu_percent: int | None = None
    gpu_idle_since_s: float | None = None
    cpu_seconds: float | None = None
    kernels: int | None = None
    kernels_busy: int | None = None
    kernels_stamp: str | None = None
    terminals: int | None = None
    terminals_stamp: str | None = None
    jobs: int | None = None
    traffic_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Signal:
    """A value against its threshold. `value` is None where it was not measured, which counts as active."""

    kind: SignalKind
    value: float | None
    threshold: float
    active: bool


@dataclass(frozen=True, slots=True)
class IdleClock:
    """For how long a workspace was seen to do nothing, up to the report `last`."""

    last: Report
    idle_s: float = 0.0
    gpu_idle_s: float = 0.0


def _unknown(kind: SignalKind, threshold: float) -> Signal:
    return Signal(kind, None, threshold, active=True)


def gpu(report: Report, before: Report) -> Signal | None:
    """Any GPU above 0 %, now or in a report since the last look."""
    if not report.has_gpus:
        return None
    if report.gpu_percent is None:
        return _unknown(SignalKind.GPU, 1)
    since = report.gpu_idle_since_s
    unbroken = since is not None and since <= before.at_s
    active = report.gpu_percent > 0 or not unbroken
    return Signal(SignalKind.GPU, max(report.gpu_percent, int(active)), 1, active)


def cpu(report: Report, before: Report) -> Signal:
    """Cores that everything in the workspace took on average since the last look."""
    over_s = report.at_s - before.at_s
    if report.cpu_seconds is None or before.cpu_seconds is None or over_s <= 0:
        return _unknown(SignalKind.CPU, CPU_CORES)
    cores = (report.cpu_seconds - before.cpu_seconds) / over_s
    if cores < 0:
        # A process whose time nobody has inherited: how much was used is not known.
        return _unknown(SignalKind.CPU, CPU_CORES)
    return Signal(SignalKind.CPU, round(cores, 3), CPU_CORES, cores >= CPU_CORES)


def kernels(report: Report, before: Report) -> Signal | None:
    """A kernel that runs something, waits for input or stands at a breakpoint, or has run something since."""
    if not report.has_kernels:
        return None
    if report.kernels is None or report.kernels_busy is None:
        return _unknown(SignalKind.KERNELS, 1)
    used = report.kernels > 0 and report.kernels_stamp != before.kernels_stamp
    return Signal(SignalKind.KERNELS, report.kernels_busy, 1, report.kernels_busy > 0 or used)


def terminals(report: Report, before: Report) -> Signal | None:
    """A terminal in which something was typed or written since the last look."""
    if not report.has_terminals:
        return None
    if report.terminals is None:
        return _unknown(SignalKind.TERMINALS, 1)
    used = report.terminals > 0 and report.terminals_stamp != before.terminals_stamp
    return Signal(SignalKind.TERMINALS, int(used), 1, used)


def jobs(report: Report, _before: Report) -> Signal:
    """Commands of shells, in the foreground or behind, whether they compute or wait."""
    if report.jobs is None:
        return _unknown(SignalKind.JOBS, 1)
    return Signal(SignalKind.JOBS, report.jobs, 1, report.jobs > 0)


def traffic(report: Report, before: Report) -> Signal | None:
    """Bytes a second that came and went through the gateway on average since the last look."""
    if not report.has_traffic:
        return None
    over_s = report.at_s - before.at_s
    if report.traffic_bytes is None or before.traffic_bytes is None or over_s <= 0:
        return _unknown(SignalKind.TRAFFIC, TRAFFIC_BYTES_S)
    rate = (report.traffic_bytes - before.traffic_bytes) / over_s
    if rate < 0:
        # It was counted anew from a moment that nobody knows.
        return _unknown(SignalKind.TRAFFIC, TRAFFIC_BYTES_S)
    return Signal(SignalKind.TRAFFIC, round(rate), TRAFFIC_BYTES_S, rate >= TRAFFIC_BYTES_S)


SIGNALS: tuple[Callable[[Report, Report], Signal | None], ...] = (gpu, cpu, kernels, terminals, jobs, traffic)
"""All that is looked at. Connections are not: an open tab is no work."""


def signals_of(report: Report, before: Report) -> tuple[Signal, ...]:
    """All signals that there are for this workspace."""
    return tuple(found for each in SIGNALS if (found := each(report, before)) is not None)


def observe(clock: IdleClock | None, report: Report) -> tuple[IdleClock, tuple[Signal, ...]]:
    """The clock after another report, and the signals in it. The same report again changes nothing."""
    if clock is None:
        return IdleClock(report), signals_of(report, report)
    over_s = report.at_s - clock.last.at_s
    if over_s == 0:
        return clock, ()
    found = signals_of(report, clock.last)
    if not 0 < over_s <= MAX_GAP_S:
        return IdleClock(report), found
    gpu_active = next((each.active for each in found if each.kind is SignalKind.GPU), True)
    return (
        IdleClock(
            report,
            idle_s=0.0 if any(each.active for each in found) else clock.idle_s + over_s,
            gpu_idle_s=0.0 if gpu_active else clock.gpu_idle_s + over_s,
        ),
        found,
    )
