"""Codes of machines."""

# ruff: noqa: S105  (codes that name a token are no secrets)
from __future__ import annotations

from enum import StrEnum


class MachineCode(StrEnum):
    """Errors about machines. Joining machines act on these codes."""

    ACCELERATOR_DRIVER_MISSING = "accelerator_driver_missing"
    CERTIFICATE_ENDED = "certificate_ended"
    CLOCK_OFF = "clock_off"
    NODES_ALL_OFFLINE = "nodes_all_offline"
    NODE_ELSEWHERE = "node_elsewhere"
    NO_NODE_YET = "no_node_yet"
    NO_WORKER_ANSWERS = "no_worker_answers"
    POOL_IS_OFF = "pool_is_off"
    POOL_RETIRING = "pool_retiring"
    POOL_CLOSED = "pool_closed_for_maintenance"
    CSR_INVALID = "csr_invalid"
    IDENTITY_REPLACED = "identity_replaced"
    JOIN_TOKEN_EXPIRED = "join_token_expired"
    JOIN_TOKEN_UNKNOWN = "join_token_unknown"
    JOIN_TOKEN_USED = "join_token_used"
    JOIN_TOO_OFTEN = "join_too_often"
    MACHINE_JOINED_ALREADY = "machine_joined_already"
    MACHINE_STILL_JOINED = "machine_still_joined"
    NODES_ADDRESS_MISSING = "nodes_address_missing"
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
