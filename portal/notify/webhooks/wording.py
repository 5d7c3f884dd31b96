"""Texts of refusals about webhooks."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text, listed
from portal.notify.webhooks.codes import WebhookCode

TEXTS: dict[StrEnum, Text] = {
    WebhookCode.ADMINISTRATORS_TYPES: Text(
        _("Only administrators may have these sent: %(types)s."),
        _("Ask an administrator, or leave them out."),
        prepare=listed("types"),
    ),
    WebhookCode.CHOOSE_TYPES: Text(_("Choose at least one type of event.")),
    WebhookCode.ENDED: Text(_("The webhook is switched off."), _("Switch it on first.")),
    WebhookCode.NAMELESS: Text(_("Say what receives them.")),
    WebhookCode.NO_SUCH_DELIVERY: Text(
        _("There is no such delivery."), _("Look at the list: old ones are deleted.")
    ),
    WebhookCode.NO_SUCH_WEBHOOK: Text(_("There is no such webhook."), _("List those that there are.")),
    WebhookCode.NOT_VALID: Text(_("The webhook is not valid."), _("Mend the fields that are named.")),
    WebhookCode.ON_ITS_WAY: Text(_("It is on its way already."), _("Wait for the answer.")),
    WebhookCode.TOO_MANY: Text(_("Limit of %(limit)d webhooks reached."), _("Delete one first.")),
    WebhookCode.UNKNOWN_TYPES: Text(
        _("There are no such types of events here: %(types)s."),
        _("Read the list of types."),
        prepare=listed("types"),
    ),
    WebhookCode.URL_CREDENTIALS: Text(
        _("A name and password in the URL are not sent: every message is signed."), _("Leave them out.")
    ),
    WebhookCode.URL_INTERNAL: Text(
        _("The URL leads to an internal address."),
        _("Use a public one, or have the site's administrator allow the network (BERTH_OUTGOING_ALLOW)."),
    ),
    WebhookCode.URL_NONE: Text(_("This is no URL."), _("Write it in full: https://example.org/hooks/berth.")),
    WebhookCode.URL_SCHEME: Text(_("The URL has to begin with https://."), _("Use the encrypted address.")),
}
