"""Codes of the files of a home."""

from __future__ import annotations

from enum import StrEnum


class FileCode(StrEnum):
    """Errors about the files of a home."""

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
