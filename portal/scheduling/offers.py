"""The flavors that somebody may choose from, each with what would happen to it now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from portal.accounts.models import Team, User
from portal.catalog import selectors as catalog
from portal.catalog.models import Flavor, Template
from portal.scheduling import admission


@dataclass(frozen=True, slots=True)
class FlavorOffer:
    """A flavor card with its live verdict."""

    flavor: Flavor
    verdict: admission.Verdict


def flavor_offers(
    template: Template, team: Team | None, actor: User, *, expected_s: int | None = None
) -> list[FlavorOffer]:
    """Every flavor with what would happen to it now, for this template and team.

    `expected_s` is how long it is needed; without it, as long as each flavor says.
    """
    flavors = list(catalog.flavors())
    verdicts = admission.assess_many(
        template=template, flavors=flavors, team=team, actor=actor, expected_s=expected_s
    )
    return [FlavorOffer(flavor, verdict) for flavor, verdict in zip(flavors, verdicts, strict=True)]


def alternatives(offers: Sequence[FlavorOffer], chosen: Flavor, *, limit: int = 3) -> list[FlavorOffer]:
    """Flavors that start now in place of `chosen`, the nearest first: as many accelerators, then memory."""
    fitting = [
        offer
        for offer in offers
        if offer.verdict.outcome is admission.Outcome.FITS_NOW
        and offer.flavor != chosen
        and offer.flavor.simulated == chosen.simulated
    ]

    def distance(offer: FlavorOffer) -> tuple[bool, int, int]:
        flavor = offer.flavor
        wanted = chosen.accelerator_count * chosen.accelerator_milli
        has = flavor.accelerator_count * flavor.accelerator_milli
        return (
            bool(has) != bool(wanted),
            abs(has - wanted),
            abs(flavor.memory_mib - chosen.memory_mib),
        )

    return sorted(fitting, key=distance)[:limit]
