"""Texts of refusals about announcements."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.fleet.announcements.codes import AnnouncementCode

TEXTS: dict[StrEnum, Text] = {
    AnnouncementCode.END_PAST: Text(
        _("The end must be in the future and after the start."), _("Choose a later end, or leave it empty.")
    ),
    AnnouncementCode.NOT_DISMISSIBLE: Text(
        _("Warnings cannot be dismissed."), _("The warning disappears when it ends.")
    ),
    AnnouncementCode.NOT_VALID: Text(_("The announcement is not valid."), _("Correct the marked fields.")),
    AnnouncementCode.NO_SUCH_ANNOUNCEMENT: Text(
        _("Announcement not found."), _("Check the list of announcements.")
    ),
    AnnouncementCode.TEXT_MISSING: Text(_("Enter the text of the announcement.")),
    AnnouncementCode.TEXT_TOO_LONG: Text(_("Use at most %(max)d characters.")),
    AnnouncementCode.TOO_MANY: Text(
        _("Limit of %(limit)d current and scheduled announcements reached."),
        _("End or delete one first."),
    ),
}
