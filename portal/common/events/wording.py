"""Texts of the refusals about event streams and notices."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.events.codes import EventCode
from portal.common.reasons.wording import Text

TEXTS: dict[StrEnum, Text] = {
    EventCode.TOO_MANY_STREAMS: Text(
        _("You have %(limit)s event streams open, which is as many as one user may have."),
        _("Close one, or wait until one has ended."),
    ),
    EventCode.NO_SUCH_NOTICE: Text(
        _("There is no such notice of yours."), _("Look at your list of notices.")
    ),
}
