"""Codes of announcements."""

from __future__ import annotations

from enum import StrEnum


class AnnouncementCode(StrEnum):
    """Errors about announcements."""

    END_PAST = "announcement_end_past"
    NOT_DISMISSIBLE = "announcement_not_dismissible"
    NOT_VALID = "announcement_not_valid"
    NO_SUCH_ANNOUNCEMENT = "no_such_announcement"
    TEXT_MISSING = "announcement_text_missing"
    TEXT_TOO_LONG = "announcement_text_too_long"
    TOO_MANY = "announcements_too_many"
