"""Texts of the reasons about extensions of workspaces."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text, durations
from portal.workspaces.codes import ExtensionCode

TEXTS: dict[StrEnum, Text] = {
    ExtensionCode.EXTENSION_TOO_SHORT: Text(
        _("A workspace is extended by %(least_s)s at least."), _("Extend it by more."), durations
    ),
    ExtensionCode.EXTENSION_TOO_LONG: Text(
        _("It may be extended by %(most_s)s at most; %(asked_s)s were asked for."),
        _("Extend it by less."),
        durations,
    ),
    ExtensionCode.AT_LONGEST_LIFETIME: Text(
        _("%(name)s has the longest life that its size may have, %(max_s)s, and cannot be extended."),
        _("Stop it when it suits you, and start it again."),
        durations,
    ),
    ExtensionCode.HAS_NO_END: Text(_("%(name)s has no end time."), _("Nothing to do.")),
    ExtensionCode.NOT_RUNNING_NOW: Text(
        _("%(name)s is not running, so it cannot be extended."), _("Start it. It then gets its full time.")
    ),
}
