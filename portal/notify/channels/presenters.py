"""Presentation of channels and messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.notify.channels.models import Channel, Message, MessageState

ERRORS = {
    "refused_address": _("The name resolves to an internal address that is not allowed."),
    "refused_act": _("The service tried an action that channels cannot use."),
    "scheme": _("This service is no longer allowed."),
    "parameter": _("The address has a parameter that is not allowed."),
    "no_url": _("The address is no longer valid."),
    "url_unreadable": _("The address was saved with another secret key. Enter it again."),
    "timeout": _("No response in time."),
    "tls": _("The certificate is not valid."),
    "connection": _("Connection failed."),
    "declined": _("Not sent."),
    "internal": _("Internal error in the portal."),
}
"""Why a message was not sent, by error code of its last attempt."""
LOOKS = {
    MessageState.PENDING: ("loader-2", "busy"),
    MessageState.SENT: ("circle-check", "ok"),
    MessageState.FAILED: ("alert-circle", "bad"),
}


@dataclass(frozen=True, slots=True)
class ChannelRow:
    """A channel as a list row. `word`, `icon` and `tone` show its state."""

    channel: Channel
    word: str | Promise
    icon: str
    tone: str


def row_of(channel: Channel) -> ChannelRow:
    """Return the row of a channel, with its state: disabled, failing or enabled."""
    if not channel.enabled:
        return ChannelRow(channel, _("Disabled"), "circle-off", "")
    if channel.failing_since is not None:
        return ChannelRow(channel, _("Failing"), "alert-triangle", "bad")
    return ChannelRow(channel, _("Enabled"), "circle-check", "ok")


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message with the outcome of its last attempt."""

    message: Message
    icon: str
    tone: str

    @property
    def outcome(self) -> str:
        """Status of the response, or the error; "" before the first attempt."""
        if self.message.error:
            return str(ERRORS.get(self.message.error, self.message.error))
        return "" if self.message.status_code is None else str(self.message.status_code)


def message_row(message: Message) -> MessageRow:
    icon, tone = LOOKS[MessageState(message.state)]
    return MessageRow(message, icon, tone)


def deleting_question(channel: Channel) -> dict[str, Any]:
    """Return the context of the confirmation to delete a channel."""
    return {
        "title": _("Delete the channel “%(name)s”?") % {"name": channel.name},
        "loses": [_("notices to this channel"), _("Berth's list of sent messages")],
        "stays": [
            _("the notices in the portal"),
            _("messages already delivered to the channel"),
        ],
        "yes": _("Delete channel"),
    }
