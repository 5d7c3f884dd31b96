"""The available flavors with their current verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from portal.catalog import selectors as catalog
from portal.catalog.models import Flavor, Template
from portal.people.accounts.models import Team, User
from portal.scheduling import admission
from portal.scheduling.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class FlavorOffer:
    """A flavor with its current verdict."""

    flavor: Flavor
    verdict: Verdict


MAX_ASSESSED = 60
"""Maximum number of flavors with verdicts in one response."""


def choosable_flavors(actor: User, team: Team | None) -> list[Flavor]:
    """Return the flavors available to a team or, without a team, to the actor."""
    rows = catalog.flavors_of(team) if team is not None else catalog.flavors_for(actor).filter(enabled=True)
    return list(rows)


def shortlist(flavors: Sequence[Flavor], chosen: str) -> list[Flavor]:
    """Return at most `MAX_ASSESSED` flavors in order: the most similar to the chosen one, else the first."""
    if len(flavors) <= MAX_ASSESSED:
        return list(flavors)
    reference = next((flavor for flavor in flavors if flavor.slug == chosen), None)
    if reference is None:
        return list(flavors[:MAX_ASSESSED])
    nearest = sorted(
        flavors,
        key=lambda flavor: (
            flavor != reference,
            flavor.simulated != reference.simulated,
            *_distance(reference, flavor),
        ),
    )
    keys = {flavor.pk for flavor in nearest[:MAX_ASSESSED]}
    return [flavor for flavor in flavors if flavor.pk in keys]


def flavor_offers(
    template: Template,
    team: Team | None,
    actor: User,
    *,
    expected_s: int | None = None,
    flavors: Sequence[Flavor] | None = None,
    environment: str = "",
    move_home: bool = False,
) -> list[FlavorOffer]:
    """Return flavors with their current verdicts for this template and team.

    By default, all available flavors. `expected_s` is the expected duration (default: each flavor's).
    `environment` is the digest of the software environment. `move_home` is as in an order.
    """
    flavors = choosable_flavors(actor, team) if flavors is None else flavors
    verdicts = admission.assess_many(
        template=template,
        flavors=flavors,
        team=team,
        actor=actor,
        expected_s=expected_s,
        environment=environment,
        move_home=move_home,
    )
    return [FlavorOffer(flavor, verdict) for flavor, verdict in zip(flavors, verdicts, strict=True)]


def alternatives(offers: Sequence[FlavorOffer], chosen: Flavor, *, limit: int = 3) -> list[FlavorOffer]:
    """Return flavors that would start now instead of `chosen`, nearest first by accelerators, then memory."""
    fitting = [
        offer
        for offer in offers
        if offer.verdict.starts_now
        and offer.flavor != chosen
        and offer.flavor.simulated == chosen.simulated
        and not offer.flavor.deprecated
    ]

    return sorted(fitting, key=lambda offer: _distance(chosen, offer.flavor))[:limit]


def _distance(chosen: Flavor, flavor: Flavor) -> tuple[bool, int, int]:
    """Return the sort key of a flavor's distance: by accelerators, then by memory."""
    needed = chosen.accelerator_count * chosen.accelerator_milli
    has = flavor.accelerator_count * flavor.accelerator_milli
    return bool(has) != bool(needed), abs(has - needed), abs(flavor.memory_mib - chosen.memory_mib)
