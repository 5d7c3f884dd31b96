"""Texts of errors about notice channels."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text, joined_lists
from portal.notify.channels.codes import ChannelCode

TEXTS: dict[StrEnum, Text] = {
    ChannelCode.CHOOSE_KINDS: Text(_("Choose at least one kind of notice.")),
    ChannelCode.ENDED: Text(_("The channel is disabled."), _("Enable it first.")),
    ChannelCode.NAMELESS: Text(_("Enter a name for the channel.")),
    ChannelCode.NOT_CHECKED: Text(_("The URL could not be checked."), _("Try again in a moment.")),
    ChannelCode.NOT_VALID: Text(_("The channel is not valid."), _("Correct the marked fields.")),
    ChannelCode.NO_SUCH_CHANNEL: Text(_("Channel not found."), _("Check the list of your channels.")),
    ChannelCode.ON_ITS_WAY: Text(_("A test is already running."), _("Wait for its result.")),
    ChannelCode.TOO_MANY: Text(_("Limit of %(limit)d channels reached."), _("Delete one first.")),
    ChannelCode.UNKNOWN_KINDS: Text(
        _("Unknown kinds of notices: %(kinds)s."),
        _("Choose from: %(known)s."),
        prepare=joined_lists("kinds", "known"),
    ),
    ChannelCode.URL_NONE: Text(
        _("The URL does not belong to a supported notification service."),
        _("Copy the URL for incoming messages from the service."),
    ),
    ChannelCode.URL_PARAMETER: Text(
        _("The URL has a parameter that is not allowed, such as “template” or “verify”."),
        _("Remove the parameter."),
    ),
    ChannelCode.URL_SERVICE: Text(
        _("This service is not available for notices."),
        _("Use one of: %(known)s."),
        prepare=joined_lists("known"),
    ),
}
