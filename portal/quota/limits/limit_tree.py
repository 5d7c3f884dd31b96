"""Reads the limits of all teams and cohorts as values: quotas, grants, caps, shares."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from uuid import UUID

from portal.people.accounts.models import Team
from portal.quota.limits import types
from portal.quota.limits.models import Cohort, Grant, MemberCap, MemberShare, Quota, TeamShare

Limits = dict[UUID, dict[str, types.Limit]]
NewQuotas = Mapping[tuple[str, str], int | None]
"""Quotas that replace the stored ones, by team slug and resource. None: no quota."""


def teams(now: datetime, new_quotas: NewQuotas | None = None) -> Iterable[types.Team]:
    """Yield every team with its limits, active grants, caps, share and average use by member.

    `new_quotas` replace the stored ones.
    """
    rows = list(Team.objects.values_list("pk", "slug", "member_shares"))
    limits = _limits(Quota.objects.filter(team__isnull=False).values_list(
        "team_id", "resource", "quota", "borrowing_limit", "lending_limit"
    ))  # fmt: skip
    _replace(limits, {slug: pk for pk, slug, _ in rows}, new_quotas or {})
    caps: dict[UUID, dict[str, int]] = {}
    member_caps: dict[UUID, dict[str, dict[str, int]]] = {}
    for team, user, resource, amount in MemberCap.objects.values_list(
        "team_id", "user_id", "resource", "amount"
    ):
        of = (
            caps.setdefault(team, {})
            if user is None
            else member_caps.setdefault(team, {}).setdefault(str(user), {})
        )
        of[resource] = amount
    shares = {share.team_id: share for share in TeamShare.objects.select_related("cohort")}
    _add_grants(now, limits, caps, member_caps, shares)
    averages: dict[UUID, dict[str, int]] = {}
    for team, member, use_avg in MemberShare.objects.filter(team__member_shares=True).values_list(
        "team_id", "user_id", "use_avg"
    ):
        averages.setdefault(team, {})[str(member)] = use_avg
    for pk, slug, member_shares in rows:
        share = shares.get(pk)
        yield types.Team(
            name=slug,
            cohort=share.cohort.slug if share and share.cohort else "",
            limits=limits.get(pk, {}),
            weight_milli=share.weight_milli if share else types.WEIGHT_ONE,
            user_caps=caps.get(pk, {}),
            member_caps=member_caps.get(pk, {}),
            borrowed_avg=share.borrowed_avg if share else {},
            reclaim=share.reclaim if share else True,
            member_shares=member_shares,
            member_avg=averages.get(pk, {}),
        )


def _replace(limits: Limits, keys: Mapping[str, UUID], new_quotas: NewQuotas) -> None:
    """Replace quotas in `limits`, by id of the team, with the new ones. None removes the limit.

    Borrowing and lending limits stay if a quota remains.
    """
    for (slug, resource), quota in new_quotas.items():
        if slug not in keys:
            # The team was deleted meanwhile.
            continue
        own = limits.setdefault(keys[slug], {})
        before = own.pop(resource, types.Limit())
        if quota is not None:
            own[resource] = types.Limit(quota, before.borrowing, before.lending)


def _limits(rows: Iterable[tuple[UUID, str, int, int | None, int | None]]) -> Limits:
    limits: Limits = {}
    for owner, resource, nominal, borrowing, lending in rows:
        limits.setdefault(owner, {})[resource] = types.Limit(nominal, borrowing, lending)
    return limits


def _add_grants(
    now: datetime,
    limits: Limits,
    caps: Mapping[UUID, Mapping[str, int]],
    member_caps: dict[UUID, dict[str, dict[str, int]]],
    shares: Mapping[UUID, TeamShare],
) -> None:
    """Add grants to teams' nominal quotas, or to members' caps if they exist."""
    governed: Governed | None = None
    for team, user, resource, amount in Grant.objects.active(now).values_list(
        "team_id", "user_id", "resource", "amount"
    ):
        if user is None:
            # A grant adds to an existing limit and never creates one.
            own = limits.setdefault(team, {})
            before = own.get(resource)
            if before is None:
                governed = governed or _governed(limits, shares)
                before = types.Limit() if resource in governed.get(team, ()) else None
            if before is not None:
                own[resource] = types.Limit(before.nominal + amount, before.borrowing, before.lending)
            continue
        own_caps = member_caps.get(team, {}).get(str(user), {})
        base = own_caps.get(resource, caps.get(team, {}).get(resource))
        if base is not None:
            member_caps.setdefault(team, {}).setdefault(str(user), {})[resource] = base + amount


Governed = Mapping[UUID, Collection[str]]


def _governed(limits: Limits, shares: Mapping[UUID, TeamShare]) -> Governed:
    """Return by team the resources that any quota in its cohort tree names. Two queries."""
    parents = dict(Cohort.objects.values_list("pk", "parent_id"))

    def root(cohort: UUID) -> UUID:
        while (parent := parents.get(cohort)) is not None:
            cohort = parent
        return cohort

    roots = {team: root(share.cohort_id) for team, share in shares.items() if share.cohort_id is not None}
    resources_by_root: dict[UUID, set[str]] = defaultdict(set)
    for cohort, resource in Quota.objects.filter(cohort__isnull=False).values_list("cohort_id", "resource"):
        resources_by_root[root(cohort)].add(resource)
    for team, tree in roots.items():
        resources_by_root[tree].update(limits.get(team, ()))
    return {team: resources_by_root[tree] for team, tree in roots.items()}


def cohorts() -> Iterable[types.Cohort]:
    """Yield every cohort with its limits and parent."""
    limits = _limits(Quota.objects.filter(cohort__isnull=False).values_list(
        "cohort_id", "resource", "quota", "borrowing_limit", "lending_limit"
    ))  # fmt: skip
    for pk, slug, parent, weight, borrow_first, preempt_first in Cohort.objects.values_list(
        "pk", "slug", "parent__slug", "weight_milli", "borrow_first", "preempt_first"
    ):
        rules = types.Fungibility(borrow_first, preempt_first)
        yield types.Cohort(slug, parent or "", limits.get(pk, {}), weight, rules)
