"""The flavors that somebody may choose from, each with what would happen to it now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from portal.catalog import selectors as catalog
from portal.catalog.models import Flavor, Template
from portal.people.accounts.models import Team, User
from portal.scheduling import admission


@dataclass(frozen=True, slots=True)
class FlavorOffer:
    """A flavor card with its live verdict."""

    flavor: Flavor
    verdict: admission.Verdict


MAX_ASSESSED = 60
"""Of how many flavors one answer holds the verdicts."""


def choosable(actor: User, team: Team | None) -> list[Flavor]:
    """The flavors that may be chosen for a team; without one, all that the actor may choose."""
    rows = catalog.flavors_of(team) if team is not None else catalog.flavors_for(actor).filter(enabled=True)
    return list(rows)


def shortlist(flavors: Sequence[Flavor], chosen: str) -> list[Flavor]:
    """At most `MAX_ASSESSED`, in their order: those that are most like the chosen one, else the first."""
    if len(flavors) <= MAX_ASSESSED:
        return list(flavors)
    like = next((flavor for flavor in flavors if flavor.slug == chosen), None)
    if like is None:
        return list(flavors[:MAX_ASSESSED])
    nearest = sorted(
        flavors,
        key=lambda flavor: (flavor != like, flavor.simulated != like.simulated, *_distance(like, flavor)),
    )
    kept = {flavor.pk for flavor in nearest[:MAX_ASSESSED]}
    return [flavor for flavor in flavors if flavor.pk in kept]


def flavor_offers(
    template: Template,
    team: Team | None,
    actor: User,
    *,
    expected_s: int | None = None,
    flavors: Sequence[Flavor] | None = None,
    environment: str = "",
) -> list[FlavorOffer]:
    """Flavors with what would happen to each now, for this template and team.

    All that may be chosen, or those that are given. `expected_s` is how long it is needed; without it,
    as long as each flavor says. `environment` is the digest of the software that it runs in.
    """
    flavors = choosable(actor, team) if flavors is None else flavors
    verdicts = admission.assess_many(
        template=template,
        flavors=flavors,
        team=team,
        actor=actor,
        expected_s=expected_s,
        environment=environment,
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
        and not offer.flavor.deprecated
    ]

    return sorted(fitting, key=lambda offer: _distance(chosen, offer.flavor))[:limit]


def _distance(chosen: Flavor, flavor: Flavor) -> tuple[bool, int, int]:
    """How far a flavor is from the chosen one: by accelerators, then by memory."""
    wanted = chosen.accelerator_count * chosen.accelerator_milli
    has = flavor.accelerator_count * flavor.accelerator_milli
    return bool(has) != bool(wanted), abs(has - wanted), abs(flavor.memory_mib - chosen.memory_mib)
