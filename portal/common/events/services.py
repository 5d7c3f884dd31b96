"""Writes audit log entries and notices, and sends live hints on commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from portal.common import request_context
from portal.common.actors import SystemActor, label_of
from portal.common.domain_events import emit
from portal.common.events import live
from portal.common.events.domain_events import NoticesWritten
from portal.common.events.event_types import TYPE_OF_KIND
from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event, EventTarget, Notification, TargetKind
from portal.common.texts import strip_nul

if TYPE_CHECKING:
    from uuid import UUID

    from django.contrib.auth.models import _User as User
    from django.db.models import Model


class WorkspaceRow(Protocol):
    """The columns of a workspace that an entry needs."""

    pk: UUID
    owner_id: UUID
    team_id: UUID


class Target(NamedTuple):
    """One object that an entry is about; see `EventTarget`."""

    kind: TargetKind
    key: str


# A notice identical to one within this time is a duplicate.
SAME_NOTICE = timedelta(seconds=5)


def record(
    *,
    actor: User | SystemActor,
    kind: AuditKind,
    message: str,
    reason: str = "",
    cause: Mapping[str, Any] | None = None,
    workspace: WorkspaceRow | None = None,
    team: Model | None = None,
    pool: Model | None = None,
    targets: Iterable[Target] = (),
    data: dict[str, Any] | None = None,
) -> Event:
    """Write one audit log entry. `message` follows the actor's name: “ada” + “asked for a workspace”.

    The cause is either `reason`, as text, or `cause`, a `Reason` as JSON. Pages of the devices, nodes and
    requests in `targets` show the entry.
    """
    kind = AuditKind(kind)
    event = Event.objects.create(
        **_request_columns(),
        at=timezone.now(),
        actor=None if isinstance(actor, SystemActor) else actor,
        actor_label=label_of(actor),
        kind=kind,
        workspace_id=workspace.pk if workspace is not None else None,
        team_id=team.pk if team is not None else workspace.team_id if workspace is not None else None,
        pool_id=pool.pk if pool is not None else None,
        message=message,
        reason=reason,
        cause=dict(cause or {}),
        data=data or {},
    )
    EventTarget.objects.bulk_create(
        EventTarget(event=event, kind=target.kind, key=target.key) for target in dict.fromkeys(targets)
    )
    if workspace is not None:
        transaction.on_commit(partial(live.publish, workspace.pk, workspace.owner_id, kind))
    elif kind in TYPE_OF_KIND:
        transaction.on_commit(live.publish_feed)
    return event


def record_all(
    *,
    actor: User | SystemActor,
    kind: AuditKind,
    entries: Sequence[tuple[WorkspaceRow, str]],
    reason: str = "",
    cause: Mapping[str, Any] | None = None,
    data: dict[str, Any] | None = None,
) -> None:
    """Write one entry of the same kind for each workspace, each with its own message, in a few statements."""
    now = timezone.now()
    columns = _request_columns()
    Event.objects.bulk_create(
        Event(
            **columns,
            at=now,
            actor=None if isinstance(actor, SystemActor) else actor,
            actor_label=label_of(actor),
            kind=kind,
            workspace_id=workspace.pk,
            team_id=workspace.team_id,
            message=message,
            reason=reason,
            cause=dict(cause or {}),
            data=data or {},
        )
        for workspace, message in entries
    )
    for workspace, _ in entries:
        transaction.on_commit(partial(live.publish, workspace.pk, workspace.owner_id, kind))


def _request_columns() -> dict[str, str | None]:
    """Return the columns of an entry that describe the request."""
    context = request_context.current()
    return {
        "address": context.address or None,
        "user_agent": context.user_agent,
        "request_id": context.request_id,
        "token": context.token,
    }


def notify(
    users: Iterable[User],
    kind: str,
    title: str,
    body: str = "",
    url: str = "",
    *,
    fold: timedelta | None = None,
) -> list[Notification]:
    """Write one notice for each user, except for users who have just received the same. Returns the notices.

    With `fold`, a user with an unread notice of this kind younger than `fold` gets no new one; its `repeats`
    is incremented. So a node failure that affects many workspaces causes one notice, one e-mail and one
    message. Runs in the caller's transaction. `url` is the portal path of the next action. An e-mail follows
    if mail is configured and the user has an address and wants e-mail.
    """
    recipients = {user.pk: user for user in users if user.is_active}
    if not recipients:
        return []
    now = timezone.now()
    title, body = " ".join(strip_nul(title).split())[:200], strip_nul(body)
    notified = set(
        Notification.objects.filter(
            user__in=recipients, kind=kind, title=title, url=url, read_at=None, at__gte=now - SAME_NOTICE
        ).values_list("user_id", flat=True)
    )
    if fold is not None:
        notified |= _fold_unread(recipients, kind, now - fold)
    notices = Notification.objects.bulk_create(
        Notification(
            user=user,
            at=now,
            kind=kind,
            title=title,
            body=body,
            url=url,
            mail_due_at=now if settings.BERTH_MAIL and user.email and user.mail_notices else None,
        )
        for user in recipients.values()
        if user.pk not in notified
    )
    for notice in notices:
        transaction.on_commit(partial(live.publish_to, notice.user_id, kind))
    if notices:
        emit(NoticesWritten(tuple(notices)))
    return notices


@dataclass(frozen=True, slots=True)
class Note:
    """A notice to one user."""

    user: User
    title: str
    body: str
    url: str


def notify_each(*, kind: str, notes: Sequence[Note]) -> list[Notification]:
    """Write an individual notice for each of several users, like `notify`, in a few statements."""
    now = timezone.now()
    notified = set(
        Notification.objects.filter(
            user__in={note.user.pk for note in notes}, kind=kind, read_at=None, at__gte=now - SAME_NOTICE
        ).values_list("user_id", "title", "url")
    )
    candidates = [
        Notification(
            user=note.user,
            at=now,
            kind=kind,
            title=" ".join(strip_nul(note.title).split())[:200],
            body=strip_nul(note.body),
            url=note.url,
            mail_due_at=now if settings.BERTH_MAIL and note.user.email and note.user.mail_notices else None,
        )
        for note in notes
        if note.user.is_active
    ]
    notices = Notification.objects.bulk_create(
        notice for notice in candidates if (notice.user_id, notice.title, notice.url) not in notified
    )
    for user in {notice.user_id for notice in notices}:
        transaction.on_commit(partial(live.publish_to, user, kind))
    if notices:
        emit(NoticesWritten(tuple(notices)))
    return notices


def _fold_unread(users: Iterable[UUID], kind: str, since: datetime) -> set[UUID]:
    """Increment `repeats` of each user's youngest unread notice of this kind.

    Returns the users with such a notice.
    """
    repeated = dict(
        Notification.objects.filter(user__in=users, kind=kind, read_at=None, at__gte=since)
        .order_by("pk")
        .values_list("user_id", "pk")
    )
    Notification.objects.filter(pk__in=repeated.values()).update(repeats=F("repeats") + 1)
    return set(repeated)


def refresh_pages(users: Iterable[User]) -> None:
    """Refresh the inbox on the users' open pages, on commit."""
    ids = {user.pk for user in users}
    if ids:
        transaction.on_commit(partial(live.publish_to_all, ids, "inbox"))


def mark_read(*, actor: User, notification_id: int | None = None) -> int:
    """Mark one of the actor's notices as read, or all. Returns the number of notices marked."""
    unread = Notification.objects.filter(user=actor, read_at=None)
    if notification_id is not None:
        unread = unread.filter(pk=notification_id)
    return unread.update(read_at=timezone.now())
