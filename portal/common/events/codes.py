"""Error codes for event streams and notices."""

from __future__ import annotations

from enum import StrEnum


class EventCode(StrEnum):
    """Errors about event streams and notices."""

    TOO_MANY_STREAMS = "too_many_streams"
    NO_SUCH_NOTICE = "no_such_notice"
