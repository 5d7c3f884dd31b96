"""Error codes for notice channels."""

from __future__ import annotations

from enum import StrEnum


class ChannelCode(StrEnum):
    """Errors about notice channels."""

    CHOOSE_KINDS = "channel_choose_kinds"
    ENDED = "channel_ended"
    NAMELESS = "channel_nameless"
    NOT_CHECKED = "channel_not_checked"
    NOT_VALID = "channel_not_valid"
    NO_SUCH_CHANNEL = "no_such_channel"
    ON_ITS_WAY = "channel_on_its_way"
    TOO_MANY = "too_many_channels"
    UNKNOWN_KINDS = "channel_unknown_kinds"
    URL_NONE = "channel_url_none"
    URL_PARAMETER = "channel_url_parameter"
    URL_SERVICE = "channel_url_service"
