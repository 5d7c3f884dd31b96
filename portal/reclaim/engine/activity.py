"""Activity signals, with one function each, and a clock that adds up observed idle time.

Missing data does not count as idle: unmeasured signals are active, and unobserved time resets the clock.
There are two exceptions:

- A gap between two complete reports is filled if neither the time before it nor the report after it shows
  work, within `MAX_FILL_S` and `MAX_FILL_SHARE`. Counters and stamps cover the gap itself; GPUs are known
  only before and after it. An incomplete report without work is treated as missing.
- A signal that an app has not reported for `UNMEASURED_GRACE_S` is ignored while other signals are measured;
  otherwise a broken app would be active forever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from portal.reclaim.engine.devices import unused_since

CPU_CORES = 0.05
"""Average cores above which a workspace counts as computing. An app that only waits uses less."""
TRAFFIC_BYTES_S = 50_000.0
"""Average bytes per second through the gateway that count as work. Open tabs cause less."""
EDITOR_CORES = 0.2
"""Average cores above which VS Code's own processes count as computing. An open tab uses up to 0.1."""
WAITING_S = 4 * 3600.0
"""Seconds after which commands that only wait no longer count as work, if there is no other work."""
WAITING_CORES = 0.005
"""Average cores of all commands together, below which the commands count as waiting."""
WAITING_BYTES_S = 100.0
"""Average bytes per second read and written by all commands together, below which they count as waiting."""
SERVER_BYTES_S = 10_000.0
"""The same limit if all commands are servers without a connection. Their limit for cores is `CPU_CORES`.
"""
KERNEL_CORES = 0.003
"""Average cores above which kernels and their children count as working although no cell runs."""
KERNEL_BYTES_S = 100.0
"""Average bytes per second read and written by kernels and their children, above which they work."""
MAX_GAP_S = 150.0
"""Maximum seconds between two reports for the time to count as observed."""
MAX_FILL_S = 600.0
"""Maximum length in seconds of a gap that counts as idle."""
MAX_FILL_SHARE = 0.2
"""Maximum share of filled gaps in an idle time. Above it, the clock restarts."""
UNMEASURED_GRACE_S = 1800.0
"""Seconds for which an app's unmeasured signals count as active."""


class SignalKind(StrEnum):
    """The kinds of signals. Values are stored in histories and must not change."""

    GPU = "gpu"
    CPU = "cpu"
    KERNELS = "kernels"
    TERMINALS = "terminals"
    JOBS = "jobs"
    EDITS = "edits"
    TRAFFIC = "traffic"


@dataclass(frozen=True, slots=True)
class AgentReport:
    """An agent's report at `at_s`. None: not measured.

    `has_gpus`, `has_kernels`, `has_terminals`, `has_traffic`: whether the agent can report the value at all.
    `gpu_idle_since_s`: since when every report, including those between observations, had all GPUs at 0 %.
    Timestamps are opaque texts of which only changes matter, except that `edited_at` can be compared.
    `traffic_bytes` counts from the start of the workspace. Counters of kernels and commands are sums over all
    of them since the start. Set by `advance_clock`: `unmeasured_since_s`, since when some of `BY_APP` is
    unmeasured in each report; `waiting_since_s`, since when commands only wait and nothing else works;
    `filled_s` and `gpu_filled_s`, seconds of filled gaps in the idle times of the clock; `gpus_unused_since`,
    since when each GPU has been unused (`engine.devices`).
    """

    at_s: float
    has_gpus: bool = False
    has_kernels: bool = False
    has_terminals: bool = False
    has_traffic: bool = False
    gpu_percent: int | None = None
    gpu_percents: tuple[int | None, ...] = ()
    gpu_idle_since_s: float | None = None
    cpu_seconds: float | None = None
    kernels: int | None = None
    kernels_busy: int | None = None
    kernels_stamp: str | None = None
    kernels_cpu_seconds: float | None = None
    kernels_io_bytes: int | None = None
    terminals: int | None = None
    terminals_stamp: str | None = None
    jobs: int | None = None
    jobs_cpu_seconds: float | None = None
    jobs_io_bytes: int | None = None
    jobs_unused_servers: int | None = None
    monitors_cpu_seconds: float | None = None
    editor_cpu_seconds: float | None = None
    edited_at: str | None = None
    traffic_bytes: int | None = None
    unmeasured_since_s: float | None = None
    waiting_since_s: float | None = None
    filled_s: float = 0.0
    gpu_filled_s: float = 0.0
    gpus_unused_since: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Signal:
    """A value and its threshold. None: not measured, which counts as active for a limited time."""

    kind: SignalKind
    value: float | None
    threshold: float
    active: bool


