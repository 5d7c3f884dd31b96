"""Texts of the reasons about reports."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.reports.codes import ReportCode

TEXTS: dict[StrEnum, Text] = {
    ReportCode.BREAKDOWN_UNKNOWN: Text(
        _("Unknown grouping."),
        _("Use %(known)s."),
        prepare=lambda params: {"known": gettext(" or ").join(params["known"])},
    ),
    ReportCode.DAYS_OUT_OF_RANGE: Text(
        _("The range of days is not valid."),
        _("Choose up to %(maximum)d days, with the start before the end."),
    ),
}
