"""Services that change quotas, member caps, site limits and rates.

Every change is recorded with old and new values and requests a scheduling cycle. After a limit is lowered,
existing workspaces continue and new ones do not start; notes report that.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction
from django.utils.translation import gettext as _

from portal.common import etags
from portal.common.actors import SystemActor
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, NotFound, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.formatting import format_amount, format_resource, format_thousandths
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of
from portal.people.accounts.domain_events import TeamDeletion
from portal.people.accounts.models import Team, User
from portal.quota.limits import policies, resources
from portal.quota.limits.codes import QuotaCode
from portal.quota.limits.domain_events import LimitsChanged
from portal.quota.limits.models import Cohort, Grant, MemberCap, Quota, ResourceRate, SiteLimit, TeamShare
from portal.quota.limits.selectors import limits

MAX_AMOUNT = 10**15
MAX_NAME = 80
MAX_RATE_MILLI = 1_000_000
Triple = tuple[int, int | None, int | None]
"""Quota, borrowing limit and lending limit."""


@dataclass(frozen=True, slots=True)
class LimitWrite:
    """The result of a write. `changed`: the value was different before. `reasons`: notes for the actor."""

    changed: bool
    reasons: tuple[Reason, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes as sentences."""
        return tuple(message_of(reason) for reason in self.reasons)


def clean_resource(resource: str) -> str:
    """Return the normalised name of a resource. Raises `InvalidInput`."""
    name = resource.strip().lower()
    if not resources.is_resource(name):
        raise _field_error("resource", Reason(QuotaCode.NO_SUCH_RESOURCE, {"resource": name}))
    if len(name) > MAX_NAME:
        name_too_long = Reason(QuotaCode.RESOURCE_NAME_LENGTH, {"max": MAX_NAME})
        raise InvalidInput(Reason(QuotaCode.RESOURCE_NAME_TOO_LONG), errors={"resource": [name_too_long]})
    return name


def clean_amount(field: str, amount: int) -> int:
    """Return a non-negative amount in base units. Raises `InvalidInput`."""
    if not 0 <= amount <= MAX_AMOUNT:
        raise _field_error(field, Reason(QuotaCode.AMOUNT_OUT_OF_RANGE))
    return amount


def _field_error(field: str, reason: Reason) -> InvalidInput:
    """Return an error for one field."""
    return InvalidInput(reason, errors={field: [reason]})


# --- quota --------------------------------------------------------------------------------------------


@transaction.atomic
def set_quota(
    *,
    actor: User | SystemActor,
    team: Team | None = None,
    cohort: Cohort | None = None,
    resource: str,
    quota: int,
    borrowing_limit: int | None = None,
    lending_limit: int | None = None,
    only_new: bool = False,
    expected: frozenset[str] = etags.ANY,
) -> LimitWrite:
    """Set the quota of a team or cohort, in base units. A limit of `None` means no limit. Operators only.

    Raises `NotAllowed`, `InvalidInput`, `PreconditionFailed`, and with `only_new` `StateConflict` if one
    exists.
    """
    policies.require_set_limits(actor)
    owner = _owner(team, cohort)
    resource = clean_resource(resource)
    target = (clean_amount("quota", quota), borrowing_limit, lending_limit)
    for field, limit in (("borrowing_limit", borrowing_limit), ("lending_limit", lending_limit)):
        if limit is not None:
            clean_amount(field, limit)
    _lock(owner)
    row = Quota.objects.filter(team=team, cohort=cohort, resource=resource).first()
    etags.require_expected(expected, row, name=_quota_name(owner, resource))
    if row is not None and only_new:
        raise _already_exists(Reason(QuotaCode.QUOTA_EXISTS, {"owner": owner.name, "resource": resource}))
    if not write_quota(actor=actor, owner=owner, resource=resource, row=row, target=target):
        return LimitWrite(False)
    emit(LimitsChanged())
    return LimitWrite(True, _notes_on_use(team, resource) if team is not None else ())


