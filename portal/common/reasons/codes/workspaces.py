"""Workspaces, their lifetimes and their homes."""

from __future__ import annotations

from enum import StrEnum


class WorkspaceCode(StrEnum):
    """Refusals about workspaces, and why they failed."""

    # Refusals.
    CHANGED_MEANWHILE = "changed_meanwhile"
    EXPECTED_BY_END = "expected_by_end"
    EXPECTED_OUT_OF_RANGE = "expected_out_of_range"
    HOME_IS_PRIVATE = "home_is_private"
    NAME_TAKEN = "name_taken"
    NODE_SILENT = "node_silent"
    NOT_POSSIBLE_NOW = "not_possible_now"
    NOT_CHANGEABLE = "workspace_not_changeable"
    NOT_RENAMEABLE = "workspace_not_renameable"
    NOT_RUNNING = "workspace_not_running"
    NOT_STARTABLE = "not_startable"
    TOO_MANY_STARTS = "too_many_starts"
    NOT_STOPPABLE = "not_stoppable"
    NO_SUCH_HOME = "no_such_home"
    NO_SUCH_WORKSPACE = "no_such_workspace"
    NOT_VALID = "workspace_not_valid"
    NOT_VISIBLE = "workspace_not_visible"
    ONLY_ITS_OPERATORS = "only_its_operators"
    ONLY_ITS_USER = "only_its_user"
    LOG_NOT_READ = "log_not_read"
    NOTHING_INSTALLED = "nothing_installed"
    PACKAGES_NOT_READ = "packages_not_read"
    PRIORITY_NOT_ALLOWED = "priority_not_allowed"
    PRIORITY_OUT_OF_RANGE = "priority_out_of_range"
    SIMULATED = "workspace_simulated"
    SOME_CHANGED_MEANWHILE = "some_changed_meanwhile"
    TICKET_NOT_ISSUED = "ticket_not_issued"
    # Why it failed, or goes back into the queue.
    APP_EXITED = "app_exited"
    CHECK_FAILED = "check_failed"
    REPARTITION_FAILED = "repartition_failed"
    SHARE_WITHDRAWN = "gpu_share_withdrawn"
    DEVICE_LOST = "device_lost"
    LOST = "lost"
    MACHINE_GONE = "machine_gone"
    MACHINE_REMOVED = "machine_removed"
    NOT_STARTED_IN_TIME = "not_started_in_time"
    START_TIMEOUT = "start_timeout"
    REPORTED = "reported"


class ShareCode(StrEnum):
    """How a workspace stands to its part of a GPU's memory, by what its node's guard tells."""

    OVER = "gpu_share_over"
    ASKED = "gpu_share_process_asked"
    KILLED = "gpu_share_process_killed"
    BACK = "gpu_share_kept"
    UNKNOWN = "gpu_share_unknown"


class HomeMoveCode(StrEnum):
    """Refusals about moves of homes, and why one waits or failed."""

    ALREADY_EVACUATED = "homes_already_leaving"
    ALREADY_MOVING = "home_already_moving"
    ALREADY_THERE = "home_already_there"
    ENDED = "home_move_ended"
    HOMES_IN_USE = "homes_in_use"
    HOMES_NOT_APART = "homes_not_apart"
    HOME_BEING_MOVED = "home_being_moved"
    IN_USE = "home_in_use_by_workspaces"
    NODE_GONE = "home_move_node_gone"
    NO_HOMES_THERE = "no_homes_there"
    NO_SUCH_EVACUATION = "no_such_home_evacuation"
    NO_SUCH_MOVE = "no_such_home_move"
    NO_SUCH_TARGET = "no_such_home_target"
    NO_TARGETS = "no_home_targets"
    OLD_SILENT = "home_move_old_silent"
    NEW_SILENT = "home_move_new_silent"
    NO_ROOM = "home_move_no_room"
    REPORTED = "home_move_reported"


