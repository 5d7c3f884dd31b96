"""What belongs to no subject, and what is sent: events, webhooks, channels."""

from __future__ import annotations

from enum import StrEnum


class CommonCode(StrEnum):
    """Refusals that any room may make."""

    CHANGED_BY_SOMEBODY = "changed_by_somebody"
    CHANGED_SINCE = "changed_since"
    CHOOSE_ONE_OF = "choose_one_of"
    CHOOSE_WHAT_TO_DO = "choose_what_to_do"
    CORRECT_AND_RETRY = "correct_and_retry"
    DRIVER_REPORT = "driver_report"
    FIRST_CHOICE_MISSING = "first_choice_missing"
    HOURS_NOT_UNDERSTOOD = "hours_not_understood"
    NO_SUCH_NOTICE = "no_such_notice"
    NO_SUCH_REVISION = "no_such_revision"
    UNKNOWN_PARAMETER = "unknown_parameter"
    PAGE_SIZE_INVALID = "page_size_invalid"
    CURSOR_INVALID = "cursor_invalid"
    LINES_INVALID = "lines_invalid"
    SPAN_UNKNOWN = "span_unknown"
    BREAKDOWN_UNKNOWN = "breakdown_unknown"
    DAYS_OUT_OF_RANGE = "days_out_of_range"
    STORAGE_BUSY = "storage_busy"
    STORAGE_FAILS = "storage_fails"
    STORAGE_FULL = "storage_full"
    STORAGE_READ_ONLY = "storage_read_only"
    LAST_EVENT_ID_INVALID = "last_event_id_invalid"
    IDEMPOTENCY_KEY_INVALID = "idempotency_key_invalid"
    IDEMPOTENCY_KEY_NOT_TAKEN = "idempotency_key_not_taken"
    IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused"
    VERSION_CHANGED = "version_changed"
    TEAM_MISSING = "team_missing"
    IN_NO_TEAM = "in_no_team"


class EventCode(StrEnum):
    """Refusals about event streams and notices."""

    TOO_MANY_STREAMS = "too_many_streams"


class WebhookCode(StrEnum):
    """Refusals about webhooks."""

    ADMINISTRATORS_TYPES = "webhook_administrators_types"
    CHOOSE_TYPES = "webhook_choose_types"
    ENDED = "webhook_ended"
    NAMELESS = "webhook_nameless"
    NO_SUCH_DELIVERY = "no_such_delivery"
    NO_SUCH_WEBHOOK = "no_such_webhook"
    NOT_VALID = "webhook_not_valid"
    ON_ITS_WAY = "webhook_on_its_way"
    TOO_MANY = "too_many_webhooks"
    UNKNOWN_TYPES = "webhook_unknown_types"
    URL_CREDENTIALS = "webhook_url_credentials"
    URL_INTERNAL = "webhook_url_internal"
    URL_NONE = "webhook_url_none"
    URL_SCHEME = "webhook_url_scheme"


class ChannelCode(StrEnum):
    """Refusals about channels of notices."""

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
