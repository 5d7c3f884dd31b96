"""Texts of refusals about notice channels."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text, listed
from portal.notify.channels.codes import ChannelCode

TEXTS: dict[StrEnum, Text] = {
    ChannelCode.CHOOSE_KINDS: Text(_("Choose at least one kind of notice.")),
    ChannelCode.ENDED: Text(_("The channel is switched off."), _("Switch it on first.")),
    ChannelCode.NAMELESS: Text(_("Say what the channel is called.")),
    ChannelCode.NOT_CHECKED: Text(_("The URL could not be looked at just now."), _("Try it again.")),
    ChannelCode.NOT_VALID: Text(_("The channel is not valid."), _("Mend the fields that are named.")),
    ChannelCode.NO_SUCH_CHANNEL: Text(_("There is no such channel."), _("List those that there are.")),
    ChannelCode.ON_ITS_WAY: Text(_("A test is on its way already."), _("Wait for the answer.")),
    ChannelCode.TOO_MANY: Text(_("Limit of %(limit)d channels reached."), _("Delete one first.")),
    ChannelCode.UNKNOWN_KINDS: Text(
        _("There are no such kinds of notices: %(kinds)s."),
        _("Use some of: %(known)s."),
        prepare=listed("kinds", "known"),
    ),
    ChannelCode.URL_NONE: Text(
        _("This is no URL of a service that notices can be sent through."),
        _("Copy the address that the service gives for incoming messages."),
    ),
    ChannelCode.URL_PARAMETER: Text(
        _("The URL has a parameter that may not be set here, as “template” or “verify”."), _("Leave it out.")
    ),
    ChannelCode.URL_SERVICE: Text(
        _("Notices cannot be sent through this service here."),
        _("Use one of: %(known)s."),
        prepare=listed("known"),
    ),
}
