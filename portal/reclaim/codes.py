"""Codes of lifetimes and reclaim policies."""

from __future__ import annotations

from enum import StrEnum


class LifetimeCode(StrEnum):
    """Errors about lifetimes, and reasons for stops."""

    KEPT_OUT_OF_RANGE = "kept_out_of_range"
    NOT_NEAR_ITS_END = "not_near_its_end"
    HOURS_SPENT = "lifetime_hours_spent"
    BOOKED_BEFORE = "lifetime_booked_before"
    # Reasons for stops.
    ENDS_BY_LIFETIME = "ends_by_lifetime"
    ENDS_BY_GPU_IDLE = "ends_by_gpu_idle"
    ENDS_BY_IDLE = "ends_by_idle"
    ENDS_BY_LONGEST = "ends_by_longest"
    ENDS_BY_SCHEDULE = "ends_by_schedule"
    ENDS_BY_BUDGET = "ends_by_budget"
    # Reasons for releasing GPUs.
    RELEASED_BY_IDLE = "released_by_idle"
    RELEASED_BY_GPU_IDLE = "released_by_gpu_idle"
    # Errors about policies.
    POLICY_NOT_VALID = "reclaim_policy_not_valid"
    POLICY_TARGET_UNKNOWN = "reclaim_policy_target_unknown"
    POLICY_TARGET_FIXED = "reclaim_policy_target_fixed"
    POLICY_TAKEN = "reclaim_policy_taken"
    POLICY_SAYS_NOTHING = "reclaim_policy_says_nothing"
    POLICY_NOT_FOUND = "reclaim_policy_not_found"
    POLICY_NOT_FOR_TEAM = "reclaim_policy_not_for_team"
    POLICY_NOT_FOR_HOMES = "reclaim_policy_not_for_homes"
    HOME_DELETE_NOT_DUE = "home_delete_not_due"
    HOME_NOT_NAMED = "home_not_named"
    POLICY_ZONE_UNKNOWN = "reclaim_policy_zone_unknown"
    POLICY_DAYS_UNKNOWN = "reclaim_policy_days_unknown"
    POLICY_DAYS_MISSING = "reclaim_policy_days_missing"
    POLICY_HOURS_INCOMPLETE = "reclaim_policy_hours_incomplete"
    POLICY_START_WITHOUT_STOP = "reclaim_policy_start_without_stop"
    POLICY_HOLIDAYS_UNKNOWN = "reclaim_policy_holidays_unknown"
