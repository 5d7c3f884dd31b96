"""Codes of pools, nodes and devices."""

from __future__ import annotations

from enum import StrEnum


class InventoryCode(StrEnum):
    """Errors about pools, nodes and devices."""

    LOCATION_NOT_VALID = "location_not_valid"
    MAINTENANCE_END_PAST = "maintenance_end_past"
    MAINTENANCE_NOT_VALID = "maintenance_not_valid"
    MAINTENANCE_REASON_MISSING = "maintenance_reason_missing"
    MAINTENANCE_REASON_TOO_LONG = "maintenance_reason_too_long"
    MAINTENANCE_TOO_FAR = "maintenance_too_far_ahead"
    MAINTENANCE_TOO_LONG = "maintenance_too_long"
    NODE_NOT_IN_POOL = "node_not_in_pool"
    NO_MAINTENANCE = "no_maintenance"
    NO_SUCH_DEVICE = "no_such_device"
    NO_SUCH_NODE = "no_such_node"
    NO_SUCH_POOL = "no_such_pool"
    POOL_CONFIG_NOT_UNDERSTOOD = "pool_config_not_understood"
    POOL_FIELD_FIXED = "pool_field_fixed"
    POOL_IN_USE = "pool_in_use"
    POOL_HAS_NO_SETTING = "pool_has_no_setting"
    POOL_NOT_RETIRED = "pool_not_retired"
    POOL_NOT_VALID = "pool_not_valid"
    POOL_SLUG_TAKEN = "pool_slug_taken"
    POOL_SILENT = "pool_silent"
    DRIVER_REPORT = "driver_report"
    SPAN_UNKNOWN = "span_unknown"
