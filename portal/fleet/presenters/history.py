"""The newest entries of the audit log about a device or a node."""

from __future__ import annotations

from django.db.models import Q

from portal.events.models import Event
from portal.inventory.models import Pool

MAX_READ, MAX_SHOWN = 100_000, 12
"""Among so many of the newest entries of the whole log is searched; so many are shown."""


def newest_events(pool: Pool, about: Q) -> tuple[Event, ...]:
    """The newest entries of a pool's log that are about something, the newest first."""
    newest = Event.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    found = Event.objects.filter(about, pool=pool, pk__gt=newest - MAX_READ).order_by("-pk")
    return tuple(found[:MAX_SHOWN])