@transaction.atomic
def remove_quota(
    *,
    actor: User | SystemActor,
    team: Team | None = None,
    cohort: Cohort | None = None,
    resource: str,
    expected: frozenset[str] = etags.ANY,
) -> LimitWrite:
    """Delete a quota. Without any other quota for it in the cohort tree, the resource is then unlimited."""
    policies.require_set_limits(actor)
    owner = _owner(team, cohort)
    resource = clean_resource(resource)
    _lock(owner)
    row = Quota.objects.filter(team=team, cohort=cohort, resource=resource).first()
    etags.require_expected(expected, row, name=_quota_name(owner, resource))
    if not write_quota(actor=actor, owner=owner, resource=resource, row=row, target=None):
        return LimitWrite(False)
    emit(LimitsChanged())
    return LimitWrite(True, _notes_on_use(team, resource) if team is not None else ())


def write_quota(
    *,
    actor: User | SystemActor,
    owner: Team | Cohort,
    resource: str,
    row: Quota | None,
    target: Triple | None,
) -> bool:
    """Create, change or delete (`target` None) the row of a locked owner, and record it.

    Returns False if nothing changed. The caller checks permission and values, and emits `LimitsChanged`.
    """
    before = (row.quota, row.borrowing_limit, row.lending_limit) if row else None
    if before == target:
        return False
    team, cohort = (owner, None) if isinstance(owner, Team) else (None, owner)
    name = format_resource(resource)
    if target is not None:
        row = row or Quota(team=team, cohort=cohort, resource=resource)
        row.quota, row.borrowing_limit, row.lending_limit = target
        row.save()
        message = f"set {name} of {owner.name}: {_difference(resource, before, target)}"
    else:
        assert row is not None and before is not None, "a missing quota is not deleted"
        row.delete()
        message = f"removed the quota of {name} of {owner.name} ({format_amount(resource, before[0])})"
    events.record(
        actor=actor,
        kind=AuditKind.QUOTA_SET if target is not None else AuditKind.QUOTA_REMOVED,
        team=team,
        message=message,
        data=_data(team, cohort, resource)
        | {"before": _values_by_name(before), "after": _values_by_name(target)},
    )
    return True


def _quota_name(owner: Team | Cohort, resource: str) -> str:
    return _("%(resource)s of %(name)s") % {"resource": format_resource(resource), "name": owner.name}


def _already_exists(reason: Reason) -> StateConflict:
    return StateConflict(reason, code=ProblemCode.ALREADY_SET)


def _owner(team: Team | None, cohort: Cohort | None) -> Team | Cohort:
    if team is not None and cohort is None:
        return team
    if cohort is not None and team is None:
        return cohort
    raise _field_error("team", Reason(QuotaCode.NOT_BOTH_OWNERS))


def _lock(owner: Team | Cohort) -> None:
    """Serialise concurrent writes. Raises `NotFound` if the owner has just been deleted."""
    if not type(owner)._default_manager.select_for_update().filter(pk=owner.pk).exists():
        raise NotFound(Reason(QuotaCode.OWNER_GONE, {"name": owner.name}))


NAMES = ("quota", "borrowing_limit", "lending_limit")


def _values_by_name(values: Triple | None) -> dict[str, int | None] | None:
    return dict(zip(NAMES, values, strict=True)) if values is not None else None


def _difference(resource: str, before: Triple | None, after: Triple) -> str:
    parts = []
    for index, label in enumerate(("quota", "borrowing limit", "lending limit")):
        new = _format(resource, after[index])
        old = _format(resource, before[index]) if before else ("none" if index == 0 else "all")
        if old != new:
            parts.append(f"{label} {old} → {new}")
    return ", ".join(parts) or f"quota none → {_format(resource, after[0])}"


def _format(resource: str, amount: int | None) -> str:
    return "all" if amount is None else format_amount(resource, amount)


def _data(team: Team | None, cohort: Cohort | None, resource: str) -> dict[str, object]:
    return {
        "team": team.slug if team else None,
        "cohort": cohort.slug if cohort else None,
        "resource": resource,
    }


def _notes_on_use(team: Team, resource: str) -> tuple[Reason, ...]:
    """Return notes on running workspaces that exceed the new limit."""
    bar = limits.resource_usage(team, resource)
    if bar is None or bar.excess == 0:
        return ()
    params = {"team": team.name, "resource": resource, "amount": bar.used, "over": bar.excess}
    return (Reason(QuotaCode.TEAM_LIMIT_EXCEEDED, params),)


# --- caps of members ----------------------------------------------------------------------------------


