"""Texts of the reasons about extensions of workspaces."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text, durations
from portal.workspaces.codes import ExtensionCode

TEXTS: dict[StrEnum, Text] = {
    ExtensionCode.EXTENSION_TOO_SHORT: Text(
        _("An extension must be at least %(least_s)s."), _("Enter a longer extension."), durations
    ),
    ExtensionCode.EXTENSION_TOO_LONG: Text(
        _("The workspace can be extended by up to %(most_s)s, not by %(asked_s)s."),
        _("Enter a shorter extension."),
        durations,
    ),
    ExtensionCode.AT_LONGEST_LIFETIME: Text(
        _("%(name)s has reached its maximum lifetime of %(max_s)s and cannot be extended."),
        _("Save your work, then stop the workspace and start it again."),
        durations,
    ),
    ExtensionCode.HAS_NO_END: Text(_("%(name)s has no end time."), _("You do not need to extend it.")),
    ExtensionCode.NOT_RUNNING_NOW: Text(
        _("%(name)s is not running, so it cannot be extended."),
        _("Start the workspace to get its full lifetime."),
    ),
}
