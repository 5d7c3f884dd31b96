"""Texts of the reasons about site files."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.site_file.codes import SiteCode

TEXTS: dict[StrEnum, Text] = {
    SiteCode.FILE_ANCHOR: Text(
        _("Line %(line)s: anchors and references are not read."), _("Write it out where it is needed.")
    ),
    SiteCode.FILE_LINE: Text(_("Line %(line)s, %(where)s: %(reason)s."), _("Correct it and try again.")),
    SiteCode.FILE_NOT_YAML: Text(
        _("Line %(line)s: this is no YAML that can be read (%(reason)s)."), _("Correct it and try again.")
    ),
    SiteCode.FILE_SIGN: Text(_("The file has a sign that cannot be stored."), _("Take out control signs.")),
    SiteCode.FILE_TOO_LARGE: Text(_("The file is longer than %(most)s signs."), _("Apply it in parts.")),
    SiteCode.FILE_TWICE: Text(_("Line %(line)s: “%(name)s” is there twice."), _("Keep one of them.")),
    SiteCode.NO_SUCH_NAME: Text(
        _("There is no “%(name)s”."), _("Name one that there is, or put it into the file.")
    ),
    SiteCode.STEP_REFUSED: Text(
        _("Line %(line)s, %(section)s “%(name)s”: %(reason)s."),
        _("Nothing was changed; correct it and try again."),
    ),
    SiteCode.TEAM_NAME_STAYS: Text(
        _("The team “%(team)s” keeps its name."), _("Put that name into the file.")
    ),
}
