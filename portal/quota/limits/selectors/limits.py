"""Usage of teams: amounts in use, pending, borrowed, and available.

Uses the scheduler's own calculation (`portal.quota.limits.tree`), so bars match the queue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Count, Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from portal.common.errors import NotFound
from portal.common.formatting import format_amount, format_resource
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.fleet.inventory.models import Allocation
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.models import Team, User
from portal.quota.limits import limit_tree, policies, resources, types
from portal.quota.limits.codes import QuotaCode
from portal.quota.limits.models import Cohort, MemberCap, Quota, ResourceRate, SiteLimit, TeamShare
from portal.quota.limits.presenters.bars import QuotaUsage, sort_resources
from portal.quota.limits.tree import UNGOVERNED, QuotaTree
from portal.workspaces.lifecycle import HOLDING, DesiredState, QueueOutcome, State
from portal.workspaces.models import Workspace

SHOWN_UNLIMITED = frozenset({resources.CPU, resources.MEMORY})
Amounts = dict[str, int]


@dataclass(slots=True)
class TeamUse:
    """A team's amounts in use and pending, and its members' amounts in use, by resource."""

    in_use: Amounts = field(default_factory=dict)
    queued: Amounts = field(default_factory=dict)
    by_user: dict[str, Amounts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UsageSnapshot:
    """All teams' limits and the usage of selected teams at one moment."""

    tree: QuotaTree
    teams: Mapping[str, types.Team]
    uses: Mapping[str, TeamUse]
    base: Mapping[tuple[str, str], int]
    site_limits: Mapping[str, int]
    site_use: Mapping[str, int]


def team_for(actor: User, slug: str) -> Team:
    """Return the team if the actor may see its quota. Raises `NotFound`."""
    team = Team.objects.filter(slug=strip_nul(slug)).first()
    if team is None or not policies.may_view_team(actor, team):
        raise NotFound(Reason(AccountCode.NO_SUCH_TEAM, {"slug": slug}))
    return team


# --- usage --------------------------------------------------------------------------------------------


def add(into: Amounts, amounts: Mapping[str, int]) -> None:
    for resource, amount in amounts.items():
        into[resource] = into.get(resource, 0) + amount


def _rows(workspaces: QuerySet[Workspace]) -> Iterator[tuple[str, str, Amounts]]:
    """Yield team, user and amounts, with equal amounts of a user's workspaces added up.

    Thousands of workspaces have few distinct amounts, so the database counts them.
    """
    counted: Iterable[Any] = (
        workspaces.order_by().values_list("team__slug", "owner_id", "amounts").annotate(Count("pk"))
    )
    for team, owner, amounts, count in counted:
        yield team, str(owner), {resource: amount * count for resource, amount in amounts.items()}


def _charged_workspaces(workspaces: QuerySet[Workspace]) -> QuerySet[Workspace]:
    """Return the workspaces that are charged.

    Excludes stopped workspaces that are being deleted: they have already released their capacity.
    """
    allocations = Allocation.objects.filter(workspace=OuterRef("pk"), released_at=None)
    return workspaces.filter(~Q(state=State.TERMINATING) | Exists(allocations), state__in=HOLDING)


def waiting_workspaces(workspaces: QuerySet[Workspace]) -> QuerySet[Workspace]:
    """Return the workspaces in the queue that do not wait for an approval."""
    return workspaces.filter(state=State.PENDING, desired_state=DesiredState.RUNNING).exclude(
        queue_entry__outcome=QueueOutcome.NEEDS_APPROVAL
    )


def _uses(teams: Collection[str], *, of_all: bool) -> dict[str, TeamUse]:
    uses = {team: TeamUse() for team in teams}
    chosen = Workspace.objects.all() if of_all else Workspace.objects.filter(team__slug__in=teams)
    for team, owner, amounts in _rows(_charged_workspaces(chosen)):
        # Skip teams created between the two queries.
        if use := uses.get(team):
            add(use.in_use, amounts)
            add(use.by_user.setdefault(owner, {}), amounts)
    for team, _, amounts in _rows(waiting_workspaces(chosen)):
        if use := uses.get(team):
            add(use.queued, amounts)
    return uses


def site_use() -> Amounts:
    """Return the amounts in use by all teams."""
    total: Amounts = {}
    for _, _, amounts in _rows(_charged_workspaces(Workspace.objects.all())):
        add(total, amounts)
    return total


