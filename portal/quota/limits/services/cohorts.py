"""Services that change cohorts and teams' shares. Operators only."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from portal.common import etags
from portal.common.actors import SystemActor
from portal.common.constraints import violates
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, NotFound, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.formatting import format_thousandths
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts.models import Team, User
from portal.quota.limits import policies
from portal.quota.limits.codes import QuotaCode
from portal.quota.limits.domain_events import LimitsChanged
from portal.quota.limits.models import WEIGHT_ONE, Cohort, TeamShare
from portal.quota.limits.types import Fungibility

MAX_DEPTH = 8
MAX_WEIGHT_MILLI = 1_000_000
MAX_NAMED = 5
MAX_NAME = 80
DEFAULT_FUNGIBILITY = Fungibility()


@transaction.atomic
def create_cohort(
    *,
    actor: User | SystemActor,
    slug: str,
    name: str = "",
    parent: Cohort | None = None,
    weight_milli: int = WEIGHT_ONE,
    fungibility: Fungibility = DEFAULT_FUNGIBILITY,
) -> Cohort:
    """Create a cohort, optionally inside another. Raises `InvalidInput`."""
    policies.require_set_limits(actor)
    _check_weight(weight_milli)
    cohorts = _lock_cohorts()
    cohort = Cohort(
        slug=strip_nul(slug).strip(),
        name=(strip_nul(name).strip() or strip_nul(slug).strip())[:80],
        parent=parent,
        weight_milli=weight_milli,
        borrow_first=fungibility.borrow_first,
        preempt_first=fungibility.preempt_first,
    )
    try:
        cohort.full_clean(exclude=["parent"])
    except ValidationError as error:
        raise InvalidInput(Reason(QuotaCode.COHORT_NOT_VALID), errors=error.message_dict) from error
    _check_place(cohort, parent, cohorts)
    try:
        with transaction.atomic():
            cohort.save()
    except IntegrityError as error:
        if not violates(error, Cohort, "slug"):
            raise
        taken = Reason(QuotaCode.SHORT_NAME_TAKEN)
        raise InvalidInput(taken, errors={"slug": [taken]}) from None
    where = f" in {parent.name}" if parent else ""
    events.record(
        actor=actor,
        kind=AuditKind.QUOTA_COHORT_CREATED,
        message=f"created the cohort {cohort.name}{where}",
        data={"cohort": cohort.slug, "parent": parent.slug if parent else None},
    )
    emit(LimitsChanged())
    return cohort


@transaction.atomic
def change_cohort(
    *,
    actor: User | SystemActor,
    cohort: Cohort,
    name: str,
    parent: Cohort | None,
    weight_milli: int,
    fungibility: Fungibility | None = None,
    expected: frozenset[str] = etags.ANY,
) -> Cohort:
    """Change a cohort's name, parent, weight and, if given, the rules for requests that list flavors.

    Raises `InvalidInput` for a cycle, `PreconditionFailed`.
    """
    policies.require_set_limits(actor)
    _check_weight(weight_milli)
    cohorts = _lock_cohorts()
    name = strip_nul(name).strip()
    if not name or len(name) > MAX_NAME:
        name_too_long = Reason(QuotaCode.COHORT_NAME_LENGTH, {"max": MAX_NAME})
        raise InvalidInput(Reason(QuotaCode.COHORT_NAMELESS), errors={"name": [name_too_long]})
    row = cohorts.get(cohort.pk)
    if row is None:
        raise NotFound(Reason(QuotaCode.OWNER_GONE, {"name": cohort.name}))
    etags.require_expected(expected, row, name=row.name)
    _check_place(row, parent, cohorts)
    changes = []
    if row.name != name:
        changes.append(f"name {row.name} → {name}")
    if row.parent_id != (parent.pk if parent else None):
        old = cohorts[row.parent_id].name if row.parent_id else "none"
        changes.append(f"parent {old} → {parent.name if parent else 'none'}")
    if row.weight_milli != weight_milli:
        changes.append(f"weight {_weight(row.weight_milli)} → {_weight(weight_milli)}")
    rules = fungibility or Fungibility(row.borrow_first, row.preempt_first)
    if row.borrow_first != rules.borrow_first:
        changes.append("borrows first" if rules.borrow_first else "tries the next flavor before it borrows")
    if row.preempt_first != rules.preempt_first:
        changes.append(
            "preempts first" if rules.preempt_first else "tries the next flavor before it preempts"
        )
    if not changes:
        return row
    before = row.name
    row.borrow_first, row.preempt_first = rules.borrow_first, rules.preempt_first
    row.name, row.parent, row.weight_milli = name, parent, weight_milli
    row.save()
    events.record(
        actor=actor,
        kind=AuditKind.QUOTA_COHORT_CHANGED,
        message=f"changed the cohort {before}: {', '.join(changes)}",
        data={
            "cohort": row.slug,
            "name": name,
            "parent": parent.slug if parent else None,
            "weight_milli": weight_milli,
            "borrow_first": rules.borrow_first,
            "preempt_first": rules.preempt_first,
        },
    )
    emit(LimitsChanged())
    return row


@transaction.atomic
def delete_cohort(*, actor: User | SystemActor, cohort: Cohort, expected: frozenset[str] = etags.ANY) -> None:
    """Delete an empty cohort and its quotas.

    Raises `StateConflict`, which names its members, if there are any, and `PreconditionFailed`.
    """
    policies.require_set_limits(actor)
    cohorts = _lock_cohorts()
    etags.require_expected(expected, cohorts.get(cohort.pk), name=cohort.name)
    if cohort.pk not in cohorts:
        return
    teams = list(
        TeamShare.objects.filter(cohort=cohort).order_by("team__slug").values_list("team__name", flat=True)
    )
    inside = [child.name for child in cohorts.values() if child.parent_id == cohort.pk]
    if teams or inside:
        children = [*(f"the cohort {name}" for name in inside), *teams]
        params = {
            "name": cohort.name,
            "names": children[:MAX_NAMED],
            "more": max(0, len(children) - MAX_NAMED),
        }
        raise StateConflict(Reason(QuotaCode.COHORT_IN_USE, params), code=ProblemCode.COHORT_IN_USE)
    quotas = list(cohort.quotas.values("resource", "quota", "borrowing_limit", "lending_limit"))
    name, slug = cohort.name, cohort.slug
    cohorts[cohort.pk].delete()
    events.record(
        actor=actor,
        kind=AuditKind.QUOTA_COHORT_DELETED,
        message=f"deleted the cohort {name}",
        data={"cohort": slug, "quotas": quotas},
    )
    emit(LimitsChanged())


@transaction.atomic
def set_share(
    *,
    actor: User | SystemActor,
    team: Team,
    cohort: Cohort | None,
    weight_milli: int = WEIGHT_ONE,
    reclaim: bool = True,
    expected: frozenset[str] = etags.ANY,
) -> TeamShare:
    """Set a team's cohort, weight in thousandths, and whether the team reclaims lent quota."""
    policies.require_set_limits(actor)
    _check_weight(weight_milli)
    cohorts = _lock_cohorts()
    if cohort is not None and cohort.pk not in cohorts:
        raise NotFound(Reason(QuotaCode.OWNER_GONE, {"name": cohort.name}))
    Team.objects.select_for_update().get(pk=team.pk)
    share, created = TeamShare.objects.get_or_create(team=team)
    if not (created and etags.NOTHING in expected):
        etags.require_expected(expected, share, name=team.name)
    old = cohorts[share.cohort_id].name if share.cohort_id in cohorts and share.cohort_id else "none"
    changes = []
    if share.cohort_id != (cohort.pk if cohort else None):
        changes.append(f"cohort {old} → {cohort.name if cohort else 'none'}")
    if share.weight_milli != weight_milli:
        changes.append(f"weight {_weight(share.weight_milli)} → {_weight(weight_milli)}")
    if share.reclaim != reclaim:
        changes.append("reclaims lent quota" if reclaim else "no longer reclaims lent quota")
    if not changes:
        return share
    share.cohort, share.weight_milli, share.reclaim = cohort, weight_milli, reclaim
    share.save(update_fields=["cohort", "weight_milli", "reclaim"])
    events.record(
        actor=actor,
        kind=AuditKind.QUOTA_SHARE_SET,
        team=team,
        message=f"changed the share of {team.name}: {', '.join(changes)}",
        data={
            "cohort": cohort.slug if cohort else None,
            "weight_milli": weight_milli,
            "reclaim": reclaim,
        },
    )
    emit(LimitsChanged())
    return share