@dataclass(frozen=True, slots=True)
class IdleClock:
    """The idle time of a workspace up to the report `last`."""

    last: AgentReport
    idle_s: float = 0.0
    gpu_idle_s: float = 0.0


def _unknown(kind: SignalKind, threshold: float) -> Signal:
    return Signal(kind, None, threshold, active=True)


def _rate(over_s: float, now: float | None, before: float | None) -> float | None:
    """Return the growth of a counter per second. None: not measured, or restarted."""
    if over_s <= 0 or now is None or before is None or now < before:
        return None
    return (now - before) / over_s


def _reaches(rate: float | None, threshold: float) -> bool:
    return rate is not None and rate >= threshold


def gpu_signal(report: AgentReport, before: AgentReport) -> Signal | None:
    """Return the GPU signal: any GPU above 0 %, now or in a report since the last observation."""
    if not report.has_gpus:
        return None
    if report.gpu_percent is None:
        return _unknown(SignalKind.GPU, 1)
    since = report.gpu_idle_since_s
    unbroken = since is not None and since <= before.at_s
    active = report.gpu_percent > 0 or not unbroken
    return Signal(SignalKind.GPU, max(report.gpu_percent, int(active)), 1, active)


def cpu_signal(report: AgentReport, before: AgentReport) -> Signal:
    """Return the CPU signal: average cores used by the workspace since the last observation.

    Excludes monitoring programs, and VS Code itself below `EDITOR_CORES`.
    """
    over_s = report.at_s - before.at_s
    if report.cpu_seconds is None or before.cpu_seconds is None or over_s <= 0:
        return _unknown(SignalKind.CPU, CPU_CORES)
    cores = (report.cpu_seconds - before.cpu_seconds) / over_s
    if cores < 0:
        # A process ended without its CPU time being counted, so the usage is unknown.
        return _unknown(SignalKind.CPU, CPU_CORES)
    cores -= _rate(over_s, report.monitors_cpu_seconds, before.monitors_cpu_seconds) or 0.0
    editor = _rate(over_s, report.editor_cpu_seconds, before.editor_cpu_seconds) or 0.0
    if editor < EDITOR_CORES:
        cores -= editor
    cores = max(cores, 0.0)
    return Signal(SignalKind.CPU, round(cores, 3), CPU_CORES, cores >= CPU_CORES)


def kernel_signal(report: AgentReport, before: AgentReport) -> Signal | None:
    """Return the kernel signal: a kernel is busy, waits for input or a debugger, or has run since.

    Threads, tasks and child processes of a kernel may work without a running cell.
    """
    if not report.has_kernels:
        return None
    if report.kernels is None or report.kernels_busy is None:
        return _unknown(SignalKind.KERNELS, 1)
    over_s = report.at_s - before.at_s
    cores = _rate(over_s, report.kernels_cpu_seconds, before.kernels_cpu_seconds)
    bytes_s = _rate(over_s, report.kernels_io_bytes, before.kernels_io_bytes)
    works = _reaches(cores, KERNEL_CORES) or _reaches(bytes_s, KERNEL_BYTES_S)
    used = report.kernels > 0 and (report.kernels_stamp != before.kernels_stamp or works)
    return Signal(SignalKind.KERNELS, report.kernels_busy, 1, report.kernels_busy > 0 or used)


def terminal_signal(report: AgentReport, before: AgentReport) -> Signal | None:
    """Return the terminal signal: input or output since the last observation."""
    if not report.has_terminals:
        return None
    if report.terminals is None:
        return _unknown(SignalKind.TERMINALS, 1)
    used = report.terminals > 0 and report.terminals_stamp != before.terminals_stamp
    return Signal(SignalKind.TERMINALS, int(used), 1, used)


