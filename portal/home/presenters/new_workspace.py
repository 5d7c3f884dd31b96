"""The form of a new workspace: cards to choose from, each with its verdict, and what is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from portal.accounts.models import Team, User
from portal.accounts.selectors import chargeable_teams
from portal.catalog import selectors as catalog
from portal.catalog.models import Flavor, Template
from portal.common.formatting import format_size
from portal.quotas.presenters.bars import QuotaUsage
from portal.quotas.selectors import limits
from portal.scheduling import admission, offers
from portal.workspaces import selectors


@dataclass(frozen=True, slots=True)
class FlavorCard:
    """A flavor to choose, with its size in words and its verdict."""

    flavor: Flavor
    size: str
    verdict: admission.Verdict
    chosen: bool


@dataclass(frozen=True, slots=True)
class TemplateCard:
    """A template to choose; `reason` says why it cannot be."""

    template: Template
    reason: str
    chosen: bool

    @property
    def available(self) -> bool:
        return not self.reason


@dataclass(frozen=True, slots=True)
class Choice:
    """What the form of a new workspace stands at."""

    templates: list[TemplateCard]
    flavors: list[FlavorCard]
    team: Team | None
    alternatives: list[Flavor]
    bars: list[QuotaUsage]

    @property
    def template(self) -> Template | None:
        return next((card.template for card in self.templates if card.chosen), None)

    @property
    def chosen_flavor(self) -> FlavorCard | None:
        return next((card for card in self.flavors if card.chosen), None)

    @property
    def flavor(self) -> Flavor | None:
        return self.chosen_flavor.flavor if self.chosen_flavor else None

    @property
    def size(self) -> str:
        return self.chosen_flavor.size if self.chosen_flavor else ""

    @property
    def verdict(self) -> admission.Verdict | None:
        return self.chosen_flavor.verdict if self.chosen_flavor else None

    @property
    def asks(self) -> bool:
        """Whether it starts only when somebody approves."""
        return self.verdict is not None and self.verdict.outcome is admission.Outcome.NEEDS_APPROVAL


def choice(actor: User, *, template: str, flavor: str, team: str, expected_s: int | None = None) -> Choice:
    """The form with these slugs chosen; for an empty or unknown one the last choice, else one that works.

    `expected_s` is how long the workspace is needed, where that was said.
    """
    last = selectors.last_choice(actor)
    teams = {item.slug: item for item in chargeable_teams(actor)}
    team_slug = _pick(list(teams), team, last.team.slug if last else "")
    offered = catalog.templates_of(teams[team_slug]) if team_slug else Template.objects.none()
    cards = catalog.template_offers(offered)
    usable = [offer.template.slug for offer in cards if not offer.reason]
    current = [offer.template.slug for offer in cards if not offer.reason and not offer.template.deprecated]
    picked = _pick(usable, template, last.template.slug if last else "", *current[:1])
    flavors: list[FlavorCard] = []
    nearest: list[Flavor] = []
    chosen_template = next((offer.template for offer in cards if offer.template.slug == picked), None)
    if chosen_template is not None:
        sized = offers.flavor_offers(chosen_template, teams.get(team_slug), actor, expected_s=expected_s)
        possible = [offer.flavor.slug for offer in sized if offer.verdict.possible]
        asked_for = [
            offer.flavor.slug
            for offer in sized
            if offer.flavor.slug == flavor and offer.verdict.outcome is admission.Outcome.NEEDS_APPROVAL
        ]
        now = [offer.flavor.slug for offer in sized if offer.verdict.outcome is admission.Outcome.FITS_NOW]
        # What needs approval is chosen by a person only, never by default.
        flavor_slug = _pick([*asked_for, *possible], flavor, last.flavor.slug if last else "", *now[:1])
        chosen = next((offer for offer in sized if offer.flavor.slug == flavor_slug), None)
        if chosen is not None and chosen.verdict.outcome is not admission.Outcome.FITS_NOW:
            nearest = [offer.flavor for offer in offers.alternatives(sized, chosen.flavor)]
        flavors = [
            FlavorCard(
                flavor=offer.flavor,
                size=format_size(offer.flavor.as_request()),
                verdict=offer.verdict,
                chosen=offer.flavor.slug == flavor_slug,
            )
            for offer in sized
        ]
    return Choice(
        templates=[
            TemplateCard(
                template=offer.template,
                reason=" ".join(part for part in (offer.reason, offer.next_action) if part),
                chosen=offer.template.slug == picked,
            )
            for offer in cards
        ],
        flavors=flavors,
        team=teams.get(team_slug),
        alternatives=nearest,
        bars=_bars(actor, teams.get(team_slug)),
    )


def _bars(actor: User, team: Team | None) -> list[QuotaUsage]:
    """What limits the team, for the summary."""
    return [bar for bar in limits.bars_for(team, actor) if not bar.unlimited] if team is not None else []


def _pick(among: Sequence[str], *wishes: str) -> str:
    """The first wish that is among the offered ones, else the first offered, else nothing."""
    return next((wish for wish in wishes if wish in among), among[0] if among else "")
