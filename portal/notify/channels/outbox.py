"""Outbox of channels. Messages are sent in the order of `due_at`; a failed one becomes due again later.

Messages of a user's channels are written with the notice. Those of a team's channels are created from the
audit log; a cursor marks the last entry that was read. A message is claimed by postponing its due time before
sending, so delivery is at least once even if a worker crashes. Many messages for one channel are combined.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Q, QuerySet
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.common.actors import SYSTEM
from portal.common.encrypted_fields import Unreadable, decrypt
from portal.common.events import feed
from portal.common.events import services as events
from portal.common.events.domain_events import NoticesWritten
from portal.common.events.event_types import TYPE_OF_KIND
from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event
from portal.common.htmx import public_url
from portal.notify.channels import sending
from portal.notify.channels.kinds import subject_of
from portal.notify.channels.models import Channel, Message, MessageState, TeamFeed
from portal.notify.channels.sending import Job, SendOutcome
from portal.notify.channels.services import TEST, URL
from portal.people.accounts import selectors as accounts

log = logging.getLogger(__name__)
BATCH = 200
CHANNELS_IN_A_ROUND = 40
SUSPECTS_IN_A_ROUND = 4
MESSAGES_OF_ONE = 50
SEPARATE = 3
"""Maximum number of messages for one channel that are sent individually."""
LISTED = 15
CLAIM = timedelta(seconds=90)
WAITS_S = (30, 120, 600, 3600, 14_400)
MAX_ATTEMPTS = len(WAITS_S) + 1
BACKOFF_STEPS_S = (10, 30, 60, 300)
MAX_PENDING = 500
MAX_FAILURES = 10
FAILING_FOR = timedelta(hours=1)
"""A channel is disabled after `MAX_FAILURES` consecutive failures over at least this time."""
UNREADABLE = "url_unreadable"


def notices_written(event: NoticesWritten) -> None:
    """Write a message for each channel that receives these notices, in the notices' transaction."""
    subject = subject_of(event.notices[0].kind)
    users = [notice.user_id for notice in event.notices]
    by_user: dict[object, list[Channel]] = defaultdict(list)
    for channel in _channels_with_room(Channel.objects.filter(user__in=users)):
        if subject in channel.kinds:
            by_user[channel.user_id].append(channel)
    Message.objects.bulk_create(
        Message(
            channel=channel,
            kind=notice.kind,
            title=notice.title,
            body=notice.body,
            url=notice.url,
            due_at=notice.at,
            created_at=notice.at,
        )
        for notice in event.notices
        for channel in by_user[notice.user_id]
    )


@transaction.atomic
def read_log() -> int:
    """Write messages about events of teams with channels. Returns the number of audit entries read."""
    row = TeamFeed.objects.select_for_update(skip_locked=True).filter(pk=1).first()
    if row is None:
        if not TeamFeed.objects.filter(pk=1).exists():
            # Start at the end of the log: older entries are not reported.
            row = TeamFeed()
            feed.skip_to_end(row)
            TeamFeed.objects.bulk_create([row], ignore_conflicts=True)
        return 0
    entries = feed.entries_after(row, limit=BATCH)
    typed = [entry for entry in entries if entry.kind in TYPE_OF_KIND and entry.team_id]
    if typed:
        teams = {entry.team_id for entry in typed}
        channels = list(_channels_with_room(Channel.objects.filter(team__in=teams)))
        Message.objects.bulk_create(
            _message_of_entry(entry, channel)
            for entry in typed
            for channel in channels
            if channel.team_id == entry.team_id and TYPE_OF_KIND[entry.kind].name in channel.kinds
        )
    if entries:
        row.last_id = entries[-1].pk
    row.save(update_fields=["last_id", "settled_id", "horizon_id", "horizon_at"])
    return len(entries)


