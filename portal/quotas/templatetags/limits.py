"""Numbers of resources in people's units, and what the menu says of requests."""

from __future__ import annotations

from typing import Any

from django import template

from portal.quotas import deciders, resources
from portal.quotas.models import QuotaRequest, RequestStatus

register = template.Library()


@register.simple_tag
def spoken(resource: str, amount: int) -> str:
    """The number with its unit, without the resource's name: "64 GiB"."""
    return resources.spoken(resource, amount)


@register.simple_tag(takes_context=True)
def requests_to_decide(context: dict[str, Any]) -> int:
    """How many open requests the reader may decide: two queries at most, since it is on every page."""
    user = getattr(context.get("request"), "user", None)
    if user is None or not user.is_authenticated:
        return 0
    return QuotaRequest.objects.filter(deciders.decidable_by(user), status=RequestStatus.OPEN).count()
