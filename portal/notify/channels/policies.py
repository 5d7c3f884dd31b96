"""Permissions on channels."""

from __future__ import annotations

from portal.common.actors import SystemActor
from portal.common.errors import NotFound
from portal.common.reasons.reason import Reason
from portal.notify.channels.codes import ChannelCode
from portal.notify.channels.models import Channel
from portal.people.accounts import policies as accounts
from portal.people.accounts.models import Team, User


def require_see_team(actor: User, team: Team) -> None:
    """Require permission to see a team's channels: as its manager or an auditor. Raises `NotAllowed`."""
    if not actor.sees_all:
        accounts.require_manage_team(actor, team)


def has_read_only_access(actor: User, team: Team | None) -> bool:
    """Return whether the actor may see but not manage the channel. True for auditors on team channels."""
    return team is not None and actor.is_auditor


def require_channel(actor: User | SystemActor, channel: Channel) -> None:
    """Require permission to manage the channel.

    Raises `NotAllowed` for a team's channel unless the actor is an owner or operator, and `NotFound` for
    another user's channel.
    """
    if channel.team is not None:
        accounts.require_manage_team(actor, channel.team)
    elif not isinstance(actor, SystemActor) and channel.user_id != actor.pk:
        raise NotFound(Reason(ChannelCode.NO_SUCH_CHANNEL))
