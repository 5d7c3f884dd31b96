"""Texts of errors about GPU-hours."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.quota.ledger.codes import LedgerCode

_NOT_COUNTED = _("%(team)s has no ledger: its GPU-hours are not counted.")

TEXTS: dict[StrEnum, Text] = {
    LedgerCode.CREDIT_OUT_OF_RANGE: Text(_("Credit some hours, or take some back.")),
    LedgerCode.QUOTA_OUT_OF_RANGE: Text(_("Choose from 0 to a thousand million hours.")),
    LedgerCode.HOURS_NOT_COUNTED: Text(
        _NOT_COUNTED, _("An operator opens one where hours are to be counted.")
    ),
    LedgerCode.LEDGER_NOT_OPEN: Text(_NOT_COUNTED, _("Open a ledger first.")),
    LedgerCode.NO_BUDGET: Text(
        _("%(team)s has no budget in money."), _("An operator gives it one where it shall have one.")
    ),
    LedgerCode.BUDGET_OUT_OF_RANGE: Text(_("Choose an amount from 0 to ten thousand million.")),
    LedgerCode.NO_TEAM_OF_LEDGER: Text(_("There is no such team."), _("Choose one of your teams.")),
}
