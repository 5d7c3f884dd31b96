"""Reads of the catalog. Everybody who is signed in may see all of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import QuerySet

from portal.catalog.models import Flavor, Template
from portal.common.errors import InvalidInput
from portal.common.texts import storable
from portal.inventory.models import Node


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


@dataclass(frozen=True, slots=True)
class TemplateOffer:
    """A template card. `reason` says why it cannot be had, with `next_action`, or is empty."""

    template: Template
    reason: str = ""
    next_action: str = ""


def template_offers() -> list[TemplateOffer]:
    """Every template, with the reason where no node has its program."""
    nodes = list(Node.objects.filter(pool__simulated=False, pool__enabled=True).only("programs"))
    offers = []
    for template in templates():
        if nodes and missing_program(template, nodes):
            offers.append(
                TemplateOffer(
                    template,
                    f"Needs {template.program}, which no node has.",
                    template.install_hint,
                )
            )
        else:
            offers.append(TemplateOffer(template))
    return offers


def missing_program(template: Template, nodes: Iterable[Node]) -> bool:
    """Whether no node has the template's program. Simulated nodes have every program."""
    return not any(node.programs.get(template.program) for node in nodes)