def job_signal(report: AgentReport, before: AgentReport) -> Signal:
    """Return the job signal: shell commands that work, or that have waited for less than `WAITING_S`.

    Includes short commands that have already ended, as in a shell loop.
    """
    if report.jobs is None:
        return _unknown(SignalKind.JOBS, 1)
    cores, bytes_s = _use_of_jobs(report, before)
    max_cores, max_bytes_s = _waiting_limits(report)
    if _reaches(cores, max_cores) or _reaches(bytes_s, max_bytes_s):
        return Signal(SignalKind.JOBS, max(report.jobs, 1), 1, active=True)
    waited = report.waiting_since_s is not None and report.at_s - report.waiting_since_s >= WAITING_S
    return Signal(SignalKind.JOBS, report.jobs, 1, report.jobs > 0 and not waited)


def _use_of_jobs(report: AgentReport, before: AgentReport) -> tuple[float | None, float | None]:
    """Return the average cores and bytes per second of commands."""
    over_s = report.at_s - before.at_s
    return (
        _rate(over_s, report.jobs_cpu_seconds, before.jobs_cpu_seconds),
        _rate(over_s, report.jobs_io_bytes, before.jobs_io_bytes),
    )


def edit_signal(report: AgentReport, before: AgentReport) -> Signal | None:
    """Return the edit signal: a file was saved in an editor since the last observation."""
    if report.edited_at is None:
        return None
    saved = report.edited_at > (before.edited_at or "")
    return Signal(SignalKind.EDITS, int(saved), 1, saved)


def _waiting_limits(report: AgentReport) -> tuple[float, float]:
    """Return the cores and bytes per second below which commands wait."""
    if report.jobs and report.jobs_unused_servers == report.jobs:
        return CPU_CORES, SERVER_BYTES_S
    return WAITING_CORES, WAITING_BYTES_S


def traffic_signal(report: AgentReport, before: AgentReport) -> Signal | None:
    """Return the traffic signal: average bytes per second through the gateway since the last observation."""
    if not report.has_traffic:
        return None
    over_s = report.at_s - before.at_s
    if report.traffic_bytes is None or before.traffic_bytes is None or over_s <= 0:
        return _unknown(SignalKind.TRAFFIC, TRAFFIC_BYTES_S)
    rate = (report.traffic_bytes - before.traffic_bytes) / over_s
    if rate < 0:
        # The counter was reset at an unknown time.
        return _unknown(SignalKind.TRAFFIC, TRAFFIC_BYTES_S)
    return Signal(SignalKind.TRAFFIC, round(rate), TRAFFIC_BYTES_S, rate >= TRAFFIC_BYTES_S)


SIGNALS: tuple[Callable[[AgentReport, AgentReport], Signal | None], ...] = (
    gpu_signal,
    cpu_signal,
    kernel_signal,
    terminal_signal,
    job_signal,
    edit_signal,
    traffic_signal,
)
"""All signals. Connections are not a signal, because an open tab is not work."""


BY_APP = frozenset({SignalKind.KERNELS, SignalKind.TERMINALS, SignalKind.JOBS, SignalKind.TRAFFIC})
"""Signals that may be missing because an app or a user's program is broken. CPU and GPUs are required."""


def signals_of(report: AgentReport, before: AgentReport) -> tuple[Signal, ...]:
    """Return all signals that the workspace can report."""
    signals = [signal for read in SIGNALS if (signal := read(report, before)) is not None]
    since_s = report.unmeasured_since_s
    if since_s is None or report.at_s - since_s < UNMEASURED_GRACE_S:
        return tuple(signals)
    if any(signal.value is None for signal in signals if signal.kind not in BY_APP):
        return tuple(signals)
    return tuple(replace(signal, active=False) if signal.value is None else signal for signal in signals)