@transaction.atomic
def set_member_cap(
    *,
    actor: User | SystemActor,
    team: Team,
    user: User | None = None,
    resource: str,
    amount: int,
    only_new: bool = False,
    expected: frozenset[str] = etags.ANY,
) -> LimitWrite:
    """Set the cap of a member or, without `user`, of every member without their own cap.

    For owners of the team and operators. A cap above the team's limit is allowed, with a note. Raises
    `NotAllowed`, `InvalidInput`, `PreconditionFailed`, and with `only_new` `StateConflict` if one exists.
    """
    policies.require_set_member_caps(actor, team)
    resource = clean_resource(resource)
    clean_amount("amount", amount)
    _lock(team)
    if user is not None and not team.memberships.filter(user=user).exists():
        params = {"username": user.username, "team": team.name}
        raise _field_error("username", Reason(QuotaCode.CAP_FOR_NO_MEMBER, params))
    cap = MemberCap.objects.filter(team=team, user=user, resource=resource).first()
    etags.require_expected(expected, cap, name=_cap_name(team, user, resource))
    if cap is not None and only_new:
        raise _already_exists(
            Reason(QuotaCode.CAP_EXISTS, {"username": user.username})
            if user
            else Reason(QuotaCode.CAP_OF_ALL_EXISTS)
        )
    before = cap.amount if cap else None
    if before == amount:
        return LimitWrite(False)
    if cap is None:
        cap = MemberCap(team=team, user=user, resource=resource)
    cap.amount = amount
    cap.save()
    _record_cap(actor, team, user, resource, before, amount)
    return LimitWrite(True, _notes_on_cap(team, user, resource, amount))


@transaction.atomic
def remove_member_cap(
    *,
    actor: User | SystemActor,
    team: Team,
    user: User | None = None,
    resource: str,
    expected: frozenset[str] = etags.ANY,
) -> LimitWrite:
    """Delete a cap; the cap for every member, if any, then applies."""
    policies.require_set_member_caps(actor, team)
    resource = clean_resource(resource)
    _lock(team)
    cap = MemberCap.objects.filter(team=team, user=user, resource=resource).first()
    etags.require_expected(expected, cap, name=_cap_name(team, user, resource))
    if cap is None:
        return LimitWrite(False)
    before = cap.amount
    cap.delete()
    _record_cap(actor, team, user, resource, before, None)
    return LimitWrite(True)


def _cap_name(team: Team, user: User | None, resource: str) -> str:
    params = {"resource": format_resource(resource), "team": team.name}
    if user is None:
        return _("%(resource)s of each member of %(team)s") % params
    return _("%(resource)s of %(username)s in %(team)s") % {**params, "username": user.username}


def _record_cap(
    actor: User | SystemActor,
    team: Team,
    user: User | None,
    resource: str,
    before: int | None,
    after: int | None,
) -> None:
    member = user.username if user else "each member"
    old, new = ("none" if amount is None else format_amount(resource, amount) for amount in (before, after))
    events.record(
        actor=actor,
        kind=AuditKind.QUOTA_MEMBER_CAP_REMOVED if after is None else AuditKind.QUOTA_MEMBER_CAP_SET,
        team=team,
        message=f"set the cap of {member} in {team.name} on {format_resource(resource)}: {old} → {new}",
        data={
            "team": team.slug,
            "username": user.username if user else None,
            "resource": resource,
            "before": before,
            "after": after,
        },
    )
    emit(LimitsChanged())


def _notes_on_cap(team: Team, user: User | None, resource: str, amount: int) -> tuple[Reason, ...]:
    notes = []
    bar = limits.resource_usage(team, resource, actor=user)
    if bar is not None and bar.limit is not None and amount > bar.limit:
        params = {"team": team.name, "resource": resource, "amount": bar.limit}
        notes.append(Reason(QuotaCode.CAP_ABOVE_TEAM, params))
    if user is not None and bar is not None and bar.mine > amount:
        params = {"username": user.username, "resource": resource, "amount": bar.mine}
        notes.append(Reason(QuotaCode.CAP_EXCEEDED, params))
    return tuple(notes)


# --- the site -----------------------------------------------------------------------------------------