def _channels_with_room(channels: QuerySet[Channel]) -> QuerySet[Channel]:
    """Return enabled channels with fewer than `MAX_PENDING` pending messages."""
    waiting = Count("messages", filter=Q(messages__due_at__isnull=False))
    return channels.filter(enabled=True).annotate(waiting=waiting).filter(waiting__lt=MAX_PENDING)


def _message_of_entry(entry: Event, channel: Channel) -> Message:
    kind = TYPE_OF_KIND[entry.kind]
    subject = entry.workspace.name if entry.workspace else str(channel.team)
    url = reverse("workspaces:detail", args=[entry.workspace_id]) if entry.workspace_id else ""
    now = timezone.now()
    return Message(
        channel=channel,
        kind=kind.name,
        title=f"{subject}: {kind.summary}"[:200],
        body=f"{entry.actor_label} {entry.sentence}",
        url=url or (reverse("home:team", args=[entry.team.slug]) if entry.team else ""),
        due_at=now,
        created_at=now,
    )


def run() -> int:
    """Send due messages. Returns the number sent; 0 while another worker holds the lease."""
    now = timezone.now()
    until = now + timedelta(seconds=sending.LIMIT_S + 30)
    free = Q(busy_until=None) | Q(busy_until__lt=now)
    if not TeamFeed.objects.filter(free, pk=1).update(busy_until=until):
        return 0
    try:
        return _round(now)
    finally:
        TeamFeed.objects.filter(pk=1, busy_until=until).update(busy_until=None)


def _round(now: datetime) -> int:
    batches: dict[int, tuple[Channel, list[Message]]] = {}
    jobs: list[Job] = []
    for channel in _due_channels(now):
        messages = _claim(channel, now)
        if not messages:
            continue
        try:
            url = decrypt(channel.url, purpose=URL)
        except Unreadable:
            _finish(channel, messages, SendOutcome(ok=False, error=UNREADABLE))
            continue
        for part in _parts(messages):
            jobs.append(Job(len(jobs), url, *_message_text(part)))
            batches[jobs[-1].id] = (channel, part)
    if not jobs:
        return 0
    outcomes = sending.send(jobs)
    for number, (channel, part) in batches.items():
        _finish(channel, part, outcomes[number])
    return sum(len(part) for _channel, part in batches.values())


def _due_channels(now: datetime) -> list[Channel]:
    """Return channels with due messages, longest waiting first.

    Limits the number of recently failing channels.
    """
    due = (
        Channel.objects.filter(Q(not_before=None) | Q(not_before__lte=now), enabled=True)
        .filter(messages__due_at__lte=now)
        .select_related("team", "user")
        .distinct()
        .order_by("not_before", "pk")
    )
    return [
        *due.filter(failures=0)[:CHANNELS_IN_A_ROUND],
        *due.filter(failures__gt=0)[:SUSPECTS_IN_A_ROUND],
    ]


def _claim(channel: Channel, now: datetime) -> list[Message]:
    """Claim and return the channel's due messages. Messages to deactivated users are dropped."""
    rows = list(channel.messages.filter(due_at__lte=now).order_by("pk")[:MESSAGES_OF_ONE])
    if channel.user is not None and not channel.user.is_active:
        _finish_all([row.pk for row in rows], MessageState.FAILED)
        return []
    claimed = []
    for row in rows:
        message_rows = Message.objects.filter(pk=row.pk, due_at=row.due_at, attempts=row.attempts)
        if row.attempts >= _max_attempts(row):
            # The worker crashed during the last attempt.
            message_rows.update(state=MessageState.FAILED, due_at=None, ended_at=now)
            continue
        row.attempts += 1
        if message_rows.update(due_at=now + CLAIM, attempts=row.attempts):
            claimed.append(row)
    return claimed


def _max_attempts(message: Message) -> int:
    return 1 if message.kind == TEST else MAX_ATTEMPTS


