"""Presenters of the form for new workspaces: cards with their verdicts, and the current choice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from portal.catalog import selectors as catalog
from portal.catalog.environments.models import Kind
from portal.catalog.models import Flavor, Template
from portal.catalog.repositories.rules import Source
from portal.catalog.selectors import NodePrograms
from portal.common.completion import Option
from portal.common.formatting import format_size
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import sentence_of
from portal.common.texts import strip_nul
from portal.people.accounts.models import Team, User
from portal.people.accounts.selectors import chargeable_teams
from portal.quota.limits.presenters.bars import QuotaUsage
from portal.quota.limits.selectors import limits
from portal.scheduling import admission, home_offers, offers
from portal.scheduling.verdicts import Outcome, Verdict
from portal.web.catalog.environments import environment_states
from portal.web.home.presenters.environment_field import (
    EnvironmentOption,
    default_name,
    environment_field,
    node_software_name,
)
from portal.web.home.presenters.later_flavors import LaterFlavors
from portal.workspaces import selectors, software
from portal.workspaces.codes import GitCode
from portal.workspaces.models import Workspace

E = TypeVar("E", Template, Flavor)
NO_LATER_FLAVORS = LaterFlavors()
CARDS = 48
"""Maximum number of templates, and of flavors, on a page."""


def deprecated(entry: Template | Flavor) -> str:
    """Return a deprecation notice with the successor, or an empty string."""
    reason = catalog.deprecation_of(entry)
    return sentence_of(reason) if reason is not None else ""


@dataclass(frozen=True, slots=True)
class FlavorCard:
    """A flavor to choose, with its size as text and its verdict."""

    flavor: Flavor
    size: str
    verdict: Verdict
    chosen: bool

    @property
    def deprecated(self) -> str:
        """The recommended successor, if the flavor is deprecated."""
        return deprecated(self.flavor)


@dataclass(frozen=True, slots=True)
class TemplateCard:
    """A template to choose; `reason` explains why it is not available."""

    template: Template
    reason: str
    chosen: bool
    environment: str = ""

    @property
    def deprecated(self) -> str:
        """The recommended successor, if the template is deprecated."""
        return deprecated(self.template)

    @property
    def available(self) -> bool:
        return not self.reason


@dataclass(frozen=True, slots=True)
class NewWorkspaceChoice:
    """The current state of the form of a new workspace. `last` is the actor's most recent setup.

    `teams` may be charged. `git_missing`: no node can clone a repository.
    """

    last: Workspace | None
    teams: list[Team]
    git_missing: bool
    templates: list[TemplateCard]
    team: Team | None
    find: str
    left_out: int
    bars: list[QuotaUsage]
    flavors: list[FlavorCard] = field(default_factory=list)
    alternatives: list[Flavor] = field(default_factory=list)
    environments: list[EnvironmentOption] = field(default_factory=list)
    environment_note: str = ""
    written_environment: str = ""
    """The requested slug, for a text field if there are too many environments for a list."""
    many_environments: bool = False
    without_gpu: Verdict | None = None
    """Verdict on a start without GPUs, if that starts at once while the chosen flavor would wait."""
    later: list[Flavor] = field(default_factory=list)
    """Further flavors in order of preference."""
    of_all: Verdict | None = None
    """Verdict on the chosen flavor and the further flavors together."""
    with_home: Verdict | None = None
    """Verdict on a start that moves a large home folder to another machine."""

    @property
    def template(self) -> Template | None:
        return next((card.template for card in self.templates if card.chosen), None)

    @property
    def environment(self) -> str:
        """The slug of the chosen environment; empty for the template's own."""
        return next((environment.slug for environment in self.environments if environment.chosen), "")

    @property
    def runs_in(self) -> str:
        """The name of the environment that the workspace would use."""
        return next((environment.taken for environment in self.environments if environment.chosen), "")

    @property
    def environment_names(self) -> list[Option]:
        """Suggestions for the text field of the environment."""
        return [
            (environment.slug, environment.label)
            for environment in self.environments
            if environment.slug and not environment.reason
        ]

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
    def verdict(self) -> Verdict | None:
        if self.of_all is not None:
            return self.of_all
        return self.chosen_flavor.verdict if self.chosen_flavor else None

    @property
    def needs_approval(self) -> bool:
        """Whether the workspace starts only after an approval."""
        return self.verdict is not None and self.verdict.outcome is Outcome.NEEDS_APPROVAL


@dataclass(frozen=True, slots=True)
class GitFields:
    """The repository fields.

    `default` is the template's URL; `unavailable` explains why nothing can be cloned.
    """

    url: str
    ref: str
    secret: str
    default: str
    unavailable: str


def git_fields(choice: NewWorkspaceChoice, written: Source) -> GitFields:
    """Return the repository fields with the submitted values."""
    return GitFields(
        **written,
        default=choice.template.git_url if choice.template is not None else "",
        unavailable=sentence_of(Reason(GitCode.NOT_INSTALLED)) if choice.git_missing else "",
    )


