"""Codes of moves and archives of homes."""

from __future__ import annotations

from enum import StrEnum


class HomeMoveCode(StrEnum):
    """Errors about home moves, and reasons why a move waits or failed."""

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
    NOT_WITH_START = "home_move_with_start_failed"
    OLD_SILENT = "home_move_old_silent"
    NEW_SILENT = "home_move_new_silent"
    NO_ROOM = "home_move_no_room"
    REPORTED = "home_move_reported"
    START_ENDED = "home_move_start_ended"


class ArchiveCode(StrEnum):
    """Errors about home archives, and reasons why an archive waits or failed."""

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
