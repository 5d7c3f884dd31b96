"""Presents quotas as a matrix of teams and resources, with the entered values."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from django.core.paginator import Page, Paginator
from django.db.models import Q, QuerySet
from django.http import QueryDict

from portal.common.formatting import format_amount, format_input, format_resource, unit_symbol
from portal.common.texts import strip_nul
from portal.people.accounts.models import Team, User
from portal.quota.limits import policies
from portal.quota.limits.presenters.bars import QuotaUsage, sort_resources
from portal.quota.limits.resources import SIMULATED
from portal.quota.limits.selectors import limits, site
from portal.quota.limits.selectors.limits import UsageSnapshot
from portal.quota.limits.selectors.site import SiteLine

ROWS_PER_PAGE = 25
DEFAULT_COLUMNS = 6
MAX_COLUMNS = 8
MAX_QUERY = 100
NO_QUOTA = "-"
"""Marks a missing quota in the name of a field."""


def field_name(team: str, resource: str, quota: int | None) -> str:
    """Return the name of a cell's field, which includes the displayed quota in base units."""
    return f"q/{team}/{resource}/{NO_QUOTA if quota is None else quota}"


@dataclass(frozen=True, slots=True)
class Cell:
    """One team's quota of one resource. `quota` is the stored one, without grants, or None.

    `entered` is the text that the user typed instead, and `problem` its error.
    """

    team: Team
    usage: QuotaUsage
    quota: int | None
    entered: str | None = None
    problem: str = ""

    @property
    def field(self) -> str:
        return field_name(self.team.slug, self.usage.resource, self.quota)

    @property
    def stored(self) -> str:
        """The stored quota for an input field."""
        return format_input(self.usage.resource, self.quota)

    @property
    def value(self) -> str:
        return self.stored if self.entered is None else self.entered

    @property
    def quota_text(self) -> str:
        return format_amount(self.usage.resource, self.quota) if self.quota is not None else ""

    @property
    def has_bar(self) -> bool:
        """Whether the cell has a bar."""
        usage = self.usage
        return not usage.unlimited and bool(usage.used or usage.queued or usage.quota)


@dataclass(frozen=True, slots=True)
class Column:
    """A resource, with the sum over all teams for readers of the whole site."""

    resource: str
    line: SiteLine | None

    @property
    def label(self) -> str:
        return format_resource(self.resource)

    @property
    def unit(self) -> str:
        """The unit of amounts, or "" if the label includes it."""
        return unit_symbol(self.resource)


@dataclass(frozen=True, slots=True)
class Choice:
    """A resource that can be shown as a column."""

    resource: str
    label: str
    selected: bool


@dataclass(frozen=True, slots=True)
class QuotaMatrix:
    """A page of the matrix. `total` counts the visible teams, regardless of the search."""

    columns: Sequence[Column]
    choices: Sequence[Choice]
    rows: Sequence[tuple[Team, Sequence[Cell]]]
    page: Page[Team]
    q: str
    total: int
    of_site: bool
    entered: int

    @property
    def problems(self) -> Sequence[Cell]:
        return [cell for _team, cells in self.rows for cell in cells if cell.problem]


def teams_visible(actor: User) -> QuerySet[Team]:
    """Return the teams whose quotas the actor may see, by name."""
    teams = Team.objects.order_by("name", "slug")
    return teams if policies.sees_every_team(actor) else teams.filter(memberships__user=actor)


def matrix_of(
    actor: User,
    data: QueryDict,
    *,
    entered: Mapping[str, str] | None = None,
    problems: Mapping[str, str] | None = None,
) -> QuotaMatrix:
    """Return one page of the matrix. `data` has `q`, `resource` (repeated) and `page`.

    `entered` and `problems` are by field name without the stored quota; such cells are shown first and on
    this page.
    """
    entered, problems = entered or {}, problems or {}
    of_site = policies.sees_every_team(actor)
    teams = teams_visible(actor)
    total = teams.count()
    q = strip_nul(data.get("q", "")).strip()[:MAX_QUERY]
    edited = {_place(name)[0] for name in entered}
    if q:
        teams = teams.filter(Q(name__icontains=q) | Q(slug__icontains=q) | Q(slug__in=edited))
    page = Paginator(teams, ROWS_PER_PAGE).get_page(data.get("page"))
    shown = list(page.object_list)
    missing = edited - {team.slug for team in shown}
    shown += teams_visible(actor).filter(slug__in=missing) if missing else []
    now = limits.usage_snapshot() if of_site else limits.usage_snapshot([team.slug for team in shown])
    lines = site.site_view(now) if of_site else []
    known = _known_resources(now, lines, shown)
    columns = _columns(data, known, now, lines, [_place(name)[1] for name in entered])
    by_resource = {line.resource: line for line in lines}
    return QuotaMatrix(
        columns=[Column(name, by_resource.get(name)) for name in columns],
        choices=[Choice(name, format_resource(name), name in columns) for name in known],
        rows=[
            (team, [_cell(now, team, name, entered, problems) for name in columns])
            for team in shown
            if team.slug in now.teams
        ],
        page=page,
        q=q,
        total=total,
        of_site=of_site,
        entered=len(entered),
    )


def entry_key(team: str, resource: str) -> str:
    """Return the key of a cell in `entered` and `problems`."""
    return f"{team}/{resource}"


def _place(key: str) -> tuple[str, str]:
    team, _slash, resource = key.partition("/")
    return team, resource


def _cell(
    now: UsageSnapshot,
    team: Team,
    resource: str,
    entered: Mapping[str, str],
    problems: Mapping[str, str],
) -> Cell:
    key = entry_key(team.slug, resource)
    return Cell(
        team=team,
        usage=limits.usage_of(now, team.slug, resource),
        quota=now.base.get((team.slug, resource)),
        entered=entered.get(key),
        problem=problems.get(key, ""),
    )


def _known_resources(now: UsageSnapshot, lines: Sequence[SiteLine], teams: Sequence[Team]) -> list[str]:
    """Return the resources of the site, or only those relevant to these teams."""
    if lines:
        return site.known_resources(lines)
    slugs = [team.slug for team in teams if team.slug in now.teams]
    return sort_resources({usage.resource for slug in slugs for usage in limits.team_usage_in(now, slug)})


def _columns(
    data: QueryDict,
    known: Collection[str],
    now: UsageSnapshot,
    lines: Sequence[SiteLine],
    needed: Collection[str],
) -> list[str]:
    """Return the chosen columns, else the most important: with quotas, real, in use, in service."""
    chosen = [name for name in dict.fromkeys(data.getlist("resource")) if name in known][:MAX_COLUMNS]
    if not chosen:
        quotas = {name for _team, name in now.base}
        used = {line.resource for line in lines if line.used}
        in_service = {line.resource for line in lines if line.capacity}

        def importance(name: str) -> tuple[bool, bool, bool, bool]:
            simulated = name.startswith(SIMULATED) or ":simulated-" in name
            return name not in quotas, simulated, name not in used, name not in in_service

        chosen = sorted(known, key=importance)[:DEFAULT_COLUMNS]
    return sort_resources({*chosen, *needed})