def advance_clock(clock: IdleClock | None, report: AgentReport) -> tuple[IdleClock, tuple[Signal, ...]]:
    """Return the clock after a report, and its signals. Idempotent for the same report.

    Returns the same clock for an incomplete report without work, because the next report may fill the gap.
    """
    if clock is None:
        return IdleClock(_with_unused_gpus(report, report)), signals_of(report, report)
    over_s = report.at_s - clock.last.at_s
    if over_s == 0:
        return clock, ()
    report = replace(
        report,
        unmeasured_since_s=_unmeasured_since(report, clock.last),
        edited_at=max(report.edited_at or "", clock.last.edited_at or "") or None,
    )
    if over_s < 0:
        return IdleClock(report), signals_of(report, clock.last)
    complete = _is_complete(report)
    if not complete and over_s <= MAX_FILL_S and _is_quiet(report, clock):
        return clock, ()
    report = replace(report, waiting_since_s=_waiting_since(report, clock.last))
    signals = signals_of(report, clock.last)
    gpu_active = next((signal.active for signal in signals if signal.kind is SignalKind.GPU), True)
    active = any(signal.active for signal in signals) or (over_s > MAX_GAP_S and not complete)
    idle_s, filled_s = _advance(clock.idle_s, clock.last.filled_s, over_s, active=active)
    gpu_idle_s, gpu_filled_s = _advance(clock.gpu_idle_s, clock.last.gpu_filled_s, over_s, active=gpu_active)
    report = replace(_with_unused_gpus(report, clock.last), filled_s=filled_s, gpu_filled_s=gpu_filled_s)
    return IdleClock(report, idle_s, gpu_idle_s), signals


def _with_unused_gpus(report: AgentReport, before: AgentReport) -> AgentReport:
    since = unused_since(
        report.gpu_percents,
        before.gpus_unused_since,
        at_s=report.at_s,
        before_s=before.at_s,
        max_gap_s=MAX_GAP_S,
    )
    return replace(report, gpus_unused_since=since)


def _advance(idle_s: float, filled_s: float, over_s: float, *, active: bool) -> tuple[float, float]:
    """Return the idle seconds after `over_s` more seconds, and how many of them are filled gaps."""
    if active:
        return 0.0, 0.0
    if over_s <= MAX_GAP_S:
        return idle_s + over_s, filled_s
    filled_s += over_s
    if not idle_s or over_s > MAX_FILL_S or filled_s > MAX_FILL_SHARE * (idle_s + over_s):
        return 0.0, 0.0
    return idle_s + over_s, filled_s


def _is_complete(report: AgentReport) -> bool:
    """Return whether the agent and its app have measured everything that they can report."""
    figures = [report.cpu_seconds, report.jobs]
    if report.has_kernels:
        figures += [report.kernels, report.kernels_busy]
    if report.has_terminals:
        figures.append(report.terminals)
    if report.has_traffic:
        figures.append(report.traffic_bytes)
    return None not in figures


def _is_quiet(report: AgentReport, clock: IdleClock) -> bool:
    """Return whether an incomplete report after an idle or waiting time shows no work.

    Unmeasured GPUs and restarted counters count as work.
    """
    before = clock.last
    missing = {
        SignalKind.CPU: report.cpu_seconds is None,
        SignalKind.KERNELS: report.kernels is None or report.kernels_busy is None,
        SignalKind.TERMINALS: report.terminals is None,
        SignalKind.JOBS: report.jobs is None or before.waiting_since_s is not None,
        SignalKind.TRAFFIC: report.traffic_bytes is None,
    }
    if clock.idle_s == 0 and before.waiting_since_s is None:
        return False
    return not any(signal.active and not missing.get(signal.kind) for signal in signals_of(report, before))


def _waiting_since(report: AgentReport, before: AgentReport) -> float | None:
    """Return since when commands have only waited and nothing else has worked, else None."""
    over_s = report.at_s - before.at_s
    if over_s > MAX_FILL_S or not report.jobs or before.jobs is None or report.jobs > before.jobs:
        return None
    if any(signal.active for signal in signals_of(report, before) if signal.kind is not SignalKind.JOBS):
        return None
    cores, bytes_s = _use_of_jobs(report, before)
    max_cores, max_bytes_s = _waiting_limits(report)
    if cores is None or bytes_s is None or cores >= max_cores or bytes_s >= max_bytes_s:
        return None
    return before.at_s if before.waiting_since_s is None else before.waiting_since_s


def _unmeasured_since(report: AgentReport, before: AgentReport) -> float | None:
    """Return since when some signal of `BY_APP` has been unmeasured; None if all are measured."""
    signals = (signal for read in SIGNALS if (signal := read(report, before)) is not None)
    if not any(signal.value is None and signal.kind in BY_APP for signal in signals):
        return None
    return before.unmeasured_since_s if before.unmeasured_since_s is not None else report.at_s
