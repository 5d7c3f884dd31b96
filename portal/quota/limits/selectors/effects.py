"""Computes effects of new quotas: usage against limits, sums, and released workspaces."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import models
from django.utils.translation import gettext_lazy as _

from portal.people.accounts.models import Team
from portal.quota.limits.limit_tree import NewQuotas
from portal.quota.limits.presenters.bars import QuotaUsage, sort_resources
from portal.quota.limits.selectors import site
from portal.quota.limits.selectors.limits import (
    UsageSnapshot,
    add,
    usage_of,
    usage_snapshot,
    waiting_workspaces,
    with_new_quotas,
)
from portal.quota.limits.selectors.site import SiteLine
from portal.workspaces.models import Workspace

MAX_WAITING = 2000
"""Maximum number of waiting workspaces to examine, oldest first."""
MAX_NAMED = 5


class UsageState(models.TextChoices):
    """How a team's use compares with its quota and limit, from best to worst."""

    NO_LIMIT = "no_limit", _("No limit")
    WITHIN_QUOTA = "within_quota", _("Within quota")
    OVER_QUOTA = "over_quota", _("Over quota")
    OVER_LIMIT = "over_limit", _("Over limit")


_RANKS = {state: rank for rank, state in enumerate(UsageState)}


def state_of(usage: QuotaUsage) -> UsageState:
    """Return the state of a team's use. Usage above the quota but within the limit is borrowed."""
    if usage.excess:
        return UsageState.OVER_LIMIT
    if usage.quota is not None and usage.used > usage.quota:
        return UsageState.OVER_QUOTA
    return UsageState.NO_LIMIT if usage.unlimited else UsageState.WITHIN_QUOTA


@dataclass(frozen=True, slots=True)
class TeamEffect:
    """One resource of one team before and after the change.

    `quota_*` are stored quotas, without grants; None: no quota.
    """

    team: str
    name: str
    quota_before: int | None
    quota_after: int | None
    before: QuotaUsage
    after: QuotaUsage

    @property
    def resource(self) -> str:
        return self.after.resource

    @property
    def state(self) -> UsageState:
        return state_of(self.after)

    @property
    def gets_worse(self) -> bool:
        """Whether the change moves the usage above a quota or limit, or further above a limit."""
        was = state_of(self.before)
        exceeds = self.state in (UsageState.OVER_QUOTA, UsageState.OVER_LIMIT)
        return exceeds and (_RANKS[self.state] > _RANKS[was] or self.after.excess > self.before.excess)


@dataclass(frozen=True, slots=True)
class SumEffect:
    """The sum of all quotas of one resource before and after, with the capacity in service."""

    before: SiteLine
    after: SiteLine

    @property
    def resource(self) -> str:
        return self.after.resource


@dataclass(frozen=True, slots=True)
class QuotaEffects:
    """The effects of new quotas.

    - `changes`: the teams and resources with a new quota, by team.
    - `others`: teams of the same cohorts that newly exceed their quota or limit.
    - `sums`: one for each resource.
    - `released`: the number of waiting workspaces that fit only into the new quotas; `named` are the oldest.
      Member caps and free capacity can still delay them.
    """

    changes: list[TeamEffect]
    others: list[TeamEffect]
    sums: list[SumEffect]
    released: int
    named: list[Workspace]


def effects_of(new_quotas: NewQuotas) -> QuotaEffects:
    """Return the effects of new quotas, as the scheduler calculates them. A constant number of queries."""
    before = usage_snapshot()
    after = with_new_quotas(before, new_quotas)
    names = dict(Team.objects.values_list("slug", "name"))
    related_teams = _same_trees(after, {slug for slug, _resource in new_quotas})
    changes = [_effect(before, after, names, slug, resource) for slug, resource in sorted(new_quotas)
               if slug in after.teams]  # fmt: skip
    resources = sort_resources({resource for _slug, resource in new_quotas})
    others = [
        effect
        for resource in resources
        for slug in sorted(related_teams)
        if (slug, resource) not in new_quotas and before.uses[slug].in_use.get(resource)
        for effect in [_effect(before, after, names, slug, resource)]
        if effect.gets_worse
    ]
    released = _released_workspaces(before, after, related_teams)
    rows = Workspace.objects.select_related("owner", "team").in_bulk(released[:MAX_NAMED])
    return QuotaEffects(
        changes=changes,
        others=others,
        sums=_sums(before, after, resources),
        released=len(released),
        named=[rows[key] for key in released[:MAX_NAMED] if key in rows],
    )


def _effect(
    before: UsageSnapshot, after: UsageSnapshot, names: Mapping[str, str], slug: str, resource: str
) -> TeamEffect:
    return TeamEffect(
        team=slug,
        name=names.get(slug, slug),
        quota_before=before.base.get((slug, resource)),
        quota_after=after.base.get((slug, resource)),
        before=usage_of(before, slug, resource),
        after=usage_of(after, slug, resource),
    )


def _same_trees(now: UsageSnapshot, slugs: Collection[str]) -> set[str]:
    """Return these teams and all teams in the same cohort trees."""
    roots = {id(now.tree.teams[slug].path()[-1]) for slug in slugs if slug in now.tree.teams}
    return {slug for slug, node in now.tree.teams.items() if id(node.path()[-1]) in roots}


def _sums(before: UsageSnapshot, after: UsageSnapshot, resources: Iterable[str]) -> list[SumEffect]:
    lines_before = {line.resource: line for line in site.site_view(before)}
    lines_after = {line.resource: line for line in site.site_view(after)}
    return [
        SumEffect(
            lines_before.get(name) or SiteLine(name, 0, 0, 0, None),
            lines_after.get(name) or SiteLine(name, 0, 0, 0, None),
        )
        for name in resources
    ]


def _released_workspaces(before: UsageSnapshot, after: UsageSnapshot, teams: Collection[str]) -> list[UUID]:
    """Return the teams' waiting workspaces that fit into the quotas of `after` only, oldest first."""
    waiting = waiting_workspaces(Workspace.objects.filter(team__slug__in=teams)).order_by(
        "requested_at", "pk"
    )
    rows: list[Any] = list(waiting.values_list("pk", "team__slug", "amounts")[:MAX_WAITING])
    fitted = _fitting(before, rows)
    return [key for key in _fitting(after, rows) if key not in fitted]


def _fitting(now: UsageSnapshot, rows: Iterable[tuple[UUID, str, dict[str, int]]]) -> dict[UUID, None]:
    """Return the workspaces that fit into the quotas and site limits, added one after the other."""
    tree, site_use = now.tree.clone(), dict(now.site_use)
    fitting: dict[UUID, None] = {}
    for key, team, amounts in rows:
        within_site = all(
            site_use.get(name, 0) + amount <= now.site_limits[name]
            for name, amount in amounts.items()
            if name in now.site_limits
        )
        if within_site and not tree.shortfall(team, amounts):
            tree.add(team, amounts)
            add(site_use, amounts)
            fitting[key] = None
    return fitting
