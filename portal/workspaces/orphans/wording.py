"""Texts of the reasons about orphans."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.workspaces.orphans.codes import OrphanCode

TEXTS: dict[StrEnum, Text] = {
    OrphanCode.ENDS_BY_ITSELF: Text(
        _("%(name)s is being ended already: no workspace stands behind it."), _("Look again in a minute.")
    ),
    OrphanCode.GONE_ALREADY: Text(_("%(name)s is no longer there."), _("Look at the list again.")),
    OrphanCode.HAS_OWNER: Text(_("%(name)s has an owner now, so it stays."), _("Look at the list again.")),
    OrphanCode.NAME_NOT_TYPED: Text(
        _("Nothing brings this home folder back, so its name has to be typed."), _("Type %(name)s.")
    ),
    OrphanCode.NO_SUCH_ORPHAN: Text(_("This is none of what is left over."), _("Look at the list again.")),
}