@transaction.atomic
def set_site_limit(
    *, actor: User | SystemActor, resource: str, amount: int, expected: frozenset[str] = etags.ANY
) -> LimitWrite:
    """Set the maximum of a resource for all teams together. Operators only."""
    policies.require_set_limits(actor)
    resource = clean_resource(resource)
    clean_amount("amount", amount)
    limit = SiteLimit.objects.select_for_update().filter(resource=resource).first()
    etags.require_expected(expected, limit, name=format_resource(resource))
    before = limit.amount if limit else None
    if before == amount:
        return LimitWrite(False)
    SiteLimit.objects.update_or_create(resource=resource, defaults={"amount": amount})
    _record_site(actor, resource, before, amount)
    used = limits.site_use().get(resource, 0)
    if used > amount:
        params = {"resource": resource, "amount": used, "over": used - amount}
        return LimitWrite(True, (Reason(QuotaCode.SITE_LIMIT_EXCEEDED, params),))
    return LimitWrite(True)


@transaction.atomic
def remove_site_limit(
    *, actor: User | SystemActor, resource: str, expected: frozenset[str] = etags.ANY
) -> LimitWrite:
    """Delete the site's limit of a resource."""
    policies.require_set_limits(actor)
    resource = clean_resource(resource)
    limit = SiteLimit.objects.select_for_update().filter(resource=resource).first()
    etags.require_expected(expected, limit, name=format_resource(resource))
    if limit is None:
        return LimitWrite(False)
    before = limit.amount
    limit.delete()
    _record_site(actor, resource, before, None)
    return LimitWrite(True)


def _record_site(actor: User | SystemActor, resource: str, before: int | None, after: int | None) -> None:
    old, new = ("none" if amount is None else format_amount(resource, amount) for amount in (before, after))
    events.record(
        actor=actor,
        kind=AuditKind.QUOTA_SITE_LIMIT_REMOVED if after is None else AuditKind.QUOTA_SITE_LIMIT_SET,
        message=f"set the site's limit of {format_resource(resource)}: {old} → {new}",
        data={"resource": resource, "before": before, "after": after},
    )
    emit(LimitsChanged())


@transaction.atomic
def set_rate(
    *, actor: User | SystemActor, resource: str, rate_milli: int, expected: frozenset[str] = etags.ANY
) -> LimitWrite:
    """Set the price of an accelerator in thousandths of a GPU-hour per hour. Operators only."""
    policies.require_set_limits(actor)
    resource = _clean_rated_resource(resource)
    if not 0 <= rate_milli <= MAX_RATE_MILLI:
        raise _field_error("rate_milli", Reason(QuotaCode.RATE_OUT_OF_RANGE))
    rate = ResourceRate.objects.select_for_update().filter(resource=resource).first()
    etags.require_expected(expected, rate, name=format_resource(resource))
    before = rate.rate_milli if rate else None
    if before == rate_milli:
        return LimitWrite(False)
    ResourceRate.objects.update_or_create(resource=resource, defaults={"rate_milli": rate_milli})
    _record_rate(actor, resource, before, rate_milli)
    return LimitWrite(True)


@transaction.atomic
def remove_rate(
    *, actor: User | SystemActor, resource: str, expected: frozenset[str] = etags.ANY
) -> LimitWrite:
    """Delete the rate; the default of one GPU-hour per hour applies."""
    policies.require_set_limits(actor)
    resource = _clean_rated_resource(resource)
    rate = ResourceRate.objects.select_for_update().filter(resource=resource).first()
    etags.require_expected(expected, rate, name=format_resource(resource))
    if rate is None:
        return LimitWrite(False)
    before = rate.rate_milli
    rate.delete()
    _record_rate(actor, resource, before, None)
    return LimitWrite(True)


def _clean_rated_resource(resource: str) -> str:
    resource = clean_resource(resource)
    if not resources.is_accelerator(resource):
        raise _field_error("resource", Reason(QuotaCode.RATE_OF_NO_ACCELERATOR))
    return resource


def _record_rate(actor: User | SystemActor, resource: str, before: int | None, after: int | None) -> None:
    old, new = (format_thousandths(1000 if rate is None else rate, 3) for rate in (before, after))
    events.record(
        actor=actor,
        kind=AuditKind.QUOTA_RATE_REMOVED if after is None else AuditKind.QUOTA_RATE_SET,
        message=f"set the rate of {format_resource(resource)} per hour: {old} → {new} GPU-hours",
        data={"resource": resource, "before": before, "after": after},
    )
    emit(LimitsChanged())


def team_deleted(event: TeamDeletion) -> None:
    """Delete quota, caps, grants and share of a deleted team."""
    for model in (Quota, MemberCap, Grant, TeamShare):
        model._default_manager.filter(team=event.team).delete()
