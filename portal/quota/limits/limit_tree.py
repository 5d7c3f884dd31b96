"""Reads the limits of all teams and cohorts as values: quotas, grants, caps, shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from uuid import UUID

from portal.people.accounts.models import Team
from portal.quota.limits import types
from portal.quota.limits.models import Cohort, Grant, MemberCap, MemberShare, Quota, TeamShare

Limits = dict[UUID, dict[str, types.Limit]]


def teams(now: datetime) -> Iterable[types.Team]:
    """Yield every team with its limits, active grants, caps, share and the use of its members."""
    limits = _limits(Quota.objects.filter(team__isnull=False).values_list(
        "team_id", "resource", "quota", "borrowing_limit", "lending_limit"
    ))  # fmt: skip
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
    _add_grants(now, limits, caps, member_caps)
    shares = {share.team_id: share for share in TeamShare.objects.select_related("cohort")}
    averages: dict[UUID, dict[str, int]] = {}
    for team, member, use_avg in MemberShare.objects.filter(team__member_shares=True).values_list(
        "team_id", "user_id", "use_avg"
    ):
        averages.setdefault(team, {})[str(member)] = use_avg
    for pk, slug, member_shares in Team.objects.values_list("pk", "slug", "member_shares"):
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
) -> None:
    """Add grants to teams' nominal quotas, or to members' caps if they exist."""
    for team, user, resource, amount in Grant.objects.active(now).values_list(
        "team_id", "user_id", "resource", "amount"
    ):
        if user is None:
            # A grant adds to an existing limit; on its own it limits nothing.
            own = limits.setdefault(team, {})
            before = own.get(resource)
            if before is None:
                before = types.Limit() if _is_limited(team, resource) else None
            if before is not None:
                own[resource] = types.Limit(before.nominal + amount, before.borrowing, before.lending)
            continue
        own_caps = member_caps.get(team, {}).get(str(user), {})
        base = own_caps.get(resource, caps.get(team, {}).get(resource))
        if base is not None:
            member_caps.setdefault(team, {}).setdefault(str(user), {})[resource] = base + amount


def _is_limited(team: UUID, resource: str) -> bool:
    """Return whether any quota in the team's cohort tree names the resource."""
    share = TeamShare.objects.filter(team=team, cohort__isnull=False).select_related("cohort").first()
    if share is None or share.cohort is None:
        return False
    root = share.cohort
    while root.parent is not None:
        root = root.parent
    tree, edge = {root.pk}, {root.pk}
    while edge:
        edge = set(Cohort.objects.filter(parent__in=edge).values_list("pk", flat=True)) - tree
        tree |= edge
    named = Quota.objects.filter(resource=resource)
    return named.filter(cohort__in=tree).exists() or named.filter(team__share__cohort__in=tree).exists()


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
