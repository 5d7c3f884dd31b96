"""Reads of the catalog. Everybody who is signed in may see all of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import QuerySet

from portal.catalog.models import Flavor, Template
from portal.common.errors import InvalidInput
from portal.common.reasons.codes import CatalogCode, CommonCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, next_action_of
from portal.common.texts import strip_nul
from portal.inventory.models import Node


def templates() -> QuerySet[Template]:
    return Template.objects.filter(enabled=True)


def flavors() -> QuerySet[Flavor]:
    return Flavor.objects.filter(enabled=True).select_related("pool")


def template_by_slug(slug: str) -> Template:
    found = templates().filter(slug=strip_nul(slug)).first()
    if found is None:
        known = {"known": list(templates().values_list("slug", flat=True))}
        raise InvalidInput(
            Reason(CatalogCode.NO_SUCH_TEMPLATE, {"slug": slug, **known}),
            errors={"template": [Reason(CommonCode.CHOOSE_ONE_OF, known)]},
        )
    return found


def flavor_by_slug(slug: str) -> Flavor:
    found = flavors().filter(slug=strip_nul(slug)).first()
    if found is None:
        known = {"known": list(flavors().values_list("slug", flat=True)[:20])}
        raise InvalidInput(
            Reason(CatalogCode.NO_SUCH_FLAVOR, {"slug": slug, **known}),
            errors={"flavor": [Reason(CommonCode.CHOOSE_ONE_OF, known)]},
        )
    return found


@dataclass(frozen=True, slots=True)
class TemplateOffer:
    """A template card, and why it cannot be had, or None."""

    template: Template
    blocker: Reason | None = None

    @property
    def reason(self) -> str:
        """Why it cannot be had, in a sentence, or an empty string."""
        return message_of(self.blocker) if self.blocker else ""

    @property
    def next_action(self) -> str:
        """What to do about it, or an empty string."""
        return next_action_of(self.blocker) if self.blocker else ""


def template_offers() -> list[TemplateOffer]:
    """Every template, with the reason where no node has its program."""
    nodes = list(Node.objects.filter(pool__simulated=False, pool__enabled=True).only("programs"))
    offers = []
    for template in templates():
        if nodes and missing_program(template, nodes):
            missing = {"program": template.program, "install_hint": template.install_hint}
            offers.append(TemplateOffer(template, Reason(CatalogCode.TEMPLATE_UNAVAILABLE, missing)))
        else:
            offers.append(TemplateOffer(template))
    return offers


def missing_program(template: Template, nodes: Iterable[Node]) -> bool:
    """Whether no node has the template's program. Simulated nodes have every program."""
    return not any(node.programs.get(template.program) for node in nodes)
