"""Writes announcements and dismissals."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from portal.common import etags
from portal.common.actors import SystemActor
from portal.common.errors import InvalidInput, NotFound, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.fleet.announcements import selectors
from portal.fleet.announcements.codes import AnnouncementCode
from portal.fleet.announcements.models import (
    MAX_TEXT,
    Announcement,
    AnnouncementKind,
    AnnouncementState,
    Dismissal,
)
from portal.fleet.inventory.models import Pool
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_operator

MAX_ANNOUNCEMENTS = 50
"""Maximum number of current and scheduled announcements."""
FIELDS = ("kind", "text", "pool", "begins_at", "ends_at")


@transaction.atomic
def create(
    *,
    actor: User | SystemActor,
    text: str,
    kind: str = AnnouncementKind.INFORMATION,
    pool: Pool | None = None,
    begins_at: datetime | None = None,
    ends_at: datetime | None = None,
) -> Announcement:
    """Create an announcement for all users, or for the users of a pool. Default begin: now.

    Raises `NotAllowed`, `InvalidInput` and `StateConflict` (too many).
    """
    require_operator(actor)
    now = timezone.now()
    row = Announcement(
        kind=kind,
        text=text,
        pool=pool,
        begins_at=begins_at or now,
        ends_at=ends_at,
        created_by=None if isinstance(actor, SystemActor) else actor,
        updated_at=now,
    )
    _validate(row, now)
    _lock_bound(now)
    if selectors.not_ended(now).count() >= MAX_ANNOUNCEMENTS:
        raise StateConflict(Reason(AnnouncementCode.TOO_MANY, {"limit": MAX_ANNOUNCEMENTS}))
    row.save(force_insert=True)
    _record(actor, AuditKind.ANNOUNCEMENT_CREATED, row, "announced")
    return row


def _lock_bound(now: datetime) -> None:
    """Lock current announcements, so that concurrent requests cannot exceed the limit together."""
    list(selectors.not_ended(now).order_by("pk").select_for_update().values_list("pk", flat=True))


@transaction.atomic
def change(
    *,
    actor: User | SystemActor,
    announcement: Announcement,
    fields: dict[str, Any],
    expected: frozenset[str] = etags.ANY,
) -> Announcement:
    """Change the `fields` (`FIELDS`).

    A new text or kind is shown again to users who dismissed the old one.

    Raises `NotAllowed`, `NotFound`, `InvalidInput`, `PreconditionFailed`.
    """
    require_operator(actor)
    row = _locked(announcement)
    etags.require_expected(expected, row, name=row.text)
    now = timezone.now()
    if "begins_at" in fields and fields["begins_at"] is None:
        fields = {**fields, "begins_at": row.begins_at}
    changed = [name for name, value in fields.items() if getattr(row, name) != value]
    for name in changed:
        setattr(row, name, fields[name])
    if not changed:
        return row
    _validate(row, now)
    row.updated_at = now
    row.save()
    if {"text", "kind"} & set(changed):
        row.dismissals.all().delete()
    _record(actor, AuditKind.ANNOUNCEMENT_CHANGED, row, "changed the announcement", changed=changed)
    return row


@transaction.atomic
def end(
    *, actor: User | SystemActor, announcement: Announcement, expected: frozenset[str] = etags.ANY
) -> Announcement:
    """End a current or scheduled announcement now. Idempotent.

    Raises `NotAllowed`, `NotFound`, `PreconditionFailed`.
    """
    require_operator(actor)
    row = _locked(announcement)
    etags.require_expected(expected, row, name=row.text)
    if row.state is AnnouncementState.ENDED:
        return row
    row.ends_at = row.updated_at = timezone.now()
    row.begins_at = min(row.begins_at, row.ends_at)
    row.save(update_fields=["begins_at", "ends_at", "updated_at"])
    _record(actor, AuditKind.ANNOUNCEMENT_ENDED, row, "ended the announcement")
    return row


@transaction.atomic
def delete(
    *, actor: User | SystemActor, announcement: Announcement, expected: frozenset[str] = etags.ANY
) -> None:
    """Delete an announcement. Raises `NotAllowed`, `NotFound`, `PreconditionFailed`."""
    require_operator(actor)
    row = _locked(announcement)
    etags.require_expected(expected, row, name=row.text)
    _record(actor, AuditKind.ANNOUNCEMENT_DELETED, row, "deleted the announcement")
    row.delete()


def dismiss(*, actor: User, announcement: Announcement) -> None:
    """Hide an informational announcement from the actor. Idempotent. Raises `StateConflict` for a warning."""
    if announcement.kind != AnnouncementKind.INFORMATION:
        raise StateConflict(Reason(AnnouncementCode.NOT_DISMISSIBLE))
    Dismissal.objects.get_or_create(announcement=announcement, user=actor)


def _locked(announcement: Announcement) -> Announcement:
    rows = Announcement.objects.select_for_update(of=("self",)).select_related("pool")
    row = rows.filter(pk=announcement.pk).first()
    if row is None:
        raise NotFound(Reason(AnnouncementCode.NO_SUCH_ANNOUNCEMENT))
    return row


def _validate(row: Announcement, now: datetime) -> None:
    """Clean the text. Raises `InvalidInput`."""
    errors: dict[str, list[Reason]] = {}
    row.text = " ".join(strip_nul(row.text).split())
    if not row.text:
        errors["text"] = [Reason(AnnouncementCode.TEXT_MISSING)]
    elif len(row.text) > MAX_TEXT:
        errors["text"] = [Reason(AnnouncementCode.TEXT_TOO_LONG, {"max": MAX_TEXT})]
    if row.ends_at is not None and row.ends_at <= max(row.begins_at, now):
        errors["ends_at"] = [Reason(AnnouncementCode.END_PAST)]
    if errors:
        raise InvalidInput(Reason(AnnouncementCode.NOT_VALID), errors=errors)


def _record(actor: User | SystemActor, kind: AuditKind, row: Announcement, verb: str, **data: object) -> None:
    events.record(
        actor=actor,
        kind=kind,
        pool=row.pool,
        message=f"{verb} “{row.text}”",
        data={"announcement": str(row.pk), "kind": str(row.kind), **data},
    )
