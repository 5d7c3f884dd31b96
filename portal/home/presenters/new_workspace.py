"""The form of a new workspace: cards to choose from, each with its verdict, and what is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from django.utils.translation import gettext as _

from portal.accounts.models import Team, User
from portal.accounts.selectors import chargeable_teams
from portal.catalog import selectors as catalog
from portal.catalog.models import Flavor, Template
from portal.catalog_pages.environments import standings_of
from portal.common.completion import MOST_IN_A_LIST, Option
from portal.common.formatting import format_size
from portal.common.reasons.codes import EnvironmentCode, GitCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, sentence_of
from portal.common.texts import strip_nul
from portal.environments import selectors as environments
from portal.environments.models import Kind, VersionState
from portal.quotas.presenters.bars import QuotaUsage
from portal.quotas.selectors import limits
from portal.repositories.rules import Source
from portal.scheduling import admission, offers
from portal.workspaces import selectors, software

E = TypeVar("E", Template, Flavor)
CARDS = 48
"""How many templates, and how many flavors, a page shows."""


def deprecated(entry: Template | Flavor) -> str:
    """That it is deprecated and what to choose instead, or an empty string."""
    reason = catalog.deprecation_of(entry)
    return sentence_of(reason) if reason is not None else ""


@dataclass(frozen=True, slots=True)
class FlavorCard:
    """A flavor to choose, with its size in words and its verdict."""

    flavor: Flavor
    size: str
    verdict: admission.Verdict
    chosen: bool

    @property
    def deprecated(self) -> str:
        """What to choose instead, where it is deprecated."""
        return deprecated(self.flavor)


@dataclass(frozen=True, slots=True)
class TemplateCard:
    """A template to choose; `reason` says why it cannot be."""

    template: Template
    reason: str
    chosen: bool
    environment: str = ""

    @property
    def deprecated(self) -> str:
        """What to choose instead, where it is deprecated."""
        return deprecated(self.template)

    @property
    def available(self) -> bool:
        return not self.reason


@dataclass(frozen=True, slots=True)
class EnvironmentOption:
    """An environment to choose; `reason` says why it cannot be had now."""

    slug: str
    label: str
    chosen: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the form of a new workspace stands at."""

    templates: list[TemplateCard]
    flavors: list[FlavorCard]
    team: Team | None
    find: str
    left_out: int
    alternatives: list[Flavor]
    bars: list[QuotaUsage]
    environments: list[EnvironmentOption] = field(default_factory=list)
    environment_note: str = ""
    written_environment: str = ""
    """The short name in its field, where there are too many for a list: the one that was asked for."""
    many_environments: bool = False
    without_gpu: admission.Verdict | None = None
    """On a start without the GPUs of the chosen flavor, where it starts at once so and else would wait."""

    @property
    def template(self) -> Template | None:
        return next((card.template for card in self.templates if card.chosen), None)

    @property
    def environment(self) -> str:
        """The short name of the environment that is chosen; empty for the template's own."""
        return next((each.slug for each in self.environments if each.chosen), "")

    @property
    def environment_names(self) -> list[Option]:
        """What is proposed for the field of a short name."""
        return [(each.slug, each.label) for each in self.environments if each.slug and not each.reason]

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


@dataclass(frozen=True, slots=True)
class GitFields:
    """The fields of a repository. `default` is its template's; `unavailable` says why none can be cloned."""

    url: str
    ref: str
    secret: str
    default: str
    unavailable: str

    @property
    def shown(self) -> bool:
        """Whether the fields are open: they are folded up while they are empty."""
        return bool(self.url or self.ref or self.secret)


def git_fields(template: Template | None, written: Source) -> GitFields:
    """The fields as they stand."""
    missing = catalog.tool_is_missing("git")
    return GitFields(
        **written,
        default=template.git_url if template is not None else "",
        unavailable=sentence_of(Reason(GitCode.NOT_INSTALLED)) if missing else "",
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
) -> Choice:
    """The form with these slugs chosen; for an empty or unknown one the last choice, else one that works.

    `expected_s` is how long the workspace is needed, where that was said. With `find`, only templates and
    flavors with these words are shown, beside what is chosen; in any case at most `CARDS` of each.
    `environment` is empty for the template's own, and None where nothing was said: then the last choice's.
    """
    last = selectors.last_choice(actor)
    teams = {item.slug: item for item in chargeable_teams(actor)}
    team_slug = _pick(list(teams), team, last.team.slug if last else "")
    offered = catalog.templates_of(teams[team_slug]) if team_slug else Template.objects.none()
    kept, hidden = _shown(list(offered), find, template or (last.template.slug if last else ""))
    cards = catalog.template_offers(kept)
    usable = [offer.template.slug for offer in cards if not offer.reason]
    current = [offer.template.slug for offer in cards if not offer.reason and not offer.template.deprecated]
    picked = _pick(usable, template, last.template.slug if last else "", *current[:1])
    flavors: list[FlavorCard] = []
    nearest: list[Flavor] = []
    spared: admission.Verdict | None = None
    options: list[EnvironmentOption] = []
    note = ""
    many = False
    chosen_template = next((offer.template for offer in cards if offer.template.slug == picked), None)
    if chosen_template is not None:
        wanted = flavor or (last.flavor.slug if last else "")
        shown, more = _shown(offers.choosable(actor, teams.get(team_slug)), find, wanted)
        hidden += more
        if environment is None:
            before = software.again(last) if last and last.template == chosen_template else None
            environment = before.slug if before is not None else ""
        runs_in, options, note, many = _environments(
            actor, chosen_template, teams.get(team_slug), environment
        )
        sized = offers.flavor_offers(
            chosen_template,
            teams.get(team_slug),
            actor,
            expected_s=expected_s,
            flavors=shown,
            environment=runs_in.digest,
        )
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
        if chosen is not None and team_slug:
            spared = admission.without_gpus(
                chosen.verdict,
                template=chosen_template,
                flavor=chosen.flavor,
                team=teams[team_slug],
                actor=actor,
                expected_s=expected_s,
                environment=runs_in.digest,
            )
        flavors = [
            FlavorCard(
                flavor=offer.flavor,
                size=format_size(offer.flavor.as_request()),
                verdict=offer.verdict,
                chosen=offer.flavor.slug == flavor_slug,
            )
            for offer in sized
        ]
    standings = standings_of(offer.template for offer in cards)
    return Choice(
        templates=[
            TemplateCard(
                template=offer.template,
                reason=" ".join(part for part in (offer.reason, offer.next_action) if part),
                chosen=offer.template.slug == picked,
                environment=_runs_in(offer.template, standings),
            )
            for offer in cards
        ],
        flavors=flavors,
        team=teams.get(team_slug),
        find=find,
        left_out=hidden,
        alternatives=nearest,
        bars=_bars(actor, teams.get(team_slug)),
        environments=options,
        environment_note=note,
        written_environment=environment or "",
        many_environments=many,
        without_gpu=spared,
    )


