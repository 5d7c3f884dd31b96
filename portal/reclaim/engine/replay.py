"""What a policy would have done to a recorded past: the ladder walked over it, by the same `decide`."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from portal.reclaim.engine.ladder import UNUSED_S, Cause, Notice, Policy, Standing, Step, decide

MAX_STEPS = 5000
MIN_GAIN_S = 60.0
"""A stop that came this much earlier than what happened anyway is none."""


@dataclass(frozen=True, slots=True)
class Spell:
    """A time in which nothing was done, from one moment to another."""

    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Past:
    """One start of a workspace: from when until when it ran, and the times without work in it.

    `idle` is of all that it does, `gpu_idle` of its GPUs; whatever else was is taken for work. `kept` are
    the times for which somebody said that it is needed.
    """

    begin_s: float
    end_s: float
    idle: tuple[Spell, ...] = ()
    gpu_idle: tuple[Spell, ...] = ()
    kept: tuple[Spell, ...] = ()


@dataclass(frozen=True, slots=True)
class Stopped:
    """It would have been stopped then, or its GPUs `released`: what it does not free beside them stays.

    `freed_s` is until it was used again, or stopped as it really was.
    """

    at_s: float
    cause: Cause
    interrupted: bool
    freed_s: float
    released: bool = False


def replay(past: Past, policy: Policy) -> list[Stopped]:
    """Where the policy would have stopped it, or released its GPUs.

    It is taken to be started anew, with its GPUs, when it was used again.
    """
    found: list[Stopped] = []
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
        idle, gpu_idle = _within(past.idle, now_s), _within(past.gpu_idle, now_s)
        standing = Standing(
            idle_s=now_s - max(idle.begin_s, began_s) if idle else 0.0,
            gpu_idle_s=now_s - max(gpu_idle.begin_s, began_s) if gpu_idle else 0.0,
            kept_until_s=max((each.end_s for each in past.kept if each.begin_s <= now_s), default=None),
            began_s=began_s,
        )
        verdict = decide(standing, policy, notice, now_s)
        if verdict.step is Step.WITHDRAW:
            notice = None
            verdict = decide(standing, policy, None, now_s)
        if verdict.step is Step.WARN:
            assert verdict.cause is not None
            assert verdict.due_at_s is not None
            notice = Notice(verdict.cause, now_s, verdict.due_at_s)
            heapq.heappush(moments, verdict.due_at_s)
        elif verdict.step is Step.WAIT:
            assert verdict.due_at_s is not None
            # Not at this very moment again, where a threshold is missed by a rounding.
            heapq.heappush(moments, max(verdict.due_at_s, now_s + 1))
        elif verdict.step in (Step.STOP, Step.RELEASE):
            assert verdict.cause is not None
            until_s = idle.end_s if idle else past.end_s
            if until_s - now_s >= MIN_GAIN_S:
                released = verdict.step is Step.RELEASE
                found.append(Stopped(now_s, verdict.cause, idle is None, until_s - now_s, released))
            if idle is None:
                break
            began_s = before_s = until_s
            notice = None
            for moment in _of_life(policy, began_s, past.end_s):
                heapq.heappush(moments, moment)
    return found


def _within(spells: tuple[Spell, ...], now_s: float) -> Spell | None:
    return next((each for each in spells if each.begin_s <= now_s < each.end_s), None)


def _moments(past: Past, policy: Policy) -> list[float]:
    """When something may come to be held against it, or cease to be."""
    found = [past.begin_s, *_of_life(policy, past.begin_s, past.end_s)]
    for each in past.kept:
        found += [each.begin_s, each.end_s]
    after = [each.after_hours_s for each in policy.weeks if each.after_hours_s]
    limits = [UNUSED_S] if any(each.stop_at for each in policy.weeks) else []
    limits += [
        max(each, policy.notice_s) - policy.notice_s
        for each in (policy.idle_s, policy.release_s, *after)
        if each
    ]
    for each in past.idle:
        found += [each.begin_s + limit for limit in limits] + [each.end_s]
    if policy.gpu_idle_s is not None:
        for each in past.gpu_idle:
            found += [each.begin_s + policy.gpu_idle_s - policy.notice_s, each.end_s]
    for week in policy.weeks:
        found += week.borders(past.begin_s, past.end_s)
        for stop in week.stops(past.begin_s, past.end_s):
            found += [stop - policy.notice_s, stop]
    return found


def _of_life(policy: Policy, began_s: float, end_s: float) -> list[float]:
    """Ends of a life that began then, with their notices."""
    found = []
    if policy.longest_s is not None:
        end = began_s + policy.longest_s
        found += [end - min(policy.notice_s, policy.longest_s // 4), end]
    return [each for each in found if each < end_s]
