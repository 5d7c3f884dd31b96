"""The latest audit entries about a device or a node."""

from __future__ import annotations

from portal.common.events.models import Event, TargetKind
from portal.fleet.inventory.models import Pool

MAX_SHOWN = 12


def newest_events(pool: Pool, kind: TargetKind, key: str) -> tuple[Event, ...]:
    """Return a pool's latest log entries about a device or node (see `EventTarget`), newest first."""
    events = Event.objects.filter(pool=pool, targets__kind=kind, targets__key=key)
    return tuple(events.order_by("-pk")[:MAX_SHOWN])
