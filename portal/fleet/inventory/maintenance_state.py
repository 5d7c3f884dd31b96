"""Computes which pools are in maintenance from the times of `Maintenance` rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Exists, OuterRef, Q

from portal.fleet.inventory.models import SITE, Maintenance


@dataclass(frozen=True, slots=True)
class ActiveMaintenance:
    """Maintenance in progress, of a pool or of the whole `site`. `until` is its planned end."""

    reason: str
    until: datetime
    site: bool


@dataclass(frozen=True, slots=True)
class MaintenancePlan:
    """Current and planned maintenance of the site and of pools, as of `now`."""

    windows: Sequence[Maintenance]
    now: datetime

    def of(self, pool: UUID) -> ActiveMaintenance | None:
        """Return the maintenance that closes the pool now, or None.

        Site maintenance takes precedence. If one maintenance follows another without a gap, `until` is the
        end of the last one.
        """
        own = [window for window in self.windows if window.key in (SITE, pool)]
        active = [window for window in own if window.begins_at <= self.now]
        if not active:
            return None
        shown = min(active, key=lambda window: window.key != SITE)
        until = max(window.ends_at for window in active)
        for window in sorted(own, key=lambda window: window.begins_at):
            if window.begins_at <= until:
                until = max(until, window.ends_at)
        return ActiveMaintenance(shown.reason, until, shown.key == SITE)

    @property
    def changes_at(self) -> datetime | None:
        """The next time at which a maintenance begins or ends, or None."""
        times = (time for window in self.windows for time in (window.begins_at, window.ends_at))
        return min((time for time in times if time > self.now), default=None)


def plan(now: datetime) -> MaintenancePlan:
    """Return all current and planned maintenance. One query."""
    return MaintenancePlan(list(Maintenance.objects.filter(ends_at__gt=now)), now)


def is_active(now: datetime, pool: str = "pool") -> Exists:
    """Return the condition that the pool at this lookup of the outer query is in maintenance."""
    active = Maintenance.objects.filter(begins_at__lte=now, ends_at__gt=now)
    return Exists(active.filter(Q(pool=None) | Q(pool=OuterRef(pool))))
