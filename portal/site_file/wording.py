"""Texts of the reasons about site files."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.site_file.codes import SiteCode

TEXTS: dict[StrEnum, Text] = {
    SiteCode.FILE_ANCHOR: Text(
        _("Line %(line)s: YAML anchors and aliases are not supported."), _("Repeat the value instead.")
    ),
    SiteCode.FILE_LINE: Text(_("Line %(line)s, %(where)s: %(reason)s."), _("Correct it and try again.")),
    SiteCode.FILE_NOT_YAML: Text(
        _("Line %(line)s: invalid YAML (%(reason)s)."), _("Correct it and try again.")
    ),
    SiteCode.FILE_SIGN: Text(
        _("The file contains a character that cannot be stored."), _("Remove control characters.")
    ),
    SiteCode.FILE_TOO_LARGE: Text(
        _("The file exceeds %(most)s characters."), _("Split the file, and apply each part.")
    ),
    SiteCode.FILE_TWICE: Text(_("Line %(line)s: duplicate “%(name)s”."), _("Keep one of them.")),
    SiteCode.NO_SUCH_NAME: Text(
        _("“%(name)s” not found."), _("Use an existing name, or define it in the file.")
    ),
    SiteCode.STEP_REFUSED: Text(
        _("Line %(line)s, %(section)s “%(name)s”: %(reason)s."),
        _("Nothing was changed. Correct it and try again."),
    ),
}
