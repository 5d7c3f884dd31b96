"""Disables webhooks that keep failing, and notifies their owners."""

from __future__ import annotations

from collections.abc import Iterable

from django.conf import settings
from django.db.models import Q
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.common.actors import SYSTEM
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.notify.webhooks.models import Endpoint
from portal.people.accounts import selectors as accounts
from portal.people.accounts.models import User


def disable(endpoint: Endpoint, *, receiver_gone: bool) -> None:
    """Disable a locked endpoint in the caller's transaction.

    With `receiver_gone`, the receiver responded with 410.
    """
    endpoint.enabled, endpoint.disabled_at = False, timezone.now()
    endpoint.save(update_fields=["enabled", "disabled_at"])
    events.record(
        actor=SYSTEM,
        kind=AuditKind.WEBHOOK_DISABLED,
        team=endpoint.team,
        message=f"disabled the webhook “{endpoint.name}”",
        data={"webhook": str(endpoint.pk), "gone": receiver_gone},
    )
    days = settings.BERTH_WEBHOOK_DISABLE_DAYS
    reason = (
        _("The receiver responded that it is gone (410).")
        if receiver_gone
        else ngettext(
            "Deliveries have failed for %(count)d day.", "Deliveries have failed for %(count)d days.", days
        )
        % {"count": days}
    )
    events.notify(
        _recipients(endpoint),
        "webhook.disabled",
        _("Webhook “%(name)s” was disabled") % {"name": endpoint.name},
        _("%(why)s Fix the receiver, then enable the webhook.") % {"why": reason},
        reverse("webhooks:detail", args=[endpoint.pk]),
    )


def _recipients(endpoint: Endpoint) -> Iterable[User]:
    """Return the team's owners; for a site webhook its creator if an operator, else all operators."""
    if endpoint.team is not None:
        return accounts.owners_of(endpoint.team)
    creator = endpoint.created_by
    if creator is not None and creator.operates:
        return [creator]
    return User.objects.filter(Q(is_operator=True) | Q(is_superuser=True), is_active=True)
