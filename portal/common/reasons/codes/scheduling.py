"""Placement, admission and preemption."""

from __future__ import annotations

from enum import StrEnum


class Rule(StrEnum):
    """Which rule keeps a request waiting, or refuses it."""

    USER_CAP = "user_cap"
    TEAM_LIMIT = "team_limit"
    COHORT = "cohort"
    SITE_LIMIT = "site_limit"
    LEDGER = "ledger"
    CAPACITY = "capacity"
    BOOKING = "booking"
    PLACEMENT = "placement"
    ORDER = "order"
