"""Texts of the reasons about orphans."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.workspaces.orphans.codes import OrphanCode

TEXTS: dict[StrEnum, Text] = {
    OrphanCode.ENDS_BY_ITSELF: Text(
        _("%(name)s belongs to no workspace, and its node is already stopping it."),
        _("Check again in 1 minute."),
    ),
    OrphanCode.GONE_ALREADY: Text(_("%(name)s no longer exists."), _("Reload the list.")),
    OrphanCode.HAS_OWNER: Text(
        _("%(name)s now has an owner, so it cannot be removed here."), _("Reload the list.")
    ),
    OrphanCode.NAME_NOT_TYPED: Text(
        _("This is not the name of the home folder. Its removal is permanent."),
        _("Type %(name)s to confirm."),
    ),
    OrphanCode.NO_SUCH_ORPHAN: Text(_("Orphan not found."), _("Reload the list.")),
}
