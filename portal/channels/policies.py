"""Who may manage which channels."""

from __future__ import annotations

from portal.accounts import policies as accounts
from portal.accounts.models import User
from portal.channels.models import Channel
from portal.common.actors import SystemActor
from portal.common.errors import NotFound
from portal.common.reasons.codes import ChannelCode
from portal.common.reasons.reason import Reason


def require_channel(actor: User | SystemActor, channel: Channel) -> None:
    """A team's: its owners and operators (`NotAllowed`). A user's: nobody else knows of it (`NotFound`)."""
    if channel.team is not None:
        accounts.require_manage_team(actor, channel.team)
    elif not isinstance(actor, SystemActor) and channel.user_id != actor.pk:
        raise NotFound(Reason(ChannelCode.NO_SUCH_CHANNEL))
