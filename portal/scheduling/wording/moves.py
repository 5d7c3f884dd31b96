"""Texts: why a running workspace is not moved."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.scheduling.codes import MoveCode

TEXTS: dict[StrEnum, Text] = {
    MoveCode.CHANGED_MEANWHILE: Text(
        _("Nothing was moved, as one of these workspaces has stopped or changed."),
        _("New proposals appear within a minute."),
    ),
    MoveCode.NO_PLACE_ANY_MORE: Text(
        _("The proposal no longer works: a place has been taken, or no workspace waits for it."),
        _("New proposals appear within a minute."),
    ),
}