def _parts(messages: Sequence[Message]) -> list[list[Message]]:
    """Split messages into parts to send: one each, or all in one if there are many. Tests stay separate."""
    tests = [[message] for message in messages if message.kind == TEST]
    others = [message for message in messages if message.kind != TEST]
    if len(others) > SEPARATE:
        return [*tests, others]
    return [*tests, *([other] for other in others)]


def _message_text(messages: Sequence[Message]) -> tuple[str, str]:
    """Return one title and body for these messages."""
    if len(messages) == 1:
        (only,) = messages
        parts = [only.body or only.title, f"{public_url()}{only.url}" if only.url else ""]
        return f"[Berth] {only.title}", "\n".join(part for part in parts if part)
    count = len(messages)
    lines = [f"- {message.title}" for message in messages[:LISTED]]
    if count > LISTED:
        left = count - LISTED
        lines.append(ngettext("and %(count)d more", "and %(count)d more", left) % {"count": left})
    title = ngettext("%(count)d notice", "%(count)d notices", count) % {"count": count}
    return f"[Berth] {title}", "\n".join([*lines, public_url()])


@transaction.atomic
def _finish(channel: Channel, messages: Sequence[Message], outcome: SendOutcome) -> None:
    """Record the outcome for the messages and for their channel."""
    now = timezone.now()
    row = (
        Channel.objects.select_for_update(of=("self",))
        .select_related("team", "user")
        .filter(pk=channel.pk)
        .first()
    )
    if row is None:
        # The channel was deleted meanwhile, together with its messages.
        return
    result = {"status_code": outcome.status, "error": outcome.error, "answer": outcome.answer}
    for message in messages:
        message_rows = Message.objects.filter(pk=message.pk, attempts=message.attempts)
        if outcome.ok:
            message_rows.update(state=MessageState.SENT, due_at=None, ended_at=now, **result)
        elif message.attempts >= _max_attempts(message):
            message_rows.update(state=MessageState.FAILED, due_at=None, ended_at=now, **result)
        else:
            message_rows.update(due_at=now + timedelta(seconds=WAITS_S[message.attempts - 1]), **result)
    if outcome.ok:
        row.failing_since, row.failures, row.not_before = None, 0, None
    else:
        row.failing_since = row.failing_since or now
        row.failures += 1
        row.not_before = now + timedelta(seconds=BACKOFF_STEPS_S[min(row.failures, len(BACKOFF_STEPS_S)) - 1])
    row.save(update_fields=["failing_since", "failures", "not_before"])
    lasting = row.failing_since is not None and row.failing_since <= now - FAILING_FOR
    if not outcome.ok and row.enabled and lasting and row.failures >= MAX_FAILURES:
        _disable(row, now)


def _disable(channel: Channel, now: datetime) -> None:
    channel.enabled, channel.disabled_at = False, now
    channel.save(update_fields=["enabled", "disabled_at"])
    events.record(
        actor=SYSTEM,
        kind=AuditKind.CHANNEL_DISABLED,
        team=channel.team,
        message=f"disabled the channel “{channel.name}”",
        data={"channel": str(channel.pk), "service": channel.service},
    )
    events.notify(
        accounts.owners_of(channel.team) if channel.team else [channel.user] if channel.user else [],
        "channel.disabled",
        _("Channel “%(name)s” was disabled") % {"name": channel.name},
        _("No message reached %(service)s. Enable the channel, then send a test message.")
        % {"service": channel.service},
        reverse("channels:detail", args=[channel.pk]),
    )


def _finish_all(keys: Sequence[int], state: MessageState) -> None:
    Message.objects.filter(pk__in=keys).update(state=state, due_at=None, ended_at=timezone.now())


def prune() -> int:
    """Delete messages older than `BERTH_WEBHOOK_KEEP_DAYS`. Returns the number deleted."""
    before = timezone.now() - timedelta(days=settings.BERTH_WEBHOOK_KEEP_DAYS)
    count, _rows = Message.objects.filter(created_at__lt=before).delete()
    return count
