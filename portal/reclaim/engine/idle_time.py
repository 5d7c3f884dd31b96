"""Splits the idle time of a workspace's GPUs by the reason why the workspace kept them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import pairwise

from portal.reclaim.engine.ladder import Policy
from portal.reclaim.engine.replay import Period, RecordedRun


class KeptReason(StrEnum):
    """Why idle GPUs stayed with a workspace. Values are in REST."""

    KEPT_BY_USER = "kept"
    """A user had kept the workspace."""
    OTHER_WORK = "other_work"
    """The GPUs were idle, but other signals were active."""
    NO_LIMIT = "no_limit"
    """No idle limit applied."""
    BELOW_LIMIT = "below_limit"
    """The idle limit was not reached, or the notice period was not over."""


def idle_seconds(past: RecordedRun, policy: Policy) -> Mapping[KeptReason, float]:
    """Return the seconds with idle GPUs in one start, by reason, under the current policy."""
    totals = dict.fromkeys(KeptReason, 0.0)
    limited = bool(policy.idle_s or policy.release_s or policy.gpu_idle_s or policy.weeks)
    for period in past.gpu_idle:
        begin_s, end_s = max(period.begin_s, past.begin_s), min(period.end_s, past.end_s)
        if end_s <= begin_s:
            continue
        borders = sorted({begin_s, end_s, *_boundaries_in((*past.idle, *past.kept), begin_s, end_s)})
        for from_s, until_s in pairwise(borders):
            reason = _reason(past, policy, (from_s + until_s) / 2, limited=limited)
            totals[reason] += until_s - from_s
    return totals


def _boundaries_in(periods: Iterable[Period], begin_s: float, end_s: float) -> Iterable[float]:
    return (at_s for period in periods for at_s in (period.begin_s, period.end_s) if begin_s < at_s < end_s)


def _reason(past: RecordedRun, policy: Policy, at_s: float, *, limited: bool) -> KeptReason:
    if _covers(past.kept, at_s):
        return KeptReason.KEPT_BY_USER
    if not _covers(past.idle, at_s) and not policy.gpu_idle_s:
        return KeptReason.OTHER_WORK
    return KeptReason.BELOW_LIMIT if limited else KeptReason.NO_LIMIT


def _covers(periods: Iterable[Period], at_s: float) -> bool:
    return any(period.begin_s <= at_s < period.end_s for period in periods)
