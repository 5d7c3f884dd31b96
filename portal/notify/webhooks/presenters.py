"""Presentation of webhooks and deliveries."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.notify.webhooks.models import Attempt, Delivery, DeliveryState, Endpoint

ERRORS = {
    "refused_address": _(
        "The name does not resolve, or resolves to an internal address that is not allowed."
    ),
    "plain_http": _("External URLs must use https://."),
    "timeout": _("No response in time."),
    "tls": _("The certificate is not valid."),
    "connection": _("Connection failed."),
    "protocol": _("Not a valid HTTP response."),
    "secret_unreadable": _("The secret was saved with another secret key. Rotate the secret."),
    "internal": _("Internal error in the portal."),
}
"""Why there was no response, by error code of the attempt."""
LOOKS = {
    DeliveryState.PENDING: ("loader-2", "busy"),
    DeliveryState.DELIVERED: ("circle-check", "ok"),
    DeliveryState.FAILED: ("alert-circle", "bad"),
}


@dataclass(frozen=True, slots=True)
class EndpointRow:
    """A webhook as a list row. `word`, `icon` and `tone` show its state; `url` may be shortened."""

    endpoint: Endpoint
    url: str
    word: str | Promise
    icon: str
    tone: str


def row_of(endpoint: Endpoint, *, secrets: bool) -> EndpointRow:
    """Return the row of a webhook, with its state. `secrets` shows the full URL."""
    url = endpoint.url if secrets else url_origin(endpoint.url)
    if not endpoint.enabled:
        return EndpointRow(endpoint, url, _("Disabled"), "circle-off", "")
    if endpoint.failing_since is not None:
        return EndpointRow(endpoint, url, _("Failing"), "alert-triangle", "bad")
    return EndpointRow(endpoint, url, _("Enabled"), "circle-check", "ok")


def url_origin(url: str) -> str:
    """Return scheme, host and port of a URL. The rest may contain credentials."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}/" + ("…" if parts.path.strip("/") or parts.query else "")


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """A delivery as a log row, with its attempts."""

    delivery: Delivery
    attempts: list[Attempt]
    icon: str
    tone: str
    secrets: bool

    @property
    def last(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def outcome(self) -> str:
        """Outcome of the last attempt: the status or the error."""
        return outcome_of(self.last) if self.last else ""

    @property
    def body(self) -> str:
        """The payload, formatted."""
        return json.dumps(self.delivery.payload, ensure_ascii=False, indent=2)

    @property
    def shown(self) -> list[tuple[Attempt, str]]:
        return [(attempt, outcome_of(attempt)) for attempt in self.attempts]


def delivery_row(delivery: Delivery, *, secrets: bool) -> DeliveryRow:
    """Return the row of a delivery. `secrets` shows responses, which may contain the URL."""
    icon, tone = LOOKS[DeliveryState(delivery.state)]
    return DeliveryRow(delivery, list(delivery.attempts.all()), icon, tone, secrets)


def outcome_of(attempt: Attempt) -> str:
    """Return the status, such as `200`, or the error."""
    if attempt.status_code is not None:
        return str(attempt.status_code)
    return str(ERRORS.get(attempt.error, attempt.error))


def deleting_question(endpoint: Endpoint) -> dict[str, Any]:
    """Return the context of the confirmation to delete a webhook."""
    return {
        "title": _("Delete the webhook “%(name)s”?") % {"name": endpoint.name},
        "loses": [_("events to this URL"), _("its delivery log"), _("its secret")],
        "stays": [_("events that were delivered"), _("audit log entries")],
        "yes": _("Delete webhook"),
    }
