"""Writes channels. Sending is in `outbox`."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.celery import app
from portal.common import etags
from portal.common.encrypted_fields import encrypt
from portal.common.errors import InvalidInput, NotAllowed, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.htmx import public_url
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.notify.channels import policies, sending
from portal.notify.channels.codes import ChannelCode
from portal.notify.channels.kinds import SUBJECTS, TEAM_TYPES
from portal.notify.channels.models import Channel, Message, MessageState
from portal.people.accounts import policies as accounts
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.domain_events import TeamDeletion, UserDeleted
from portal.people.accounts.models import Team, User

log = logging.getLogger(__name__)
URL = "channels.channel.url"
MAX_URL = 1000
MAX_CHANNELS = 10
"""Maximum number of channels per user and per team."""
TEST = "test"


def create(*, actor: User, team: Team | None, name: str, url: str, kinds: Sequence[str]) -> Channel:
    """Create a channel for the actor's own notices, or for events of a team.

    For a team, requires an owner or operator. Another process checks the URL, which takes about 1 s. Raises
    `InvalidInput`, `NotAllowed` and `StateConflict` (too many channels).
    """
    if team is not None:
        accounts.require_manage_team(actor, team)
    channel = Channel(user=None if team is not None else actor, team=team)
    _set_fields(channel, name=name, kinds=kinds, url=url)
    with transaction.atomic():
        # Serialize concurrent requests, so that together they cannot exceed the limit.
        holder = User.objects if team is None else Team.objects
        holder.select_for_update().get(pk=actor.pk if team is None else team.pk)
        if not actor.is_active:
            raise NotAllowed(Reason(AccountCode.NO_SUCH_USER, {"username": actor.username}))
        if Channel.objects.filter(user=channel.user, team=team).count() >= MAX_CHANNELS:
            raise StateConflict(
                Reason(ChannelCode.TOO_MANY, {"limit": MAX_CHANNELS}), code=ProblemCode.TOO_MANY_CHANNELS
            )
        channel.save(force_insert=True)
        _record(actor, AuditKind.CHANNEL_CREATED, channel, f"created the channel “{channel.name}”")
    return channel


def change(
    *,
    actor: User,
    channel: Channel,
    name: str | None = None,
    url: str | None = None,
    kinds: Sequence[str] | None = None,
    enabled: bool | None = None,
    expected: frozenset[str] = etags.ANY,
) -> Channel:
    """Change a channel. None, or an empty URL, leaves a field unchanged. Enabling resets its failures.

    Raises like `create`, and `PreconditionFailed`.
    """
    policies.require_channel(actor, channel)
    target = Channel(user=channel.user, team=channel.team, url=channel.url, service=channel.service)
    _set_fields(
        target,
        name=channel.name if name is None else name,
        kinds=channel.kinds if kinds is None else kinds,
        url=url or None,
    )
    with transaction.atomic():
        row = _locked_channel(channel)
        policies.require_channel(actor, row)
        etags.require_expected(expected, row, name=row.name)
        changed = [
            field_name
            for field_name in ("name", "kinds")
            if getattr(row, field_name) != getattr(target, field_name)
        ]
        row.name, row.kinds = target.name, target.kinds
        if url:
            changed.append("url")
            row.url, row.service = target.url, target.service
        if enabled is not None and enabled != row.enabled:
            changed.append("enabled")
            row.enabled = enabled
            row.disabled_at = None if enabled else timezone.now()
        if url or (enabled and "enabled" in changed):
            row.failing_since, row.failures, row.not_before = None, 0, None
        if changed:
            row.save()
            details = {"changed": changed, "enabled": row.enabled}
            _record(actor, AuditKind.CHANNEL_CHANGED, row, f"changed the channel “{row.name}”", **details)
    return row


@transaction.atomic
def delete(*, actor: User, channel: Channel, expected: frozenset[str] = etags.ANY) -> None:
    """Delete a channel with its pending messages. Raises `NotFound`, `NotAllowed`, `PreconditionFailed`."""
    policies.require_channel(actor, channel)
    if expected:
        etags.require_expected(expected, _locked_channel(channel), name=channel.name)
    _record(actor, AuditKind.CHANNEL_DELETED, channel, f"deleted the channel “{channel.name}”")
    channel.delete()


def delete_all_of(event: UserDeleted) -> None:
    """Delete the channels of a deleted account."""
    Channel.objects.filter(user=event.user).delete()


def delete_all_of_team(event: TeamDeletion) -> None:
    """Delete the channels of a deleted team."""
    Channel.objects.filter(team=event.team).delete()


@transaction.atomic
def send_test(*, actor: User, channel: Channel) -> Message:
    """Queue a test message with a single attempt, which records the service's response.

    Raises `StateConflict` while an earlier test is pending, or if the channel is disabled.
    """
    row = _locked_channel(channel)
    policies.require_channel(actor, row)
    if not row.enabled:
        raise StateConflict(Reason(ChannelCode.ENDED), code=ProblemCode.CHANNEL_DISABLED)
    if row.messages.filter(kind=TEST, state=MessageState.PENDING).exists():
        raise StateConflict(Reason(ChannelCode.ON_ITS_WAY), code=ProblemCode.ON_ITS_WAY)
    now = timezone.now()
    message = Message.objects.create(
        channel=row,
        kind=TEST,
        title=_("Test of channel “%(name)s”") % {"name": row.name},
        body=_("The channel works. Notices of %(url)s are sent here.") % {"url": public_url()},
        due_at=now,
        created_at=now,
    )
    transaction.on_commit(hint)
    return message


def hint() -> None:
    """Wake a worker. Without Redis, the next sweep sends the messages."""
    try:
        app.send_task("control.send_to_channels", queue="control")
    except Exception as error:
        log.info("could not send hint: %s", error)


def _locked_channel(channel: Channel) -> Channel:
    rows = Channel.objects.select_for_update(of=("self",)).select_related("team", "user")
    return rows.get(pk=channel.pk)


def _set_fields(channel: Channel, *, name: str, kinds: Sequence[str], url: str | None) -> None:
    """Validate and set name, kinds and, if given, URL and service. Raises `InvalidInput`."""
    errors: dict[str, list[Reason]] = {}
    name = " ".join(strip_nul(name).split())[:80]
    if not name:
        errors["name"] = [Reason(ChannelCode.NAMELESS)]
    allowed = list(SUBJECTS) if channel.team is None else list(TEAM_TYPES)
    unknown = sorted({strip_nul(kind)[:60] for kind in kinds} - set(allowed))
    if unknown:
        errors["kinds"] = [Reason(ChannelCode.UNKNOWN_KINDS, {"kinds": unknown[:10], "known": allowed})]
    elif not kinds:
        errors["kinds"] = [Reason(ChannelCode.CHOOSE_KINDS)]
    if url is not None and len(url.strip()) > MAX_URL:
        errors["url"] = [Reason(ChannelCode.URL_NONE)]
    if url is not None and not errors:
        check = sending.inspect_url(url.strip())
        if check.ok:
            channel.url, channel.service = encrypt(url.strip(), purpose=URL), check.service[:60]
        else:
            errors["url"] = [_url_reason(check.error)]
    if errors:
        raise InvalidInput(Reason(ChannelCode.NOT_VALID), errors=errors)
    channel.name, channel.kinds = name, [kind for kind in allowed if kind in set(kinds)]


def _url_reason(error: str) -> Reason:
    match error:
        case "scheme":
            return Reason(ChannelCode.URL_SERVICE, {"known": sorted(settings.BERTH_CHANNEL_SCHEMAS)})
        case "parameter" | "refused_act":
            return Reason(ChannelCode.URL_PARAMETER)
        case "timeout" | "internal":
            return Reason(ChannelCode.NOT_CHECKED)
        case _:
            return Reason(ChannelCode.URL_NONE)


def _record(actor: User, kind: AuditKind, channel: Channel, message: str, **data: object) -> None:
    events.record(
        actor=actor,
        kind=kind,
        team=channel.team,
        message=message,
        data={"channel": str(channel.pk), "service": channel.service, **data},
    )
