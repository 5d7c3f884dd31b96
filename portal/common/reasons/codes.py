"""Codes shared by all packages, and rules named by several of them."""

from __future__ import annotations

from enum import StrEnum


class CommonCode(StrEnum):
    """Errors of all kinds of requests."""

    CHANGED_BY_SOMEBODY = "changed_by_somebody"
    CHANGED_SINCE = "changed_since"
    CHOOSE_ONE_OF = "choose_one_of"
    CHOOSE_WHAT_TO_DO = "choose_what_to_do"
    CORRECT_AND_RETRY = "correct_and_retry"
    FIRST_CHOICE_MISSING = "first_choice_missing"
    HOURS_NOT_UNDERSTOOD = "hours_not_understood"
    UNKNOWN_PARAMETER = "unknown_parameter"
    PAGE_SIZE_INVALID = "page_size_invalid"
    CURSOR_INVALID = "cursor_invalid"
    STORAGE_BUSY = "storage_busy"
    STORAGE_FAILS = "storage_fails"
    STORAGE_FULL = "storage_full"
    STORAGE_READ_ONLY = "storage_read_only"
    LAST_EVENT_ID_INVALID = "last_event_id_invalid"
    IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused"
    ONLY_ADMINISTRATORS = "only_administrators"


class Rule(StrEnum):
    """The rule that keeps a request waiting or refuses it.

    The scheduling engine decides. `portal.workspaces`, which the engine must not import, reads the rule.
    `portal.scheduling.wording` has the texts.
    """

    USER_CAP = "user_cap"
    TEAM_LIMIT = "team_limit"
    COHORT = "cohort"
    SITE_LIMIT = "site_limit"
    LEDGER = "ledger"
    CAPACITY = "capacity"
    BOOKING = "booking"
    PLACEMENT = "placement"
    ORDER = "order"
