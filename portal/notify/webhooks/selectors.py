"""Queries for webhooks and deliveries visible to the actor."""

from __future__ import annotations

from uuid import UUID

from django.db.models import Count, Prefetch, Q, QuerySet

from portal.common.errors import NotFound
from portal.common.reasons.reason import Reason
from portal.notify.webhooks import policies
from portal.notify.webhooks.codes import WebhookCode
from portal.notify.webhooks.models import Attempt, Delivery, DeliveryState, Endpoint
from portal.people.accounts import selectors as accounts
from portal.people.accounts.models import Team, User


def endpoints_of(actor: User, team: Team | None) -> QuerySet[Endpoint]:
    """Return the webhooks of a team or of the site, with `pending_count`. Raises `NotAllowed`.

    Site webhooks with types about accounts are visible only to administrators and auditors.
    """
    policies.require_see(actor, team)
    hidden = {} if actor.sees_people else {"sensitive": False}
    pending = Count("deliveries", filter=Q(deliveries__state=DeliveryState.PENDING))
    return (
        Endpoint.objects.filter(team=team, **hidden)
        .select_related("team", "created_by")
        .annotate(pending_count=pending)
        .order_by("created_at", "pk")
    )


def endpoint_by_id(actor: User, endpoint_id: UUID) -> Endpoint:
    """Return a webhook visible to the actor.

    Raises `NotFound`, and `NotAllowed` for team members who cannot manage the webhook.
    """
    visible = Q() if actor.sees_all else Q(team__memberships__user=actor)
    endpoint = Endpoint.objects.select_related("team", "created_by").filter(visible, pk=endpoint_id).first()
    if endpoint is None:
        raise NotFound(Reason(WebhookCode.NO_SUCH_WEBHOOK))
    policies.require_see_endpoint(actor, endpoint)
    return endpoint


def managed_endpoint(actor: User, endpoint_id: UUID) -> Endpoint:
    """Return a webhook that the actor may manage. Raises `NotFound` and `NotAllowed`."""
    endpoint = endpoint_by_id(actor, endpoint_id)
    policies.require_endpoint(actor, endpoint)
    return endpoint


def team_of(actor: User, slug: str) -> Team:
    """Return a team whose webhooks the actor may see. Raises `NotFound` and `NotAllowed`."""
    team = accounts.team_by_slug(actor, slug)
    policies.require_see(actor, team)
    return team


def deliveries_of(endpoint: Endpoint) -> QuerySet[Delivery]:
    """Return the deliveries of an endpoint with their attempts, newest first."""
    attempts = Prefetch("attempts", Attempt.objects.order_by("at", "pk"))
    return endpoint.deliveries.prefetch_related(attempts).order_by("-created_at", "-pk")


def delivery_by_id(endpoint: Endpoint, delivery_id: UUID) -> Delivery:
    """Return one delivery of an endpoint. Raises `NotFound`."""
    delivery = deliveries_of(endpoint).filter(pk=delivery_id).first()
    if delivery is None:
        raise NotFound(Reason(WebhookCode.NO_SUCH_DELIVERY))
    return delivery
