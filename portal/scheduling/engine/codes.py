"""Codes of placement and of expected starts."""

from __future__ import annotations

from enum import StrEnum


class PlacementCode(StrEnum):
    """Why a node or device rejects a request."""

    NODE_OFFLINE = "node_offline"
    NODE_CORDONED = "node_cordoned"
    NODE_OVERCOMMITTED = "node_overcommitted"
    NODE_RETIRED = "node_retired"
    POOL_UNREACHABLE = "pool_unreachable"
    POOL_DISABLED = "pool_disabled"
    IN_MAINTENANCE = "node_in_maintenance"
    DEVICE_CORDONED = "device_cordoned"
    DEVICE_UNHEALTHY = "device_unhealthy"
    DEVICE_CHECKING = "device_checking"
    DEVICE_UNSCRUBBED = "device_unscrubbed"
    PARENT_UNUSABLE = "parent_unusable"
    LABEL_MISSING = "label_missing"
    HOME_ELSEWHERE = "home_elsewhere"
    HOME_LOST = "home_on_removed_machine"
    HOME_MOVING = "home_on_its_way"
    HOME_ARCHIVED = "home_held_for_archive"
    HOME_AWAY = "home_only_in_archive"
    FEATURE_MISSING = "feature_missing"
    ENVIRONMENT_MISSING = "node_lacks_environment"
    FOLDER_MISSING = "node_lacks_folder"
    SHARES_NOT_HELD = "node_holds_no_gpu_shares"
    CUDA_TOO_OLD = "cuda_too_old"
    COMPUTE_CAPABILITY_TOO_LOW = "compute_capability_too_low"
    NODE_LACKS_PROGRAM = "node_lacks_program"
    CPU_SHORT = "cpu_short"
    MEMORY_SHORT = "memory_short"
    DISK_SHORT = "disk_short"
    MODEL_MISSING = "model_missing"
    ONLY_AS_MIG = "only_as_mig"
    DEVICE_MEMORY_SHORT = "device_memory_short"
    DEVICES_SHORT = "devices_short"
    DEVICE_SHARES_SHORT = "device_shares_short"
    BONDED_DEVICES_SHORT = "bonded_devices_short"
    MIG_PROFILE_MISSING = "mig_profile_missing"
    MIG_INSTANCES_SHORT = "mig_instances_short"
    NODES_SHORT = "nodes_short"
    ENGINE_QUEUE_FULL = "engine_queue_full"
    REFUSED_BY_DRIVER = "refused_by_driver"


MAY_PASS = frozenset(
    {
        PlacementCode.NODE_OFFLINE,
        PlacementCode.NODE_CORDONED,
        PlacementCode.POOL_UNREACHABLE,
        PlacementCode.IN_MAINTENANCE,
    }
)
"""Reasons that may no longer apply later, although the request does not change."""
SILENT = frozenset({PlacementCode.NODE_OFFLINE, PlacementCode.POOL_UNREACHABLE})
"""Codes of nodes that do not report: nothing starts there, and the portal does not see work end."""
NOT_SUITED = frozenset(
    {
        PlacementCode.NODE_RETIRED,
        PlacementCode.LABEL_MISSING,
        PlacementCode.HOME_ELSEWHERE,
        PlacementCode.HOME_LOST,
        PlacementCode.HOME_MOVING,
        PlacementCode.HOME_ARCHIVED,
        PlacementCode.HOME_AWAY,
        PlacementCode.FEATURE_MISSING,
        PlacementCode.FOLDER_MISSING,
        PlacementCode.SHARES_NOT_HELD,
        PlacementCode.CUDA_TOO_OLD,
        PlacementCode.COMPUTE_CAPABILITY_TOO_LOW,
        PlacementCode.NODE_LACKS_PROGRAM,
        PlacementCode.MODEL_MISSING,
        PlacementCode.MIG_PROFILE_MISSING,
    }
)
"""Reasons that freed capacity does not resolve. Users are shown other nodes' reasons first."""


class MemberOrderCode(StrEnum):
    """How the members' usage changes the position of a request within its team."""

    USED_LESS = "member_used_less"
    USED_MORE = "member_used_more"


class WaitBasis(StrEnum):
    """The basis of an expected start, or why no start can be expected."""

    ENOUGH_FREE = "enough_free"
    EXPECTED_ENDS = "expected_ends"
    TOO_FAR_AHEAD = "too_far_ahead"
    NO_ROOM_ON_NODES = "no_room_on_nodes"
    LIMIT_MUST_CHANGE = "limit_must_change"
    MAINTENANCE_ENDS = "maintenance_ends"
    NO_CONTACT = "no_contact"