def usage_snapshot(teams: Collection[str] | None = None, now: datetime | None = None) -> UsageSnapshot:
    """Return all limits, and the usage of these teams and their cohorts (default: all teams).

    About ten queries for any number of teams.
    """
    teams_by_slug = {team.name: team for team in limit_tree.teams(now or timezone.now())}
    tree = QuotaTree(teams_by_slug.values(), limit_tree.cohorts())
    if teams is None:
        slugs = set(teams_by_slug)
    else:
        # Teams below the same root can borrow from each other.
        roots = {id(tree.teams[slug].path()[-1]) for slug in teams if slug in teams_by_slug}
        slugs = {slug for slug, node in tree.teams.items() if id(node.path()[-1]) in roots}
    uses = _uses(slugs, of_all=len(slugs) == len(teams_by_slug))
    for slug, use in uses.items():
        tree.add(slug, use.in_use)
    site_limits = dict(SiteLimit.objects.values_list("resource", "amount"))
    total: Amounts = {}
    if site_limits:
        if len(slugs) == len(teams_by_slug):
            for use in uses.values():
                add(total, use.in_use)
        else:
            total = site_use()
    base = {
        (team, resource): nominal
        for team, resource, nominal in Quota.objects.filter(team__slug__in=slugs).values_list(
            "team__slug", "resource", "quota"
        )
    }
    return UsageSnapshot(tree, teams_by_slug, uses, base, site_limits, total)


def with_new_quotas(now: UsageSnapshot, new_quotas: limit_tree.NewQuotas) -> UsageSnapshot:
    """Return the snapshot with other quotas and the same usage. `now` must cover all teams."""
    teams = {
        team.name: team for team in limit_tree.teams(timezone.now(), new_quotas) if team.name in now.uses
    }
    tree = QuotaTree(teams.values(), limit_tree.cohorts())
    for slug in teams:
        tree.add(slug, now.uses[slug].in_use)
    base = {**now.base, **new_quotas}
    stored = {key: quota for key, quota in base.items() if quota is not None}
    return replace(now, tree=tree, teams=teams, base=stored)


# --- bars ---------------------------------------------------------------------------------------------


def team_usage(team: Team, actor: User | None = None) -> list[QuotaUsage]:
    """Return one bar per relevant resource of the team; with `actor`, includes the actor's usage and cap."""
    return usage_by_team([team], actor)[team.slug]


def usage_by_team(teams: Iterable[Team], actor: User | None = None) -> dict[str, list[QuotaUsage]]:
    """Return the bars of several teams by slug, with the same number of queries as for one."""
    slugs = [team.slug for team in teams]
    now = usage_snapshot(slugs)
    return {slug: team_usage_in(now, slug, actor) for slug in slugs}


def resource_usage(team: Team, resource: str, actor: User | None = None) -> QuotaUsage | None:
    """Return the bar of one resource of a team, relevant or not; None if the team no longer exists."""
    now = usage_snapshot([team.slug])
    return usage_of(now, team.slug, resource, actor) if team.slug in now.teams else None


def team_usage_in(now: UsageSnapshot, slug: str, actor: User | None = None) -> list[QuotaUsage]:
    """Return the bars of a team in the snapshot, accelerators first."""
    if slug not in now.teams:
        return []
    team, node, use = now.teams[slug], now.tree.teams[slug], now.uses[slug]
    names = {name for name in node.root_names if node.potential(name) or name in team.limits}
    names |= set(team.user_caps) | {name for caps in team.member_caps.values() for name in caps}
    for name in (*use.in_use, *use.queued):
        plain = name.removeprefix(resources.SIMULATED)
        if resources.is_accelerator(name) or plain in SHOWN_UNLIMITED or name in now.site_limits:
            names.add(name)
    return [usage_of(now, slug, name, actor) for name in sort_resources(names)]


def usage_of(now: UsageSnapshot, slug: str, resource: str, actor: User | None = None) -> QuotaUsage:
    """Return the bar of one resource of a team in the snapshot."""
    team, node, use = now.teams[slug], now.tree.teams[slug], now.uses[slug]
    governed = resource in node.root_names
    nominal = limit = available = lent = lendable = None
    if governed:
        own = team.limits.get(resource, types.Limit())
        nominal, limit, available = own.nominal, node.potential(resource), node.available(resource)
        if node.parent is not None:
            lendable = nominal if own.lending is None else min(nominal, own.lending)
    if resource in now.site_limits:
        most = now.site_limits[resource]
        left = most - now.site_use.get(resource, 0)
        limit = most if limit is None else min(limit, most)
        available = left if available is None else min(available, left)
    base = now.base.get((slug, resource))
    used = use.in_use.get(resource, 0)
    borrowed = node.borrowed(resource)
    if governed and node.parent is not None and nominal is not None and lendable:
        # The unused part of the quota that is unavailable is lent to others.
        unused = max(0, nominal - used)
        lent = min(lendable, max(0, unused - max(0, node.available(resource))))
    own_use = use.by_user.get(str(actor.pk), {}) if actor is not None else {}
    caps = team.caps_of(str(actor.pk)) if actor is not None else {}
    return QuotaUsage(
        resource=resource,
        used=used,
        queued=use.queued.get(resource, 0),
        borrowed=borrowed,
        quota=nominal,
        grant=(nominal - (base or 0)) if nominal is not None else 0,
        lendable=lendable,
        lent=lent or 0,
        limit=limit if limit is None or limit < UNGOVERNED else None,
        available=max(0, available) if available is not None and available < UNGOVERNED else None,
        site_limited=resource in now.site_limits and limit == now.site_limits[resource],
        mine=own_use.get(resource, 0),
        cap=caps.get(resource),
    )


