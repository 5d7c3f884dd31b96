"""Texts of errors about webhooks."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text, joined_lists
from portal.notify.webhooks.codes import WebhookCode

TEXTS: dict[StrEnum, Text] = {
    WebhookCode.ADMINISTRATORS_TYPES: Text(
        _("Only administrators can subscribe to these event types: %(types)s."),
        _("Remove them, or ask an administrator."),
        prepare=joined_lists("types"),
    ),
    WebhookCode.CHOOSE_TYPES: Text(_("Choose at least one type of event.")),
    WebhookCode.ENDED: Text(_("The webhook is disabled."), _("Enable it first.")),
    WebhookCode.NAMELESS: Text(_("Enter a name for the receiver.")),
    WebhookCode.NO_SUCH_DELIVERY: Text(
        _("Delivery not found."), _("Check the list of deliveries. Old ones are deleted.")
    ),
    WebhookCode.NO_SUCH_WEBHOOK: Text(_("Webhook not found."), _("Check the list of your webhooks.")),
    WebhookCode.NOT_VALID: Text(_("The webhook is not valid."), _("Correct the marked fields.")),
    WebhookCode.ON_ITS_WAY: Text(_("A delivery is already in progress."), _("Wait for its result.")),
    WebhookCode.TOO_MANY: Text(_("Limit of %(limit)d webhooks reached."), _("Delete one first.")),
    WebhookCode.UNKNOWN_TYPES: Text(
        _("Unknown event types: %(types)s."),
        _("Choose from the list of event types."),
        prepare=joined_lists("types"),
    ),
    WebhookCode.URL_CREDENTIALS: Text(
        _("The URL contains a username or password, which webhooks do not send."),
        _("Remove them, and verify the signature instead."),
    ),
    WebhookCode.URL_INTERNAL: Text(
        _("The URL resolves to an internal address."),
        _("Use a public address, or ask an administrator to allow the network in BERTH_OUTGOING_ALLOW."),
    ),
    WebhookCode.URL_NONE: Text(
        _("The URL is not valid."), _("Enter a full URL, such as https://example.org/hooks/berth.")
    ),
    WebhookCode.URL_SCHEME: Text(_("The URL must start with https://."), _("Use the encrypted address.")),
}
