"""Reads of the catalog. Everybody who is signed in may see all of it."""

from __future__ import annotations

from django.db.models import QuerySet

from portal.catalog.models import Flavor, Template
from portal.common.errors import InvalidInput
from portal.common.texts import storable


def templates() -> QuerySet[Template]:
    return Template.objects.filter(enabled=True)


def flavors() -> QuerySet[Flavor]:
    return Flavor.objects.filter(enabled=True).select_related("pool")


def template_by_slug(slug: str) -> Template:
    found = templates().filter(slug=storable(slug)).first()
    if found is None:
        known = ", ".join(templates().values_list("slug", flat=True))
        raise InvalidInput(
            f"There is no template “{slug}”.",
            next_action=f"Choose one of: {known}.",
            errors={"template": [f"Choose one of: {known}."]},
        )
    return found


def flavor_by_slug(slug: str) -> Flavor:
    found = flavors().filter(slug=storable(slug)).first()
    if found is None:
        known = ", ".join(flavors().values_list("slug", flat=True)[:20])
        raise InvalidInput(
            f"There is no flavor “{slug}”.",
            next_action=f"Choose one of: {known}.",
            errors={"flavor": [f"Choose one of: {known}."]},
        )
    return found