def _shown(entries: list[E], find: str, chosen: str) -> tuple[list[E], int]:
    """Those that have the words, with the chosen one, at most `CARDS`; and how many more there are.

    Words that none has are those of the other kind: then all of these are shown.
    """
    words = strip_nul(find).lower().split()[:10]
    having = {
        entry.pk
        for entry in entries
        if all(word in f"{entry.name} {entry.slug} {entry.description}".lower() for word in words)
    }
    found = [entry for entry in entries if not having or entry.pk in having or entry.slug == chosen]
    kept = found[:CARDS]
    if len(found) > CARDS and (mine := next((each for each in found[CARDS:] if each.slug == chosen), None)):
        kept[-1] = mine
    return kept, len(entries) - len(kept)


def _runs_in(template: Template, standings: Mapping[str, str]) -> str:
    """“Data science”, and how it stands where it is not ready; empty for what each node has."""
    environment = template.environment
    if environment is None or environment.kind == Kind.NODE:
        return ""
    ready = environment.enabled and environment.current is not None and not environment.deprecated
    return environment.name if ready else f"{environment.name} · {standings[environment.slug]}"


def _environments(
    actor: User, template: Template, team: Team | None, slug: str
) -> tuple[software.Software, list[EnvironmentOption], str, bool]:
    """What it would run in, the environments to choose from, and what to know of the one that is chosen.

    At last whether there are more than a list has; the one that is asked for is among them in any case.
    """
    default = software.default_of(template, team)
    own = template.environment
    waits = software.refusal_of(template, team, own) if own is not None else None
    # One that could not be built is for operators to look at: who starts something gets another one.
    said = waits is not None and waits.params.get("state") == VersionState.BUILDING
    chosen, note = default, message_of(waits) if waits is not None and said else ""
    options = []
    minimal = str(_("what its node has"))
    usable = environments.usable_by(actor, team).defer("current__packages")
    rows = list(usable[: MOST_IN_A_LIST + 1])
    many = len(rows) > MOST_IN_A_LIST
    if slug and many and all(each.slug != slug for each in rows):
        rows += usable.filter(slug=slug)
    # In a list what cannot be had cannot be chosen; what was written stands there with what is wrong.
    known = not slug or any(each.slug == slug for each in rows)
    wrong = Reason(EnvironmentCode.NO_SUCH_ENVIRONMENT) if many and not known else None
    coming = environments.coming(rows)
    for each in rows:
        refusal = software.refusal_of(template, team, each, coming.get(each.pk))
        if many and each.slug == slug and refusal is not None:
            wrong = refusal
        picked = each.slug == slug and refusal is None
        if picked:
            warned = software.deprecation_of(each)
            chosen = software.chosen(template, team, each)
            note = sentence_of(warned) if warned is not None else ""
        minimal = each.name if each.kind == Kind.NODE else minimal
        why = message_of(refusal) if refusal is not None else ""
        waited = not why and each.kind == Kind.BUILT and each.current is None
        label = _("%(name)s (is installed first)") % {"name": each.name} if waited else each.name
        options.append(EnvironmentOption(each.slug, label, picked, why))
    if chosen.waits and chosen.environment is not None:
        words = _("“%(name)s” is installed first: your workspace waits, and starts by itself.")
        note = words % {"name": chosen.environment.name}
    name = default.environment.name if default.environment is not None else minimal
    label = _("As the template says: %(name)s") % {"name": name}
    first = EnvironmentOption("", label, not any(each.chosen for each in options))
    return chosen, [first, *options], sentence_of(wrong) if wrong is not None else note, many


def _bars(actor: User, team: Team | None) -> list[QuotaUsage]:
    """What limits the team, for the summary."""
    return [bar for bar in limits.bars_for(team, actor) if not bar.unlimited] if team is not None else []


def _pick(among: Sequence[str], *wishes: str) -> str:
    """The first wish that is among the offered ones, else the first offered, else nothing."""
    return next((wish for wish in wishes if wish in among), among[0] if among else "")
