"""The limits of all teams and cohorts as the scheduler takes them: quotas, grants, caps, shares, bookings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from uuid import UUID

from portal.accounts.models import Team
from portal.quotas.models import (
    Cohort,
    Grant,
    LedgerAccount,
    MemberCap,
    Quota,
    Reservation,
    ReservationStatus,
    TeamShare,
)
from provisioning.scheduling import model

Limits = dict[UUID, dict[str, model.Limit]]


def teams(now: datetime) -> Iterable[model.Team]:
    """Every team with its limits, the grants that count now, its caps, share, and whether it has funds."""
    limits = _limits(Quota.objects.filter(team__isnull=False).values_list(
        "team_id", "resource", "nominal", "borrowing_limit", "lending_limit"
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
    broke = _without_funds()
    for pk, slug in Team.objects.values_list("pk", "slug"):
        share = shares.get(pk)
        yield model.Team(
            name=slug,
            cohort=share.cohort.slug if share and share.cohort else "",
            limits=limits.get(pk, {}),
            weight_milli=share.weight_milli if share else model.WEIGHT_ONE,
            user_caps=caps.get(pk, {}),
            member_caps=member_caps.get(pk, {}),
            borrowed_avg=share.borrowed_avg if share else {},
            funded=pk not in broke,
            reclaim=share.reclaim if share else True,
        )


def _limits(rows: Iterable[tuple[UUID, str, int, int | None, int | None]]) -> Limits:
    found: Limits = {}
    for owner, resource, nominal, borrowing, lending in rows:
        found.setdefault(owner, {})[resource] = model.Limit(nominal, borrowing, lending)
    return found


def _add_grants(
    now: datetime,
    limits: Limits,
    caps: Mapping[UUID, Mapping[str, int]],
    member_caps: dict[UUID, dict[str, dict[str, int]]],
) -> None:
    """Grants raise a team's nominal quota, or one member's cap where there is one."""
    for team, user, resource, amount in Grant.objects.active(now).values_list(
        "team_id", "user_id", "resource", "amount"
    ):
        if user is None:
            # A grant is on top of what is limited: alone it limits nobody.
            own = limits.setdefault(team, {})
            before = own.get(resource)
            if before is None:
                before = model.Limit() if _governed(team, resource) else None
            if before is not None:
                own[resource] = model.Limit(before.nominal + amount, before.borrowing, before.lending)
            continue
        own_caps = member_caps.get(team, {}).get(str(user), {})
        base = own_caps.get(resource, caps.get(team, {}).get(resource))
        if base is not None:
            member_caps.setdefault(team, {}).setdefault(str(user), {})[resource] = base + amount


def _governed(team: UUID, resource: str) -> bool:
    """Whether some quota in the team's tree of cohorts names the resource."""
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


def _without_funds() -> set[UUID]:
    return {
        team
        for team, granted, credit, spent in LedgerAccount.objects.values_list(
            "team_id", "granted", "credit", "spent"
        )
        if granted + credit - spent <= 0
    }


def cohorts() -> Iterable[model.Cohort]:
    """Every cohort with its own limits and the one that it is in."""
    limits = _limits(Quota.objects.filter(cohort__isnull=False).values_list(
        "cohort_id", "resource", "nominal", "borrowing_limit", "lending_limit"
    ))  # fmt: skip
    for pk, slug, parent, weight in Cohort.objects.values_list("pk", "slug", "parent__slug", "weight_milli"):
        yield model.Cohort(slug, parent or "", limits.get(pk, {}), weight)


def bookings(now: datetime) -> Iterable[model.Booking]:
    """What is booked from now on."""
    for pk, team, amounts, start, end in Reservation.objects.filter(
        status=ReservationStatus.BOOKED, ends_at__gt=now
    ).values_list("pk", "team__slug", "amounts", "starts_at", "ends_at"):
        yield model.Booking(str(pk), team, amounts, int(start.timestamp()), int(end.timestamp()))