# --- members ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemberUse:
    """A member's usage of one resource. `own_cap`: the cap is set for this member only."""

    resource: str
    used: int
    cap: int | None
    own_cap: bool

    @property
    def label(self) -> str:
        return format_resource(self.resource)

    @property
    def usage_text(self) -> str:
        """Usage and cap as text: “2 of 4”."""
        used = format_amount(self.resource, self.used)
        return used if self.cap is None else f"{used} of {format_amount(self.resource, self.cap)}"

    @property
    def is_over_cap(self) -> bool:
        return self.cap is not None and self.used > self.cap


_NODE_AMOUNTS = (resources.CPU, resources.MEMORY)
_SHOWN_USES = {*_NODE_AMOUNTS, *(resources.SIMULATED + name for name in _NODE_AMOUNTS)}


def members_use(now: UsageSnapshot, slug: str, users: Iterable[User]) -> dict[UUID, list[MemberUse]]:
    """Return each member's usage of CPU, memory, accelerators and capped resources."""
    team, use = now.teams[slug], now.uses[slug]
    uses_by_user = {}
    for user in users:
        key = str(user.pk)
        amounts, caps = use.by_user.get(key, {}), team.caps_of(key)
        own = team.member_caps.get(key, {})
        used = {name for name, amount in amounts.items() if amount and name in _SHOWN_USES}
        names = used | {name for name in amounts if resources.is_accelerator(name)} | set(caps)
        uses_by_user[user.pk] = [
            MemberUse(name, amounts.get(name, 0), caps.get(name), name in own)
            for name in sort_resources(names)
        ]
    return uses_by_user


def caps_of(team: Team) -> QuerySet[MemberCap]:
    """Return the team's caps, sorted by resource."""
    return (
        MemberCap.objects.filter(team=team)
        .select_related("user")
        .order_by("resource", "user__username", "pk")
    )


# --- lists visible to the actor ------------------------------------------------------------------------


def quotas_for(actor: User) -> QuerySet[Quota]:
    """Return all quotas for operators and approvers; otherwise those of the actor's teams and cohorts."""
    quotas = Quota.objects.select_related("team", "cohort")
    if policies.sees_every_team(actor):
        return quotas
    own = Team.objects.filter(memberships__user=actor)
    return quotas.filter(team__in=own) | quotas.filter(cohort__in=_cohorts_above(own))


def _cohorts_above(teams: QuerySet[Team]) -> set[UUID]:
    """Return the cohorts of these teams, up to the roots."""
    parents = dict(Cohort.objects.values_list("pk", "parent_id"))
    keys: set[UUID] = set()
    at: UUID | None
    for at in TeamShare.objects.filter(team__in=teams).values_list("cohort_id", flat=True):
        while at is not None and at not in keys:
            keys.add(at)
            at = parents.get(at)
    return keys


def cohorts_for(actor: User) -> QuerySet[Cohort]:
    """Return all cohorts for operators and approvers; otherwise those of the actor's teams."""
    cohorts = Cohort.objects.select_related("parent").annotate(team_count=Count("team_shares"))
    if policies.sees_every_team(actor):
        return cohorts
    return cohorts.filter(pk__in=_cohorts_above(Team.objects.filter(memberships__user=actor)))


def cohort_by_slug(actor: User, slug: str) -> Cohort:
    """Return the cohort. Raises `NotFound`."""
    cohort = cohorts_for(actor).filter(slug=strip_nul(slug)).first()
    if cohort is None:
        raise NotFound(Reason(QuotaCode.NO_SUCH_COHORT, {"slug": slug}))
    return cohort


def caps_for(actor: User) -> QuerySet[MemberCap]:
    """Return all caps for operators and approvers; otherwise those of the actor's teams."""
    caps = MemberCap.objects.select_related("team", "user")
    if policies.sees_every_team(actor):
        return caps
    return caps.filter(team__in=Team.objects.filter(memberships__user=actor))


def share_of(team: Team) -> TeamShare:
    """Return the team's share, or one with defaults if there is no row."""
    return TeamShare.objects.select_related("cohort").filter(team=team).first() or TeamShare(team=team)


def site_limits() -> QuerySet[SiteLimit]:
    return SiteLimit.objects.all()


def rates() -> QuerySet[ResourceRate]:
    return ResourceRate.objects.all()