def choice(
    actor: User,
    *,
    template: str,
    flavor: str,
    team: str,
    expected_s: int | None = None,
    find: str = "",
    environment: str | None = None,
    later: LaterFlavors = NO_LATER_FLAVORS,
) -> NewWorkspaceChoice:
    """Return the form with these slugs chosen.

    Empty or unknown slugs are replaced by the most recent setup, or else by a usable entry. `expected_s` is
    the expected time in seconds, if known. `find` limits templates and flavors to those with these words and
    the chosen ones; up to `CARDS` of each are shown. `environment` is empty for the template's own, and
    `None` for the last choice.
    """
    last, teams = selectors.last_choice(actor), list(chargeable_teams(actor))
    preferences = _Preferences(actor, last, template, flavor, team, environment, expected_s, find)
    chosen_team, programs = _choose_team(preferences, teams), catalog.node_programs()
    on_nodes = node_software_name(actor, chosen_team)
    templates, left_out = _template_cards(preferences, chosen_team, on_nodes, programs)
    form = NewWorkspaceChoice(
        last=last,
        teams=teams,
        git_missing=programs.lack("git"),
        templates=templates,
        team=chosen_team,
        find=find,
        left_out=left_out,
        bars=_bars(actor, chosen_team),
        written_environment=environment or "",
    )
    if form.template is None:
        return form
    slug = _environment_slug(preferences, form.template)
    environments = environment_field(actor, form.template, chosen_team, slug, on_nodes)
    flavors = _flavor_field(preferences, form.template, chosen_team, environments.software.digest)
    form = replace(
        form,
        left_out=left_out + flavors.left_out,
        flavors=flavors.cards,
        alternatives=flavors.alternatives,
        without_gpu=flavors.without_gpu,
        with_home=flavors.with_home,
        environments=environments.options,
        environment_note=environments.note,
        many_environments=environments.many,
        written_environment=slug,
    )
    return _with_later_flavors(form, preferences, later, environments.software.digest)


def _with_later_flavors(
    form: NewWorkspaceChoice, preferences: _Preferences, later: LaterFlavors, environment: str
) -> NewWorkspaceChoice:
    """Return the form with the fields for further flavors, and the verdict on all flavors."""
    if form.flavor is None or form.team is None or form.template is None or not later.slugs:
        return form
    by_slug = {card.flavor.slug: card.flavor for card in form.flavors}
    allowed = (by_slug[slug] for slug in dict.fromkeys(later.slugs) if slug in by_slug)
    chosen = [
        flavor for flavor in allowed if flavor != form.flavor and flavor.simulated == form.flavor.simulated
    ]
    if not chosen or not later.valid:
        return form
    verdict = admission.assess_choices(
        template=form.template,
        flavors=[form.flavor, *chosen],
        start_within_s=later.start_within_s,
        team=form.team,
        actor=preferences.actor,
        expected_s=preferences.expected_s,
        environment=environment,
    )
    waits = verdict.outcome is Outcome.QUEUED
    return replace(form, later=chosen, of_all=verdict, without_gpu=form.without_gpu if waits else None)


@dataclass(frozen=True, slots=True)
class _Preferences:
    """The requested slugs, and the last workspace for defaults."""

    actor: User
    last: Workspace | None
    template: str
    flavor: str
    team: str
    environment: str | None
    expected_s: int | None
    find: str

    @property
    def teams(self) -> tuple[str, str]:
        return self.team, self.last.team.slug if self.last else ""

    @property
    def templates(self) -> tuple[str, str]:
        return self.template, self.last.template.slug if self.last else ""

    @property
    def flavors(self) -> tuple[str, str]:
        return self.flavor, self.last.flavor.slug if self.last else ""


@dataclass(frozen=True, slots=True)
class _FlavorField:
    """The available flavors, and alternatives to the chosen one."""

    cards: list[FlavorCard]
    alternatives: list[Flavor]
    without_gpu: Verdict | None
    with_home: Verdict | None
    left_out: int


def _choose_team(preferences: _Preferences, teams: Iterable[Team]) -> Team | None:
    """Return the team that is charged, or `None` if the actor has none."""
    by_slug = {team.slug: team for team in teams}
    return by_slug.get(_pick(list(by_slug), *preferences.teams))


def _template_cards(
    preferences: _Preferences, team: Team | None, on_nodes: str, programs: NodePrograms
) -> tuple[list[TemplateCard], int]:
    """Return the team's templates, one of them chosen if available, and the number of hidden ones."""
    offered = catalog.templates_of(team) if team is not None else Template.objects.none()
    templates, left_out = _visible_entries(
        list(offered), preferences.find, _first_preference(preferences.templates)
    )
    cards = catalog.template_offers(templates, programs)
    usable = [offer.template for offer in cards if not offer.reason]
    current = [template.slug for template in usable if not template.deprecated]
    chosen = _pick([template.slug for template in usable], *preferences.templates, *current[:1])
    defaults = software.defaults_of([offer.template for offer in cards], team)
    state_texts = environment_states(offer.template for offer in cards)
    return [
        TemplateCard(
            template=offer.template,
            reason=" ".join(part for part in (offer.reason, offer.next_action) if part),
            chosen=offer.template.slug == chosen,
            environment=_runs_in(offer.template, defaults[offer.template.pk], on_nodes, state_texts),
        )
        for offer in cards
    ], left_out


