"""Codes of workspaces, their clones, their memory and their GPU shares."""

# ruff: noqa: S105  (codes that name a token are no secrets)
from __future__ import annotations

from enum import StrEnum


class WorkspaceCode(StrEnum):
    """Errors about workspaces, and reasons of failures."""

    # Errors.
    CHANGED_MEANWHILE = "changed_meanwhile"
    CHANGED_SINCE_PREVIEW = "changed_since_preview"
    EXPECTED_BY_END = "expected_by_end"
    EXPECTED_OUT_OF_RANGE = "expected_out_of_range"
    FLAVOR_TWICE = "flavor_listed_twice"
    FLAVORS_MIXED = "flavors_partly_simulated"
    FLAVORS_TOO_MANY = "too_many_flavors"
    MESSAGE_EMPTY = "message_empty"
    MESSAGE_TOO_LONG = "message_too_long"
    TOO_MANY_MESSAGES = "too_many_messages"
    OWNER_READS_NOTHING = "owner_reads_nothing"
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
    STOPS_ALREADY = "stops_already"
    STOPPED_HOME_FULL = "stopped_home_full"
    OWNER_DEACTIVATED = "owner_deactivated"
    OWNER_LEFT_TEAM = "owner_left_team"
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
    START_WITHIN_OUT_OF_RANGE = "start_within_out_of_range"
    SOME_CHANGED_MEANWHILE = "some_changed_meanwhile"
    TICKET_NOT_ISSUED = "ticket_not_issued"
    USER_HAS_WORKSPACES = "user_has_workspaces"
    LINES_INVALID = "lines_invalid"
    VERSION_CHANGED = "version_changed"
    TEAM_MISSING = "team_missing"
    IN_NO_TEAM = "in_no_team"
    MACHINE_NOT_NAMED = "machine_not_named"
    NODE_HAS_HOMES = "node_has_homes"
    NO_GPU_TO_RELEASE = "no_gpu_to_release"
    NO_GPU_TO_ATTACH = "no_gpu_to_attach"
    GPU_NOT_CHANGEABLE = "gpu_not_changeable"
    NOT_RESIZABLE_NOW = "workspace_not_resizable"
    FILES_IN_ANOTHER_POOL = "files_in_another_pool"
    ENVIRONMENT_NOT_FOR_TEAM = "environment_not_for_team"
    ENTRY_IN_USE = "entry_in_use"
    # Reasons why it failed or is queued again.
    APP_EXITED = "app_exited"
    DEVICE_LOST = "device_lost"
    ENGINE_REQUEUED = "engine_requeued"
    LOST = "lost"
    MACHINE_GONE = "machine_gone"
    MACHINE_REMOVED = "machine_removed"
    NOT_STARTED_IN_TIME = "not_started_in_time"
    START_TIMEOUT = "start_timeout"
    REPORTED = "reported"


class GitCode(StrEnum):
    """Repositories that workspaces clone: errors of requests and results of clones."""

    NOT_INSTALLED = "git_not_installed"
    SECRET_UNKNOWN = "git_secret_unknown"
    NOT_CLONED = "not_cloned"
    NOT_CLONED_AUTH = "not_cloned_auth"
    NOT_CLONED_CERTIFICATE = "not_cloned_certificate"
    NOT_CLONED_DISK_FULL = "not_cloned_disk_full"
    NOT_CLONED_EGRESS = "not_cloned_egress"
    NOT_CLONED_HOST_KEY = "not_cloned_host_key"
    NOT_CLONED_NO_GIT = "not_cloned_no_git"
    NOT_CLONED_NO_PLACE = "not_cloned_no_place"
    NOT_CLONED_NO_REF = "not_cloned_no_ref"
    NOT_CLONED_NO_SECRET = "not_cloned_no_secret"
    NOT_CLONED_NOT_FOUND = "not_cloned_not_found"
    NOT_CLONED_TIMED_OUT = "not_cloned_timed_out"
    NOT_CLONED_TOO_LARGE = "not_cloned_too_large"
    NOT_CLONED_UNREACHABLE = "not_cloned_unreachable"
    NOT_CLONED_WRONG_SECRET = "not_cloned_wrong_secret"
    SCRIPT_FAILED = "dotfiles_script_failed"
    SCRIPT_TIMED_OUT = "dotfiles_script_timed_out"


class ShareCode(StrEnum):
    """Results of the node guard that watches how workspaces use their GPU shares."""

    OVER = "gpu_share_over"
    ASKED = "gpu_share_process_asked"
    KILLED = "gpu_share_process_killed"
    BACK = "gpu_share_kept"
    UNKNOWN = "gpu_share_unknown"


class MemoryCode(StrEnum):
    """Reports about programs that the system killed because memory was full."""

    LIMIT = "memory_limit_reached"
    MACHINE = "node_memory_exhausted"


class ExtensionCode(StrEnum):
    """Errors about extensions of workspaces."""

    EXTENSION_TOO_SHORT = "extension_too_short"
    EXTENSION_TOO_LONG = "extension_too_long"
    AT_LONGEST_LIFETIME = "at_longest_lifetime"
    HAS_NO_END = "workspace_has_no_end"
    NOT_RUNNING_NOW = "lifetime_not_running"


class EfficiencyCode(StrEnum):
    """Hints about the GPU use of a workspace."""

    NONE_USED = "no_gpu_used"
    SOME_UNUSED = "some_gpus_unused"
    SMALLER_WOULD_DO = "smaller_gpu_would_do"
    MOSTLY_IDLE = "gpus_mostly_idle"
