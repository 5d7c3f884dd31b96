"""Queries for a user's notices and for the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db.models import QuerySet

from portal.common.errors import NotAllowed, NotFound
from portal.common.events.codes import EventCode
from portal.common.events.models import Event, Notification
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason

if TYPE_CHECKING:
    from django.contrib.auth.models import _User as User


def notifications_of(actor: User) -> QuerySet[Notification]:
    """Return the actor's own notices, newest first."""
    return Notification.objects.filter(user=actor).order_by("-id")


def unread_of(user: User, kind: str) -> QuerySet[Notification]:
    """Return the user's unread notices of a kind."""
    return Notification.objects.filter(user=user, kind=kind, read_at=None)


def unread_count(actor: User) -> int:
    """Return the number of the actor's unread notices."""
    return Notification.objects.filter(user=actor, read_at=None).count()


def notification_by_id(actor: User, notification_id: int) -> Notification:
    """Return one of the actor's notices. Raises `NotFound`."""
    notification = notifications_of(actor).filter(pk=notification_id).first()
    if notification is None:
        raise NotFound(Reason(EventCode.NO_SUCH_NOTICE))
    return notification


def entries_for(actor: User) -> QuerySet[Event]:
    """Return the audit log, newest first.

    Raises `NotAllowed` unless the actor is an administrator or auditor.
    """
    if not actor.sees_people:
        raise NotAllowed(Reason(CommonCode.ONLY_ADMINISTRATORS))
    return Event.objects.select_related("team", "workspace").order_by("-id")