def _environment_slug(preferences: _Preferences, template: Template) -> str:
    """Return the slug of the requested environment, or that of the last workspace with this template."""
    if preferences.environment is not None:
        return preferences.environment
    last = preferences.last
    before = software.environment_to_repeat(last) if last is not None and last.template == template else None
    return before.slug if before is not None else ""


def _flavor_field(
    preferences: _Preferences, template: Template, team: Team | None, environment: str
) -> _FlavorField:
    """Return the flavors with verdicts for this environment digest, one of them chosen."""
    choosable = offers.choosable_flavors(preferences.actor, team)
    flavors, left_out = _visible_entries(choosable, preferences.find, _first_preference(preferences.flavors))
    flavor_offers = offers.flavor_offers(
        template,
        team,
        preferences.actor,
        expected_s=preferences.expected_s,
        flavors=flavors,
        environment=environment,
    )
    chosen = _choose_flavor(preferences, flavor_offers)
    alternatives: list[Flavor] = []
    if chosen is not None and not chosen.verdict.starts_now:
        alternatives = [offer.flavor for offer in offers.alternatives(flavor_offers, chosen.flavor)]
    without_gpu = with_home = None
    if chosen is not None and team is not None:
        requested: dict[str, Any] = {
            "template": template,
            "flavor": chosen.flavor,
            "team": team,
            "actor": preferences.actor,
            "expected_s": preferences.expected_s,
            "environment": environment,
        }
        without_gpu = admission.verdict_without_gpus(chosen.verdict, **requested)
        with_home = home_offers.verdict_with_home_move(chosen.verdict, **requested)
    cards = [
        FlavorCard(
            flavor=offer.flavor,
            size=format_size(offer.flavor.as_request()),
            verdict=offer.verdict,
            chosen=offer is chosen,
        )
        for offer in flavor_offers
    ]
    return _FlavorField(cards, alternatives, without_gpu, with_home, left_out)


def _choose_flavor(
    preferences: _Preferences, flavor_offers: Sequence[offers.FlavorOffer]
) -> offers.FlavorOffer | None:
    """Return the requested flavor, else the last one, else one that starts now."""
    by_slug = {offer.flavor.slug: offer for offer in flavor_offers}
    # A flavor that needs an approval is never chosen by default.
    choosable = [
        slug
        for slug, offer in by_slug.items()
        if slug == preferences.flavor and offer.verdict.outcome is Outcome.NEEDS_APPROVAL
    ]
    choosable += [slug for slug, offer in by_slug.items() if offer.verdict.possible]
    now = [slug for slug, offer in by_slug.items() if offer.verdict.starts_now]
    return by_slug.get(_pick(choosable, *preferences.flavors, *now[:1]))


def _first_preference(preferences: tuple[str, str]) -> str:
    return preferences[0] or preferences[1]


def _visible_entries(entries: list[E], find: str, chosen: str) -> tuple[list[E], int]:
    """Return up to `CARDS` matching entries including the chosen one, and the number of hidden ones.

    If nothing matches, the words are probably for the other kind, so all entries are shown.
    """
    terms = strip_nul(find).lower().split()[:10]
    matching = {
        entry.pk
        for entry in entries
        if all(term in f"{entry.name} {entry.slug} {entry.description}".lower() for term in terms)
    }
    matches = [entry for entry in entries if not matching or entry.pk in matching or entry.slug == chosen]
    cards = matches[:CARDS]
    if len(matches) > CARDS and (
        chosen_entry := next((entry for entry in matches[CARDS:] if entry.slug == chosen), None)
    ):
        cards[-1] = chosen_entry
    return cards, len(entries) - len(cards)


def _runs_in(
    template: Template, default: software.Software, on_nodes: str, state_texts: Mapping[str, str]
) -> str:
    """Return the name of the environment to use, with the state of the template's own unless ready.

    `on_nodes` names the nodes' software. Returns an empty string for a template without an environment.
    """
    own = template.environment
    if own is None or own.kind == Kind.NODE:
        return ""
    taken = default_name(default, on_nodes)
    if own.enabled and own.current is not None and not own.deprecated:
        return taken
    state = state_texts[own.slug]
    return f"{taken} · {state}" if default.environment == own else f"{taken} · {own.name} {state}"


def _bars(actor: User, team: Team | None) -> list[QuotaUsage]:
    """Return the limits of the team for the summary."""
    return [bar for bar in limits.team_usage(team, actor) if not bar.unlimited] if team is not None else []


def _pick(among: Sequence[str], *preferred: str) -> str:
    """Return the first preferred value among the options, else the first option, else an empty string."""
    return next((choice for choice in preferred if choice in among), among[0] if among else "")
