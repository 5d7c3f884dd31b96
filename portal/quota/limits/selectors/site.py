"""The whole site for operators: capacity, quotas, and the tree of cohorts and teams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from portal.common.formatting import format_amount, format_resource
from portal.fleet.inventory import counting
from portal.people.accounts.models import Team
from portal.quota.limits import resources, types
from portal.quota.limits.models import Cohort, Quota
from portal.quota.limits.presenters.bars import sort_resources
from portal.quota.limits.selectors.limits import SHOWN_UNLIMITED, Amounts, UsageSnapshot, add


@dataclass(frozen=True, slots=True)
class SiteLine:
    """One resource of the whole site: capacity in service, quotas, and usage."""

    resource: str
    capacity: int
    quota: int
    used: int
    limit: int | None

    @property
    def label(self) -> str:
        return format_resource(self.resource)

    @property
    def promised_percent(self) -> int | None:
        """Quotas in percent of capacity; above 100 the resource is oversubscribed."""
        return round(100 * self.quota / self.capacity) if self.capacity else None

    @property
    def oversubscribed(self) -> bool:
        return self.countable and self.quota > self.capacity

    @property
    def countable(self) -> bool:
        """Whether the site has a capacity of this resource that can be counted, unlike `workspaces`."""
        return self.resource != resources.WORKSPACES


def site_capacity() -> Amounts:
    """Return the amounts in service by resource, regardless of site limits."""
    return {name: count.in_service for name, count in counting.site().items() if count.in_service}


def site_view(now: UsageSnapshot) -> list[SiteLine]:
    """Return all resources that exist, are limited or are in use. `now` must cover all teams."""
    capacity = site_capacity()
    nominal: Amounts = {}
    total: Amounts = {}
    for slug, team in now.teams.items():
        add(nominal, {name: limit.nominal for name, limit in team.limits.items()})
        add(total, now.uses[slug].in_use)
    for cohort in now.tree.cohorts.values():
        add(nominal, {name: limit.nominal for name, limit in cohort.limits.items()})
    return [
        SiteLine(
            name, capacity.get(name, 0), nominal.get(name, 0), total.get(name, 0), now.site_limits.get(name)
        )
        for name in sort_resources({*capacity, *nominal, *total, *now.site_limits})
    ]


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A cohort or team in the tree, with one resource's quota. Amounts in base units."""

    kind: str
    slug: str
    name: str
    depth: int
    resource: str
    quota: Quota | None
    used: int
    borrowed: int
    grant: int
    weight_milli: int
    parent: str
    reclaim: bool

    @property
    def key(self) -> str:
        return f"{self.kind}:{self.slug}"

    def _format(self, amount: int | None) -> str:
        return format_amount(self.resource, amount) if amount is not None else ""

    @property
    def quota_text(self) -> str:
        return self._format(self.quota.quota) if self.quota else ""

    @property
    def borrowing(self) -> str:
        return self._format(self.quota.borrowing_limit) if self.quota else ""

    @property
    def lending_text(self) -> str:
        return self._format(self.quota.lending_limit) if self.quota else ""

    @property
    def used_text(self) -> str:
        return self._format(self.used)

    @property
    def borrowed_text(self) -> str:
        return self._format(self.borrowed) if self.borrowed else ""

    @property
    def grant_text(self) -> str:
        return self._format(self.grant) if self.grant else ""

    @property
    def weight(self) -> str:
        return f"{self.weight_milli / 1000:g}"


def tree_view(now: UsageSnapshot, resource: str) -> list[TreeRow]:
    """Return the rows of the tree: cohorts with their members, then teams without a cohort.

    `now` must cover all teams.
    """
    names = dict(Team.objects.values_list("slug", "name"))
    cohorts = {cohort.slug: cohort for cohort in Cohort.objects.select_related("parent")}
    quotas = {
        ("cohort:" + cohort if cohort else f"team:{team}"): quota
        for quota in Quota.objects.filter(resource=resource).select_related("team", "cohort")
        for team, cohort in [
            (quota.team.slug if quota.team else "", quota.cohort.slug if quota.cohort else "")
        ]
    }
    rows: list[TreeRow] = []

    def team_row(slug: str, depth: int) -> TreeRow:
        team, node = now.teams[slug], now.tree.teams[slug]
        grant = team.limits.get(resource, types.Limit()).nominal - now.base.get((slug, resource), 0)
        return TreeRow(
            kind="team",
            slug=slug,
            name=names.get(slug, slug),
            depth=depth,
            resource=resource,
            quota=quotas.get(f"team:{slug}"),
            used=now.uses[slug].in_use.get(resource, 0),
            borrowed=node.borrowed(resource),
            grant=grant,
            weight_milli=team.weight_milli,
            parent=team.cohort,
            reclaim=team.reclaim,
        )

    def add_cohort(slug: str, depth: int) -> None:
        node, cohort = now.tree.cohorts[slug], cohorts[slug]
        below = [name for name, team in now.teams.items() if team.cohort == slug]
        place = len(rows)
        for child in sorted(inner.slug for inner in cohorts.values() if inner.parent_id == cohort.pk):
            add_cohort(child, depth + 1)
        rows.extend(team_row(name, depth + 1) for name in sorted(below))
        used = sum(row.used for row in rows[place:] if row.kind == "team")
        rows.insert(
            place,
            TreeRow(
                kind="cohort",
                slug=slug,
                name=cohort.name,
                depth=depth,
                resource=resource,
                quota=quotas.get(f"cohort:{slug}"),
                used=used,
                borrowed=node.borrowed(resource),
                grant=0,
                weight_milli=cohort.weight_milli,
                parent=cohort.parent.slug if cohort.parent else "",
                reclaim=True,
            ),
        )

    for slug in sorted(slug for slug, cohort in cohorts.items() if cohort.parent_id is None):
        if slug in now.tree.cohorts:
            add_cohort(slug, 0)
    rows.extend(team_row(slug, 0) for slug in sorted(now.teams) if not now.teams[slug].cohort)
    return rows


def known_resources(lines: Sequence[SiteLine]) -> list[str]:
    """Return the resources for the page to offer, including those that can always be limited."""
    return sort_resources(
        {line.resource for line in lines} | {resources.GPU, *SHOWN_UNLIMITED, resources.WORKSPACES}
    )
