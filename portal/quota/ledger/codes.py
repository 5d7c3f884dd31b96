"""Error codes for GPU-hours."""

from __future__ import annotations

from enum import StrEnum


class LedgerCode(StrEnum):
    """Errors about GPU-hours."""

    CREDIT_OUT_OF_RANGE = "credit_out_of_range"
    QUOTA_OUT_OF_RANGE = "ledger_quota_out_of_range"
    HOURS_NOT_COUNTED = "hours_not_counted"
    LEDGER_NOT_OPEN = "ledger_not_open"
    NO_TEAM_OF_LEDGER = "no_team_of_ledger"
    NO_BUDGET = "no_money_budget"
    BUDGET_OUT_OF_RANGE = "budget_out_of_range"
