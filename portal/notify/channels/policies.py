"""Who may see and manage which channels."""

from __future__ import annotations

from portal.common.actors import SystemActor
from portal.common.errors import NotFound
from portal.common.reasons.reason import Reason
from portal.notify.channels.codes import ChannelCode
from portal.notify.channels.models import Channel
from portal.people.accounts import policies as accounts
from portal.people.accounts.models import Team, User


def require_see_team(actor: User, team: Team) -> None:
    """See a team's channels and what was sent there: who manages them, and auditors. Raises `NotAllowed`."""
    if not actor.sees_all:
        accounts.require_manage_team(actor, team)


def only_sees(actor: User, team: Team | None) -> bool:
    """Of those who may see a channel, who may not manage it. One's own everybody manages."""
    return team is not None and actor.is_auditor


def require_channel(actor: User | SystemActor, channel: Channel) -> None:
    """A team's: its owners and operators (`NotAllowed`). A user's: nobody else knows of it (`NotFound`)."""
    if channel.team is not None:
        accounts.require_manage_team(actor, channel.team)
    elif not isinstance(actor, SystemActor) and channel.user_id != actor.pk:
        raise NotFound(Reason(ChannelCode.NO_SUCH_CHANNEL))
