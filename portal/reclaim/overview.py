"""Query columns for the idle time and end of workspaces, which lists show and sort by.

The values are those of `presenters.life_of`, which also explains them; idle time is as of the last
observation, up to a minute old.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db.models import Case, DateTimeField, F, IntegerField, Q, Value, When
from django.db.models.functions import Cast, Coalesce

from portal.reclaim import observing
from portal.reclaim.engine.ladder import RELEASES, Cause
from portal.workspaces.lifecycle import State

STOPS = [cause.value for cause in Cause if cause not in RELEASES]
"""Causes of notices after which a workspace stops."""
UNKNOWN_IDLE_S = -1
"""Idle time of a workspace that is not running, or whose activity is unknown."""


def idle_s(now: datetime) -> Case:
    """Return the observed idle time in whole seconds, or `UNKNOWN_IDLE_S`."""
    fresh = Q(
        reclaim_activity__observed_at__gte=now - timedelta(seconds=observing.FRESH_S),
        reclaim_activity__observed_at__lte=now + timedelta(seconds=observing.INTERVAL_S),
    )
    known = fresh & Q(state=State.RUNNING, reclaim_activity__generation=F("generation"))
    return Case(
        When(
            known & ~Q(reclaim_activity__signals="[]"), then=Cast("reclaim_activity__idle_s", IntegerField())
        ),
        default=Value(UNKNOWN_IDLE_S),
        output_field=IntegerField(),
    )


def stops_at() -> Case:
    """Return when a workspace stops automatically, or null.

    A preemption takes precedence, then a notice of the reclaim policies, then the end of the lifetime.
    """
    noticed = Q(
        state=State.RUNNING,
        reclaim_notice__generation=F("generation"),
        reclaim_notice__ends_version=F("ends_version"),
        reclaim_notice__cause__in=STOPS,
    )
    preempted = Q(state__in=[State.PROVISIONING, State.RUNNING], preemption__preempt_at__isnull=False)
    return Case(
        When(preempted, then=F("preemption__preempt_at")),
        When(noticed, then=F("reclaim_notice__due_at")),
        When(state=State.RUNNING, then=F("ends_at")),
        default=Value(None),
        output_field=DateTimeField(),
    )


def stops_at_or(latest: datetime) -> Any:
    """Return `stops_at`, or `latest` for workspaces that do not stop."""
    return Coalesce(stops_at(), Value(latest, output_field=DateTimeField()))
