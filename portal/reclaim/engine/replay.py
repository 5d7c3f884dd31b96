"""Replays `ladder.decide` on recorded activity."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from portal.reclaim.engine.ladder import UNUSED_S, Cause, Notice, Policy, RunState, Step, decide

MAX_STEPS = 5000
MIN_GAIN_S = 60.0
"""Minimum seconds by which a replayed stop has to precede the actual end."""


@dataclass(frozen=True, slots=True)
class Period:
    """A period without activity."""

    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One start of a workspace: its run and idle periods.

    `idle` is for all signals, `gpu_idle` for GPUs; other times count as work. `kept` are the periods for
    which a user kept the workspace.
    """

    begin_s: float
    end_s: float
    idle: tuple[Period, ...] = ()
    gpu_idle: tuple[Period, ...] = ()
    kept: tuple[Period, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplayedStop:
    """A stop that the policies would have caused. With `released`, only the GPUs are released.

    `freed_s`: seconds from this stop until the workspace was used again or really stopped.
    """

    at_s: float
    cause: Cause
    interrupted: bool
    freed_s: float
    released: bool = False


def replay(past: RecordedRun, policy: Policy) -> list[ReplayedStop]:
    """Return when the policy would have stopped the workspace or released its GPUs.

    Assumes that the workspace is restarted with its GPUs when it is used again.
    """
    stops: list[ReplayedStop] = []
    began_s, notice = past.begin_s, None
    moments = _moments(past, policy)
    heapq.heapify(moments)
    before_s = past.begin_s
    for _ in range(MAX_STEPS):
        if not moments:
            break
        now_s = heapq.heappop(moments)
        if now_s < before_s or now_s >= past.end_s:
            continue
        before_s = now_s
        idle, gpu_idle = _period_at(past.idle, now_s), _period_at(past.gpu_idle, now_s)
        run_state = RunState(
            idle_s=now_s - max(idle.begin_s, began_s) if idle else 0.0,
            gpu_idle_s=now_s - max(gpu_idle.begin_s, began_s) if gpu_idle else 0.0,
            kept_until_s=max((period.end_s for period in past.kept if period.begin_s <= now_s), default=None),
            began_s=began_s,
        )
        verdict = decide(run_state, policy, notice, now_s)
        if verdict.step is Step.WITHDRAW:
            notice = None
            verdict = decide(run_state, policy, None, now_s)
        if verdict.step is Step.WARN:
            assert verdict.cause is not None
            assert verdict.due_at_s is not None
            notice = Notice(verdict.cause, now_s, verdict.due_at_s)
            heapq.heappush(moments, verdict.due_at_s)
        elif verdict.step is Step.WAIT:
            assert verdict.due_at_s is not None
            # At least one second later, in case rounding misses a threshold.
            heapq.heappush(moments, max(verdict.due_at_s, now_s + 1))
        elif verdict.step in (Step.STOP, Step.RELEASE):
            assert verdict.cause is not None
            until_s = idle.end_s if idle else past.end_s
            if until_s - now_s >= MIN_GAIN_S:
                released = verdict.step is Step.RELEASE
                stops.append(ReplayedStop(now_s, verdict.cause, idle is None, until_s - now_s, released))
            if idle is None:
                break
            began_s = before_s = until_s
            notice = None
            for moment in _life_ends(policy, began_s, past.end_s):
                heapq.heappush(moments, moment)
    return stops


def _period_at(periods: tuple[Period, ...], now_s: float) -> Period | None:
    return next((period for period in periods if period.begin_s <= now_s < period.end_s), None)


def _moments(past: RecordedRun, policy: Policy) -> list[float]:
    """Return the times at which the decision may change."""
    moments = [past.begin_s, *_life_ends(policy, past.begin_s, past.end_s)]
    for period in past.kept:
        moments += [period.begin_s, period.end_s]
    after = [week.after_hours_s for week in policy.weeks if week.after_hours_s]
    limits = [UNUSED_S] if any(week.stop_at for week in policy.weeks) else []
    limits += [
        max(limit_s, policy.notice_s) - policy.notice_s
        for limit_s in (policy.idle_s, policy.release_s, *after)
        if limit_s
    ]
    for period in past.idle:
        moments += [period.begin_s + limit for limit in limits] + [period.end_s]
    if policy.gpu_idle_s is not None:
        for period in past.gpu_idle:
            moments += [period.begin_s + policy.gpu_idle_s - policy.notice_s, period.end_s]
    for week in policy.weeks:
        moments += week.boundaries(past.begin_s, past.end_s)
        for stop in week.stops(past.begin_s, past.end_s):
            moments += [stop - policy.notice_s, stop]
    return moments


def _life_ends(policy: Policy, began_s: float, end_s: float) -> list[float]:
    """Return the ends of a lifetime that began then, and when their notices begin."""
    moments = []
    if policy.longest_s is not None:
        end = began_s + policy.longest_s
        moments += [end - min(policy.notice_s, policy.longest_s // 4), end]
    return [moment for moment in moments if moment < end_s]
