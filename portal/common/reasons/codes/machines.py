"""Pools, nodes, devices, their checks, and what nobody owns on them."""

# ruff: noqa: S105  (codes that name a token are no secrets)
from __future__ import annotations

from enum import StrEnum


class InventoryCode(StrEnum):
    """Refusals about pools, nodes and devices."""

    DEVICE_NOT_ON_MAP = "device_not_on_map"
    NODE_NOT_ON_MAP = "node_not_on_map"
    NO_DEVICE_AT_PLACE = "no_device_at_place"
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


class MachineCode(StrEnum):
    """Refusals about machines that join, and by which they are told why."""

    ACCELERATOR_DRIVER_MISSING = "accelerator_driver_missing"
    CERTIFICATE_ENDED = "certificate_ended"
    CLOCK_OFF = "clock_off"
    NODES_ALL_OFFLINE = "nodes_all_offline"
    NODE_ELSEWHERE = "node_elsewhere"
    NO_NODE_YET = "no_node_yet"
    NO_WORKER_ANSWERS = "no_worker_answers"
    POOL_IS_OFF = "pool_is_off"
    POOL_RETIRING = "pool_retiring"
    CSR_INVALID = "csr_invalid"
    IDENTITY_REPLACED = "identity_replaced"
    JOIN_TOKEN_EXPIRED = "join_token_expired"
    JOIN_TOKEN_UNKNOWN = "join_token_unknown"
    JOIN_TOKEN_USED = "join_token_used"
    JOIN_TOO_OFTEN = "join_too_often"
    MACHINE_JOINED_ALREADY = "machine_joined_already"
    MACHINE_NOT_NAMED = "machine_not_named"
    MACHINE_STILL_JOINED = "machine_still_joined"
    NODES_ADDRESS_MISSING = "nodes_address_missing"
    NODE_HAS_HOMES = "node_has_homes"
    NODE_HAS_WORKSPACES = "node_has_workspaces"
    NODE_NAME_INVALID = "node_name_invalid"
    NODE_NAME_TAKEN = "node_name_taken"
    NOT_A_JOINED_NODE = "not_a_joined_node"
    NO_AUTHORITY = "no_authority"
    NO_SUCH_JOIN_TOKEN = "no_such_join_token"
    NO_SUCH_MACHINE = "no_such_machine"
    POOL_TAKES_NO_MACHINES = "pool_takes_no_machines"
    SIGNING_KEY_INVALID = "signing_key_invalid"
    USER_OF_REDIS_LEFT = "user_of_redis_left"
    VERSION_DIFFERS = "version_differs"


class CheckCode(StrEnum):
    """Refusals about GPU checks, and what came of them."""

    CANCELLED = "check_cancelled"
    CHECK_BEGUN = "check_begun"
    LAYOUT_CHANGE_LOST = "layout_change_lost"
    CHECK_UNDER_WAY = "check_under_way"
    DEVICE_GONE = "device_gone"
    DEVICE_IN_USE = "device_in_use"
    DEVICE_PARTITIONED = "device_partitioned"
    HOURS_NOT_WHOLE = "hours_not_whole"
    HOURS_TOO_MANY = "hours_too_many"
    NODE_NOT_ANSWERING = "node_not_answering"
    NO_SUCH_CHECK = "no_such_check"
    NO_SUCH_LEVEL = "no_such_level"
    NO_VERDICT = "no_verdict"
    REPORT_UNSOUND = "report_unsound"
    RESET_ASKED = "reset_asked"
    RESET_LOSES_INSTANCES = "reset_loses_instances"
    RESET_LOST = "reset_lost"
    RESET_NOT_ADVISED = "reset_not_advised"
    RESET_OF_INSTANCE = "reset_of_instance"
    SETTINGS_NOT_VALID = "check_settings_not_valid"
    WRITE_HOURS = "write_hours"


class OrphanCode(StrEnum):
    """Refusals about what nobody owns."""

    ENDS_BY_ITSELF = "orphan_ends_by_itself"
    GONE_ALREADY = "orphan_gone_already"
    HAS_OWNER = "orphan_has_owner"
    NAME_NOT_TYPED = "orphan_name_not_typed"
    NO_SUCH_ORPHAN = "no_such_orphan"
