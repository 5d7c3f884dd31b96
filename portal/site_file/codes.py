"""Codes of site files."""

from __future__ import annotations

from enum import StrEnum


class SiteCode(StrEnum):
    """Errors about site files."""

    FILE_ANCHOR = "file_anchor"
    FILE_LINE = "file_line"
    FILE_NOT_YAML = "file_not_yaml"
    FILE_SIGN = "file_sign"
    FILE_TOO_LARGE = "file_too_large"
    FILE_TWICE = "file_twice"
    NO_SUCH_NAME = "no_such_name"
    STEP_REFUSED = "step_refused"
