"""Queries for announcements, and the banners above every page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import CharField, F, Q, QuerySet, Value
from django.utils import timezone

from portal.announcements.codes import AnnouncementCode
from portal.announcements.models import Announcement, AnnouncementKind, Dismissal
from portal.catalog.selectors import OfferedPools, pools_offered_to
from portal.common.errors import NotFound
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.models import Maintenance
from portal.people.accounts.models import User

MAINTENANCE = "maintenance"
"""Kind of a banner for maintenance, beside the values of `AnnouncementKind`."""
AHEAD = timedelta(days=7)
"""Planned maintenance is announced this long before it begins."""
MAX_BANNERS = 3
_ORDER = (MAINTENANCE, AnnouncementKind.WARNING.value, AnnouncementKind.INFORMATION.value)
_COLUMNS = (
    "pk",
    "shown_kind",
    "pool_id",
    "pool__name",
    "pool__slug",
    "pool__simulated",
    "begins_at",
    "ends_at",
)


@dataclass(frozen=True, slots=True)
class Banner:
    """A note above every page: an announcement, or maintenance (`kind`). `pool` is empty for the whole site.

    `begun`: it has begun. Only maintenance is shown before.
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
        """Whether users can hide it."""
        return self.kind == AnnouncementKind.INFORMATION


def not_ended(now: datetime) -> QuerySet[Announcement]:
    """Return current and scheduled announcements."""
    return Announcement.objects.filter(Q(ends_at=None) | Q(ends_at__gt=now))


def announcements_for(actor: User) -> QuerySet[Announcement]:
    """Return the announcements visible to the actor, newest first.

    Users who see all read every one. Others read current ones, for everybody or for a pool that their teams
    can use.
    """
    rows = Announcement.objects.select_related("pool", "created_by").order_by("-begins_at", "pk")
    if actor.sees_all:
        return rows
    now = timezone.now()
    current = rows.filter(begins_at__lte=now).filter(Q(ends_at=None) | Q(ends_at__gt=now))
    offered = pools_offered_to(actor)
    pools = Q(pool=None) | Q(pool__in=offered.keys)
    return current.filter(pools | Q(pool__simulated=False) if offered.any_real else pools)


def announcement_by_id(actor: User, announcement_id: UUID) -> Announcement:
    """Return an announcement visible to the actor. Raises `NotFound`."""
    row = announcements_for(actor).filter(pk=announcement_id).first()
    if row is None:
        raise NotFound(Reason(AnnouncementCode.NO_SUCH_ANNOUNCEMENT))
    return row


def banners_for(actor: User) -> list[Banner]:
    """Return what to show above every page: maintenance first, then warnings, then the newest.

    One query; one more if any of them is for a pool and the actor does not see all pools.
    """
    now = timezone.now()
    dismissed = Dismissal.objects.filter(user=actor).values("announcement")
    existing = Q(pool=None) | Q(pool__deleted_at=None)
    announced = not_ended(now).filter(existing, begins_at__lte=now).exclude(pk__in=dismissed)
    planned = Maintenance.objects.filter(existing, ends_at__gt=now, begins_at__lte=now + AHEAD)
    rows: Any = (
        announced.order_by()
        .annotate(shown_kind=F("kind"))
        .values_list(*_COLUMNS, "text")
        .union(
            planned.order_by()
            .annotate(shown_kind=Value(MAINTENANCE, output_field=CharField()))
            .values_list(*_COLUMNS, "reason"),
            all=True,
        )
    )
    offered: OfferedPools | None = None
    banners = []
    for key, kind, pool, name, slug, simulated, begins_at, ends_at, text in rows:
        if pool is not None and not actor.sees_all:
            offered = offered or pools_offered_to(actor)
            if not offered.includes(pool, simulated=simulated):
                continue
        begun = begins_at <= now
        banners.append(Banner(key, kind, text, name or "", slug or "", begins_at, ends_at, begun))
    banners.sort(key=lambda banner: banner.begins_at, reverse=True)
    banners.sort(key=lambda banner: _ORDER.index(banner.kind))
    return banners