def _lock_cohorts() -> dict[object, Cohort]:
    """Lock all cohorts in a fixed order, because two concurrent moves could together create a cycle."""
    return {cohort.pk: cohort for cohort in Cohort.objects.select_for_update().order_by("pk")}


def _check_place(cohort: Cohort, parent: Cohort | None, cohorts: dict[object, Cohort]) -> None:
    """Raise `InvalidInput` for a cycle or excessive nesting."""
    above: list[Cohort] = []
    at = parent.pk if parent else None
    while at is not None:
        if at not in cohorts:
            raise NotFound(Reason(QuotaCode.COHORT_GONE))
        above.append(cohorts[at])
        if at == cohort.pk:
            path = [ancestor.name for ancestor in reversed(above)]
            circle = Reason(QuotaCode.COHORT_INSIDE_ITSELF, {"name": cohort.name, "way": path})
            raise InvalidInput(circle, errors={"parent": [circle]})
        at = cohorts[at].parent_id
    if len(above) + _height(cohort, cohorts) > MAX_DEPTH:
        too_deep = Reason(QuotaCode.COHORTS_TOO_DEEP, {"max": MAX_DEPTH})
        raise InvalidInput(too_deep, errors={"parent": [too_deep]})


def _height(cohort: Cohort, cohorts: dict[object, Cohort]) -> int:
    """Return the height of the cohort's subtree."""
    level, height = {cohort.pk}, 0
    while level:
        height += 1
        level = {child.pk for child in cohorts.values() if child.parent_id in level}
    return height


def _check_weight(weight_milli: int) -> None:
    if not 1 <= weight_milli <= MAX_WEIGHT_MILLI:
        wrong = Reason(QuotaCode.WEIGHT_OUT_OF_RANGE)
        raise InvalidInput(wrong, errors={"weight_milli": [wrong]})


def _weight(milli: int) -> str:
    return format_thousandths(milli, 3)
