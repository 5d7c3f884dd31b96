"""Texts of errors about actions on selected workspaces."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.web.workspace_list.codes import SelectionCode

TEXTS: dict[StrEnum, Text] = {
    SelectionCode.NOTHING: Text(_("No workspace is selected."), _("Select one or more, then try again.")),
    SelectionCode.TOO_MANY: Text(
        _("More than %(maximum)d workspaces are selected."), _("Select fewer, then try again.")
    ),
}
