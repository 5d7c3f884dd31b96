"""Error codes for the revision history."""

from __future__ import annotations

from enum import StrEnum


class HistoryCode(StrEnum):
    """Errors about earlier versions."""

    NO_SUCH_REVISION = "no_such_revision"
