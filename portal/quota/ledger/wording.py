"""Texts of errors about GPU-hours."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.quota.ledger.codes import LedgerCode

_NOT_COUNTED = _("%(team)s has no ledger: its GPU-hours are not counted.")

TEXTS: dict[StrEnum, Text] = {
    LedgerCode.CREDIT_OUT_OF_RANGE: Text(_("Enter up to 1 billion hours to add or remove, but not 0.")),
    LedgerCode.QUOTA_OUT_OF_RANGE: Text(_("Enter 0 to 1 billion hours.")),
    LedgerCode.HOURS_NOT_COUNTED: Text(_NOT_COUNTED, _("Ask an operator to open a ledger for the team.")),
    LedgerCode.LEDGER_NOT_OPEN: Text(_NOT_COUNTED, _("Open a ledger for the team first.")),
    LedgerCode.NO_BUDGET: Text(_("%(team)s has no budget in money."), _("Ask an operator to set a budget.")),
    LedgerCode.BUDGET_OUT_OF_RANGE: Text(_("Enter an amount from 0 to 10 billion.")),
    LedgerCode.NO_TEAM_OF_LEDGER: Text(_("Team not found."), _("Choose one of your teams.")),
}
