"""The steps for idle workspaces: warn, release GPUs, stop. `decide` returns the next step and its reason.

Every decision guarantees:
- no workspace is stopped and no GPU released without an expired notice for the same cause;
- if a policy releases GPUs, an idle accelerated workspace releases them before it is stopped;
- a notice lasts at least as long as the policy requires;
- if a workspace is kept, used or extended, it is not stopped and its notice is withdrawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from portal.reclaim.engine.week import Week


class Cause(StrEnum):
    """Why capacity is reclaimed."""

    LIFETIME = "lifetime"
    GPU_IDLE = "gpu_idle"
    IDLE = "idle"
    LONGEST = "longest"
    SCHEDULE = "schedule"
    BUDGET = "budget"
    RELEASE = "release"
    RELEASE_GPU_IDLE = "release_gpu_idle"


RELEASES = frozenset({Cause.RELEASE, Cause.RELEASE_GPU_IDLE})
"""Causes that release GPUs; the workspace continues without them."""
KEEPABLE = frozenset({Cause.GPU_IDLE, Cause.IDLE, Cause.SCHEDULE, *RELEASES})
"""Causes that do not apply while a user keeps the workspace."""
ENDS = frozenset({Cause.LIFETIME, Cause.LONGEST})
UNUSED_S = 900
"""Seconds without use before a schedule stops a workspace, so that work can continue past the hour."""


class Step(StrEnum):
    """The step that is due for a workspace."""

    NONE = "none"
    WARN = "warn"
    WAIT = "wait"
    WITHDRAW = "withdraw"
    RELEASE = "release"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits in seconds; None disables one.

    - `gpu_idle_s`, `idle_s`, `longest_s`: limits for idle GPUs, idle workspaces, and the whole lifetime.
    - `notice_s`: minimum time between notice and stop.
    - `weeks`: working hours, the idle limit outside them, and hours at which unused workspaces stop.
    - `stop_when_spent`: stop accelerated workspaces when the team's GPU-hours are spent.
    - `release_s`: idle time after which an accelerated workspace releases its GPUs. The idle limits then only
      release GPUs, no later than they would have stopped the workspace.
    """

    gpu_idle_s: int | None
    idle_s: int | None
    notice_s: int
    longest_s: int | None = None
    weeks: tuple[Week, ...] = ()
    stop_when_spent: bool = False
    release_s: int | None = None


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a running workspace.

    - `ends_at_s`, `lifetime_s`: its end (None: no end), and its planned lifetime.
    - `gpu_idle_s`, `idle_s`: observed idle seconds of its GPUs, and of all signals; None if unknown.
    - `kept_until_s`: not stopped as idle before this time.
    - `began_s`: start time, moved forward by the time without observation.
    - `spent`: its team's GPU-hours are spent.
    """

    ends_at_s: float | None = None
    lifetime_s: int | None = None
    gpu_idle_s: float | None = None
    idle_s: float | None = None
    kept_until_s: float | None = None
    began_s: float | None = None
    spent: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """The notice to the user that the workspace stops at `due_at_s` for `cause`."""

    cause: Cause
    warned_at_s: float
    due_at_s: float


@dataclass(frozen=True, slots=True)
class ThresholdReading:
    """A value close to its threshold, both in seconds."""

    cause: Cause
    value_s: float
    threshold_s: float
    due_at_s: float

    @property
    def reached(self) -> bool:
        return self.value_s >= self.threshold_s


@dataclass(frozen=True, slots=True)
class Verdict:
    """The step that is due. `readings` are the causes; `due_at_s` is when the workspace stops, if it does."""

    step: Step
    cause: Cause | None = None
    due_at_s: float | None = None
    readings: tuple[ThresholdReading, ...] = ()


def notice_of(policy: Policy, run_state: RunState, cause: Cause = Cause.LIFETIME) -> int:
    """Return the notice period in seconds; before the end of a lifetime, at most a quarter of it."""
    whole_s = {Cause.LIFETIME: run_state.lifetime_s, Cause.LONGEST: policy.longest_s}.get(cause)
    return policy.notice_s if whole_s is None else min(policy.notice_s, whole_s // 4)


def idle_limit_s(policy: Policy, now_s: float) -> int | None:
    """Return the idle limit in seconds after which a workspace stops or releases its GPUs.

    The limit may be shorter outside working hours.
    """
    limits = [
        week.after_hours_s for week in policy.weeks if week.after_hours_s and not week.is_working_time(now_s)
    ]
    limit_s = min([*limits, *(limit for limit in (policy.idle_s, policy.release_s) if limit)], default=None)
    # At least the notice: otherwise there would be no idle time to report.
    return None if limit_s is None else max(limit_s, policy.notice_s)


def threshold_readings(run_state: RunState, policy: Policy, now_s: float) -> tuple[ThresholdReading, ...]:
    """Return all causes that are close enough to their threshold for a notice, soonest first."""
    readings = [*_ends(run_state, policy, now_s)]
    if run_state.spent and policy.stop_when_spent:
        readings.append(ThresholdReading(Cause.BUDGET, 0.0, 0.0, now_s))
    if run_state.kept_until_s is None or run_state.kept_until_s <= now_s:
        releases = policy.release_s is not None
        for cause, seen_s, limit_s in (
            (
                Cause.RELEASE_GPU_IDLE if releases else Cause.GPU_IDLE,
                run_state.gpu_idle_s,
                policy.gpu_idle_s,
            ),
            (Cause.RELEASE if releases else Cause.IDLE, run_state.idle_s, idle_limit_s(policy, now_s)),
        ):
            if seen_s is None or limit_s is None:
                continue
            if limit_s - seen_s <= policy.notice_s:
                readings.append(ThresholdReading(cause, seen_s, limit_s, now_s + max(0.0, limit_s - seen_s)))
        readings += _schedule(run_state, policy, now_s)
    return tuple(sorted(readings, key=lambda reading: reading.due_at_s))


def _ends(run_state: RunState, policy: Policy, now_s: float) -> Iterator[ThresholdReading]:
    if run_state.ends_at_s is not None:
        left_s = run_state.ends_at_s - now_s
        if left_s <= notice_of(policy, run_state):
            lifetime_s = float(run_state.lifetime_s or 0)
            yield ThresholdReading(Cause.LIFETIME, lifetime_s - left_s, lifetime_s, run_state.ends_at_s)
    if policy.longest_s is not None and run_state.began_s is not None:
        end_s = run_state.began_s + policy.longest_s
        if end_s - now_s <= notice_of(policy, run_state, Cause.LONGEST):
            yield ThresholdReading(Cause.LONGEST, now_s - run_state.began_s, policy.longest_s, end_s)


def _schedule(run_state: RunState, policy: Policy, now_s: float) -> Iterator[ThresholdReading]:
    """Yield the stop hour of a schedule, if the workspace ran before that hour and is unused."""
    if run_state.began_s is None or run_state.idle_s is None or run_state.idle_s < UNUSED_S:
        return
    stops = [
        stop
        for week in policy.weeks
        if (stop := week.stop_near(now_s, policy.notice_s)) is not None and stop > run_state.began_s
    ]
    if stops:
        value_s = policy.notice_s - (min(stops) - now_s)
        yield ThresholdReading(Cause.SCHEDULE, value_s, policy.notice_s, min(stops))


def decide(run_state: RunState, policy: Policy, notice: Notice | None, now_s: float) -> Verdict:
    """Return the step that is due for a running workspace with this `notice`."""
    readings = threshold_readings(run_state, policy, now_s)
    if notice is not None:
        same = next((reading for reading in readings if reading.cause == notice.cause), None)
        if same is None:
            return Verdict(Step.WITHDRAW, notice.cause, None, readings)
        if now_s >= notice.due_at_s and same.reached:
            step = Step.RELEASE if notice.cause in RELEASES else Step.STOP
            return Verdict(step, notice.cause, notice.due_at_s, readings)
        return Verdict(Step.WAIT, notice.cause, max(notice.due_at_s, same.due_at_s), readings)
    if not readings:
        return Verdict(Step.NONE)
    first = readings[0]
    return Verdict(
        Step.WARN,
        first.cause,
        max(first.due_at_s, now_s + notice_of(policy, run_state, first.cause)),
        readings,
    )
