"""Codes of the history of things."""

from __future__ import annotations

from enum import StrEnum


class HistoryCode(StrEnum):
    """Refusals about earlier versions of a thing."""

    NO_SUCH_REVISION = "no_such_revision"
