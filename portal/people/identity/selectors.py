"""Reads of sign-in providers and links, for administrators."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, Max, QuerySet

from portal.people.accounts.models import User
from portal.people.accounts.policies import require_see_people
from portal.people.identity import registry
from portal.people.identity.config import Provider
from portal.people.identity.models import IdentityLink


def providers_for(actor: User) -> list[Provider]:
    """All that are configured; for administrators and auditors."""
    require_see_people(actor)
    return list(registry.every())


def provider_for(actor: User, provider_id: str) -> Provider:
    """One of them; for administrators, and to be read by auditors. Raises `NotFound`."""
    require_see_people(actor)
    return registry.named(provider_id)


def links_of(actor: User, provider: Provider) -> QuerySet[IdentityLink]:
    """Whose accounts belong to identities of a provider, by name; for those who see people."""
    require_see_people(actor)
    return (
        IdentityLink.objects.filter(provider=provider.id)
        .select_related("user")
        .order_by("user__username", "pk")
    )


def figures() -> dict[str, Any]:
    """How many accounts are linked to each provider (`accounts`), and its last sign-in (`last`)."""
    rows = IdentityLink.objects.values("provider").annotate(accounts=Count("pk"), last=Max("last_sign_in_at"))
    return {row["provider"]: row for row in rows.order_by("provider")}
