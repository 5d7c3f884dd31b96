"""Texts of refusals about revisions."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.history.codes import HistoryCode
from portal.common.reasons.wording import Text

TEXTS: dict[StrEnum, Text] = {
    HistoryCode.NO_SUCH_REVISION: Text(
        _("Version %(number)s not found."), _("Choose a version from the history.")
    ),
}
