"""Queries for sign-in providers and links."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, Max, QuerySet

from portal.people.accounts.models import User
from portal.people.accounts.policies import require_see_people
from portal.people.identity import registry
from portal.people.identity.config import Provider
from portal.people.identity.models import IdentityLink


def providers_for(actor: User) -> list[Provider]:
    """Return all configured providers.

    Raises `NotAllowed` unless the actor is an administrator or auditor.
    """
    require_see_people(actor)
    return list(registry.all_providers())


def provider_for(actor: User, provider_id: str) -> Provider:
    """Return one provider.

    Raises `NotFound`, and `NotAllowed` unless the actor is an administrator or auditor.
    """
    require_see_people(actor)
    return registry.provider_by_id(provider_id)


def links_of(actor: User, provider: Provider) -> QuerySet[IdentityLink]:
    """Return the links of a provider, by user name.

    Raises `NotAllowed` unless the actor is an administrator or auditor.
    """
    require_see_people(actor)
    return (
        IdentityLink.objects.filter(provider=provider.id)
        .select_related("user")
        .order_by("user__username", "pk")
    )


def figures() -> dict[str, Any]:
    """Return number of linked accounts (`accounts`) and last sign-in (`last`) by provider."""
    rows = IdentityLink.objects.values("provider").annotate(accounts=Count("pk"), last=Max("last_sign_in_at"))
    return {row["provider"]: row for row in rows.order_by("provider")}
