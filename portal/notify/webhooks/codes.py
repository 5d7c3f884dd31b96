"""Error codes for webhooks."""

from __future__ import annotations

from enum import StrEnum


class WebhookCode(StrEnum):
    """Errors about webhooks."""

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
