"""Texts of errors about event streams and notices."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.events.codes import EventCode
from portal.common.reasons.wording import Text

TEXTS: dict[StrEnum, Text] = {
    EventCode.TOO_MANY_STREAMS: Text(
        _("Limit of %(limit)s open event streams reached."),
        _("Close a stream, then connect again."),
    ),
    EventCode.NO_SUCH_NOTICE: Text(_("Notice not found."), _("Check your list of notices.")),
}
