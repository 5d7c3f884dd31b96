"""Queries for channels visible to the actor."""

from __future__ import annotations

from uuid import UUID

from django.db.models import Q, QuerySet

from portal.common.errors import NotFound
from portal.common.reasons.reason import Reason
from portal.notify.channels import policies
from portal.notify.channels.codes import ChannelCode
from portal.notify.channels.models import Channel, Message
from portal.people.accounts import selectors as teams
from portal.people.accounts.models import Team, User


def channels_of(actor: User, team: Team | None) -> QuerySet[Channel]:
    """Return the actor's own channels, or those of a team. Raises `NotAllowed`."""
    if team is None:
        return Channel.objects.filter(user=actor).select_related("team").order_by("created_at", "pk")
    policies.require_see_team(actor, team)
    return Channel.objects.filter(team=team).select_related("team").order_by("created_at", "pk")


def channel_by_id(actor: User, channel_id: UUID) -> Channel:
    """Return a channel visible to the actor.

    Raises `NotFound`, and `NotAllowed` for team members who cannot manage the channel.
    """
    of_team = Q(team__isnull=False) if actor.sees_all else Q(team__memberships__user=actor)
    channel = (
        Channel.objects.select_related("team", "user").filter(Q(user=actor) | of_team, pk=channel_id).first()
    )
    if channel is None:
        raise NotFound(Reason(ChannelCode.NO_SUCH_CHANNEL))
    if not policies.has_read_only_access(actor, channel.team):
        policies.require_channel(actor, channel)
    return channel


def managed_channel(actor: User, channel_id: UUID) -> Channel:
    """Return a channel that the actor may manage. Raises `NotFound` and `NotAllowed`."""
    channel = channel_by_id(actor, channel_id)
    policies.require_channel(actor, channel)
    return channel


def team_of(actor: User, slug: str) -> Team:
    """Return a team whose channels the actor may see. Raises `NotFound` and `NotAllowed`."""
    team = teams.team_by_slug(actor, slug)
    policies.require_see_team(actor, team)
    return team


def messages_of(channel: Channel) -> QuerySet[Message]:
    """Return the messages of a channel, newest first."""
    return channel.messages.order_by("-pk")
