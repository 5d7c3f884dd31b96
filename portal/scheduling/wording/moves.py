"""Texts: why a running workspace is not moved."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.scheduling.codes import MoveCode

TEXTS: dict[StrEnum, Text] = {
    MoveCode.CHANGED_MEANWHILE: Text(
        _("One of these workspaces has stopped or changed meanwhile, so nothing was moved."),
        _("The proposals are made anew within a minute."),
    ),
    MoveCode.NO_PLACE_ANY_MORE: Text(
        _("What was proposed does not work out any more: a place has been taken, or nobody waits for it."),
        _("The proposals are made anew within a minute."),
    ),
}
