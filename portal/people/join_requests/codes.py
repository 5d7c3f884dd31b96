"""Error codes for join requests."""

from __future__ import annotations

from enum import StrEnum


class JoinCode(StrEnum):
    """Errors of join requests."""

    ALREADY_IN_TEAM = "already_in_team"
    ASK_TO_JOIN_LATER = "ask_to_join_later"
    JOIN_APPROVED_ALREADY = "join_approved_already"
    JOIN_CLOSED_ALREADY = "join_closed_already"
    JOIN_MESSAGE_TOO_LONG = "join_message_too_long"
    JOIN_DENIED_ALREADY = "join_denied_already"
    NOBODY_JOINS_ALONE = "nobody_joins_alone"
    NO_SUCH_JOIN_REQUEST = "no_such_join_request"
    ONLY_REQUESTER_CANCELS_JOIN = "only_requester_cancels_join"
    JOIN_DENIAL_NEEDS_NOTE = "join_denial_needs_note"
    TOO_MANY_JOIN_REQUESTS = "too_many_join_requests"
    TOO_MANY_JOIN_REQUESTS_A_DAY = "too_many_join_requests_a_day"