class ArchiveCode(StrEnum):
    """Refusals about archives of homes, and why one waits or failed."""

    AWAY = "home_only_in_archive_now"
    BAD_NAME = "archive_name_not_valid"
    BEING_WORKED_ON = "home_archive_under_way"
    CHANGED = "archive_home_changed"
    DAMAGED = "archive_damaged"
    DISK_FULL = "archive_disk_full"
    FULL = "archives_full"
    GONE = "archive_gone"
    HOME_ELSEWHERE = "archive_elsewhere"
    HOLDS_HOME = "archive_holds_home"
    IN_USE = "archive_home_in_use"
    KEEPS_ENDING = "archive_keeps_ending"
    NODE_GONE = "archive_node_gone"
    NODE_SILENT = "archive_node_silent"
    NOT_HERE = "archives_not_here"
    NOT_READY = "archive_not_ready"
    NO_SUCH_ARCHIVE = "no_such_archive"
    NOTHING_TO_CANCEL = "archive_nothing_to_cancel"
    RESTORE_CANCELLED = "archive_restore_cancelled"
    REPORTED = "archive_reported"
    TOO_MANY = "too_many_archives"
    UNREADABLE = "archive_home_unreadable"


class FileCode(StrEnum):
    """Refusals about the files of a home."""

    BAD_NAME = "file_name_not_valid"
    BUSY = "too_many_transfers"
    DISK_FULL = "disk_of_node_full"
    EXISTS = "file_exists"
    FAILED = "file_failed"
    HOME_FULL = "home_full"
    HOME_NOWHERE = "home_nowhere"
    IS_A_LINK = "file_is_a_link"
    NOT_A_FILE = "not_a_file"
    NOT_A_FOLDER = "not_a_folder"
    NOT_FOUND = "no_such_file"
    NOT_READ = "files_not_read"
    NOT_WRITABLE = "file_not_writable"
    NO_SUCH_FORM = "no_such_download_form"
    OFFSET_INVALID = "offset_not_valid"
    RESERVED_NAME = "file_name_reserved"


class LifetimeCode(StrEnum):
    """Refusals about how long a workspace lives, and why it is stopped."""

    EXTENSION_TOO_SHORT = "extension_too_short"
    EXTENSION_TOO_LONG = "extension_too_long"
    AT_LONGEST_LIFETIME = "at_longest_lifetime"
    HAS_NO_END = "workspace_has_no_end"
    NOT_RUNNING_NOW = "lifetime_not_running"
    KEPT_OUT_OF_RANGE = "kept_out_of_range"
    NOT_NEAR_ITS_END = "not_near_its_end"
    HOURS_SPENT = "lifetime_hours_spent"
    NO_GPU_TO_RELEASE = "no_gpu_to_release"
    NO_GPU_TO_ATTACH = "no_gpu_to_attach"
    GPU_NOT_CHANGEABLE = "gpu_not_changeable"
    NOT_RESIZABLE_NOW = "workspace_not_resizable"
    FILES_IN_ANOTHER_POOL = "files_in_another_pool"
    BOOKED_BEFORE = "lifetime_booked_before"
    # Why it is stopped.
    ENDS_BY_LIFETIME = "ends_by_lifetime"
    ENDS_BY_GPU_IDLE = "ends_by_gpu_idle"
    ENDS_BY_IDLE = "ends_by_idle"
    ENDS_BY_LONGEST = "ends_by_longest"
    ENDS_BY_SCHEDULE = "ends_by_schedule"
    ENDS_BY_BUDGET = "ends_by_budget"
    # Why its GPUs are released.
    RELEASED_BY_IDLE = "released_by_idle"
    RELEASED_BY_GPU_IDLE = "released_by_gpu_idle"
    # Refusals about policies.
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


class EfficiencyCode(StrEnum):
    """Hints about what a workspace makes of its GPUs."""

    NONE_USED = "no_gpu_used"
    SOME_UNUSED = "some_gpus_unused"
    SMALLER_WOULD_DO = "smaller_gpu_would_do"
    MOSTLY_IDLE = "gpus_mostly_idle"
