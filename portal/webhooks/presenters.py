"""What pages show of webhooks and deliveries."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.webhooks.models import Attempt, Delivery, DeliveryStatus, Endpoint

ERRORS = {
    "refused_address": _("The name leads to no address, or to an internal one that is not allowed here."),
    "plain_http": _("The address is outside of this site and not encrypted: use https://."),
    "timeout": _("It did not answer in time."),
    "tls": _("Its certificate is not valid."),
    "connection": _("It could not be connected to."),
    "protocol": _("It did not answer as a web server does."),
    "secret_unreadable": _("Its secret was written under another secret key of the portal: rotate it."),
    "internal": _("Something went wrong inside the portal."),
}
"""Why there was no answer, by the code of the attempt."""
LOOKS = {
    DeliveryStatus.PENDING: ("loader-2", "busy"),
    DeliveryStatus.DELIVERED: ("circle-check", "ok"),
    DeliveryStatus.FAILED: ("alert-circle", "bad"),
}


@dataclass(frozen=True, slots=True)
class EndpointRow:
    """A webhook in a list: `word`, `icon` and `tone` say how it stands."""

    endpoint: Endpoint
    word: str | Promise
    icon: str
    tone: str


def row_of(endpoint: Endpoint) -> EndpointRow:
    """How a webhook stands: off, failing, or well."""
    if not endpoint.enabled:
        return EndpointRow(endpoint, _("Off"), "circle-off", "")
    if endpoint.failing_since is not None:
        return EndpointRow(endpoint, _("Failing"), "alert-triangle", "bad")
    return EndpointRow(endpoint, _("On"), "circle-check", "ok")


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """A delivery in the log, with its last attempt and what that came to."""

    delivery: Delivery
    attempts: list[Attempt]
    icon: str
    tone: str

    @property
    def last(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def outcome(self) -> str:
        """What the last attempt came to, in a few words."""
        return outcome_of(self.last) if self.last else ""

    @property
    def body(self) -> str:
        """What is sent, for people."""
        return json.dumps(self.delivery.payload, ensure_ascii=False, indent=2)

    @property
    def shown(self) -> list[tuple[Attempt, str]]:
        return [(each, outcome_of(each)) for each in self.attempts]


def delivery_row(delivery: Delivery) -> DeliveryRow:
    icon, tone = LOOKS[DeliveryStatus(delivery.status)]
    return DeliveryRow(delivery, list(delivery.attempts.all()), icon, tone)


def outcome_of(attempt: Attempt) -> str:
    """`200`, or why there was no answer."""
    if attempt.status_code is not None:
        return str(attempt.status_code)
    return str(ERRORS.get(attempt.error, attempt.error))


def deleting_question(endpoint: Endpoint) -> dict[str, Any]:
    """What the page asks before a webhook goes."""
    return {
        "title": _("Delete the webhook “%(name)s”?") % {"name": endpoint.name},
        "loses": [_("Nothing is sent there any more"), _("the log of its deliveries"), _("its secret")],
        "stays": [_("what the receiver has got"), _("the record of what happened")],
        "yes": _("Delete the webhook"),
    }
