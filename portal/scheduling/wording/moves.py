"""Texts: why a running workspace is not moved."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.scheduling.codes import MoveCode

TEXTS: dict[StrEnum, Text] = {
    MoveCode.CHANGED_MEANWHILE: Text(
        _("No workspace was moved because one of them has stopped or changed."),
        _("Wait up to 1 minute for new proposals."),
    ),
    MoveCode.NO_PLACE_ANY_MORE: Text(
        _("The proposal is out of date: its capacity is taken or no workspace waits for it."),
        _("Wait up to 1 minute for new proposals."),
    ),
}
