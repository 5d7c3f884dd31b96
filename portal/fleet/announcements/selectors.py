"""Queries for announcements, and the banners above every page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone

from portal.common.errors import NotFound
from portal.common.reasons.reason import Reason
from portal.fleet.announcements.codes import AnnouncementCode
from portal.fleet.announcements.models import Announcement, AnnouncementKind, Dismissal
from portal.fleet.inventory.models import Maintenance, Pool
from portal.fleet.inventory.offered_pools import OfferedPools, pool_offers
from portal.people.accounts.models import User

MAINTENANCE = "maintenance"
"""Kind of maintenance banners, in addition to the values of `AnnouncementKind`."""
AHEAD = timedelta(days=7)
"""Time before planned maintenance at which its banner appears."""
MAX_BANNERS = 3
_ORDER = (MAINTENANCE, AnnouncementKind.WARNING.value, AnnouncementKind.INFORMATION.value)


@dataclass(frozen=True, slots=True)
class Banner:
    """A note above every page: an announcement, or maintenance (`kind`). `pool` is empty for the whole site.

    `begun` is False for planned maintenance.
    """

    key: UUID
    kind: str
    text: str
    pool: str
    pool_slug: str
    begins_at: datetime
    ends_at: datetime | None
    begun: bool

    @property
    def dismissible(self) -> bool:
        """Whether users can hide the banner."""
        return self.kind == AnnouncementKind.INFORMATION


def not_ended(now: datetime) -> QuerySet[Announcement]:
    """Return current and scheduled announcements."""
    return Announcement.objects.filter(Q(ends_at=None) | Q(ends_at__gt=now))


def announcements_for(actor: User) -> QuerySet[Announcement]:
    """Return the announcements visible to the actor, newest first.

    Users who may see everything get all announcements. Other users get current announcements for all users or
    for pools that their teams can use.
    """
    rows = Announcement.objects.select_related("pool", "created_by").order_by("-begins_at", "pk")
    if actor.sees_all:
        return rows
    now = timezone.now()
    current = rows.filter(begins_at__lte=now).filter(Q(ends_at=None) | Q(ends_at__gt=now))
    offered = pool_offers().to_user(actor)
    pools = Q(pool=None) | Q(pool__in=offered.keys)
    return current.filter(pools | Q(pool__simulated=False) if offered.any_real else pools)


def announcement_by_id(actor: User, announcement_id: UUID) -> Announcement:
    """Return an announcement visible to the actor. Raises `NotFound`."""
    row = announcements_for(actor).filter(pk=announcement_id).first()
    if row is None:
        raise NotFound(Reason(AnnouncementCode.NO_SUCH_ANNOUNCEMENT))
    return row


def banners_for(actor: User) -> list[Banner]:
    """Return the banners above every page: maintenance first, then warnings, then the newest.

    Runs two small queries if there is nothing to show, which is nearly always; up to four more otherwise.
    """
    now = timezone.now()
    windows = list(Maintenance.objects.filter(ends_at__gt=now, begins_at__lte=now + AHEAD))
    announced = list(not_ended(now).filter(begins_at__lte=now))
    if not windows and not announced:
        return []
    dismissed = set(Dismissal.objects.filter(user=actor).values_list("announcement", flat=True))
    rows: list[Announcement | Maintenance] = [
        *windows,
        *(row for row in announced if row.pk not in dismissed),
    ]
    pools = Pool.objects.filter(deleted_at=None).in_bulk({row.pool_id for row in rows if row.pool_id})
    offered: OfferedPools | None = None
    banners = []
    for row in rows:
        pool = pools.get(row.pool_id) if row.pool_id else None
        if row.pool_id and pool is None:
            continue
        if pool is not None and not actor.sees_all:
            offered = offered or pool_offers().to_user(actor)
            if not offered.includes(pool.pk, simulated=pool.simulated):
                continue
        banners.append(_banner(row, pool, now))
    banners.sort(key=lambda banner: banner.begins_at, reverse=True)
    banners.sort(key=lambda banner: _ORDER.index(banner.kind))
    return banners


def _banner(row: Announcement | Maintenance, pool: Pool | None, now: datetime) -> Banner:
    kind, text = (MAINTENANCE, row.reason) if isinstance(row, Maintenance) else (row.kind, row.text)
    return Banner(
        key=row.pk,
        kind=kind,
        text=text,
        pool=pool.name if pool is not None else "",
        pool_slug=pool.slug if pool is not None else "",
        begins_at=row.begins_at,
        ends_at=row.ends_at,
        begun=row.begins_at <= now,
    )
