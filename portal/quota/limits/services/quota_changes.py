"""Changes many quotas at once, all or none, and previews the effects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from django.db import transaction

from portal.common.actors import SystemActor
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, NotFound, PreconditionFailed
from portal.common.formatting import format_amount, format_resource
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import Team, User
from portal.quota.limits import policies
from portal.quota.limits.codes import QuotaCode
from portal.quota.limits.domain_events import LimitsChanged
from portal.quota.limits.models import Quota
from portal.quota.limits.selectors.effects import QuotaEffects, effects_of
from portal.quota.limits.services.limits import clean_amount, clean_resource, write_quota

MAX_CHANGES = 200
"""Maximum number of quotas in one request."""
MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """A new quota of a team, in base units; None deletes it. Borrowing and lending limits stay.

    With `checked`, the stored quota must still be `seen`, which the actor saw (None: no quota).
    """

    team: Team
    resource: str
    quota: int | None
    seen: int | None = None
    checked: bool = False

    @property
    def key(self) -> tuple[UUID, str]:
        return (self.team.pk, self.resource)


@dataclass(frozen=True, slots=True)
class OvertakenQuota:
    """A quota that another user changed after the actor had seen it."""

    change: QuotaChange
    quota: int | None

    @property
    def label(self) -> str:
        return format_resource(self.change.resource)

    @property
    def seen_text(self) -> str:
        """The quota that the actor saw, or "" for none."""
        return self._format(self.change.seen)

    @property
    def quota_text(self) -> str:
        """The current quota, or "" for none."""
        return self._format(self.quota)

    def _format(self, amount: int | None) -> str:
        return "" if amount is None else format_amount(self.change.resource, amount)


@dataclass(frozen=True, slots=True)
class QuotasChanged:
    """The result: the number of changed quotas, and the effects."""

    changed: int
    effects: QuotaEffects


def preview(
    *, actor: User | SystemActor, changes: Sequence[QuotaChange]
) -> tuple[QuotaEffects, list[OvertakenQuota]]:
    """Return the effects of the changes, and quotas that changed since the actor saw them. Writes nothing.

    Raises `NotAllowed` and `InvalidInput` like `change_quotas`.
    """
    policies.require_set_limits(actor)
    changes = _clean(changes)
    return _effects(changes), _overtaken(changes, _rows(changes))


@transaction.atomic
def change_quotas(*, actor: User | SystemActor, changes: Sequence[QuotaChange]) -> QuotasChanged:
    """Set all these quotas, or none. Operators only. One audit entry for each changed quota.

    Raises `NotAllowed`, `InvalidInput` (at `changes.<index>.<field>`; too many), `NotFound` (a deleted team)
    and `PreconditionFailed` if a checked quota is not as seen; `extra["overtaken"]` lists those.
    """
    policies.require_set_limits(actor)
    changes = _clean(changes)
    _lock_teams(changes)
    rows = _rows(changes)
    if overtaken := _overtaken(changes, rows):
        raise _changed_meanwhile(overtaken)
    effects = _effects(changes)
    changed = sum(_write(actor, change, rows.get(change.key)) for change in changes)
    if changed:
        emit(LimitsChanged())
    return QuotasChanged(changed, effects)


def _clean(changes: Sequence[QuotaChange]) -> list[QuotaChange]:
    if not changes:
        raise InvalidInput(Reason(QuotaCode.NO_CHANGES))
    if len(changes) > MAX_CHANGES:
        raise InvalidInput(Reason(QuotaCode.TOO_MANY_CHANGES, {"max": MAX_CHANGES}))
    cleaned: dict[tuple[UUID, str], QuotaChange] = {}
    for index, change in enumerate(changes):
        at = f"changes.{index}"
        try:
            change = replace(change, resource=clean_resource(change.resource))
            if change.quota is not None:
                clean_amount("quota", change.quota)
        except InvalidInput as error:
            errors = {f"{at}.{field}": reasons for field, reasons in error.extra["errors"].items()}
            raise InvalidInput(error.reason, errors=errors) from None
        if change.key in cleaned:
            params = {"team": change.team.name, "resource": change.resource}
            reason = Reason(QuotaCode.CHANGED_TWICE, params)
            raise InvalidInput(reason, errors={f"{at}.resource": [reason]})
        cleaned[change.key] = change
    return list(cleaned.values())


def _lock_teams(changes: Iterable[QuotaChange]) -> None:
    """Lock the teams in a fixed order, so that two changes cannot deadlock."""
    teams = {change.team.pk: change.team for change in changes}
    locked = set(
        Team.objects.select_for_update().filter(pk__in=teams).order_by("pk").values_list("pk", flat=True)
    )
    for key, team in teams.items():
        if key not in locked:
            raise NotFound(Reason(QuotaCode.OWNER_GONE, {"name": team.name}))


def _rows(changes: Iterable[QuotaChange]) -> dict[tuple[UUID, str], Quota]:
    rows = Quota.objects.filter(team__in={change.team.pk for change in changes})
    return {(row.team_id, row.resource): row for row in rows if row.team_id is not None}


def _overtaken(changes: Iterable[QuotaChange], rows: dict[tuple[UUID, str], Quota]) -> list[OvertakenQuota]:
    overtaken = []
    for change in changes:
        row = rows.get(change.key)
        quota = row.quota if row is not None else None
        if change.checked and change.seen != quota:
            overtaken.append(OvertakenQuota(change, quota))
    return overtaken


def _changed_meanwhile(overtaken: list[OvertakenQuota]) -> PreconditionFailed:
    names = [
        f"{quota.change.team.name}: {format_resource(quota.change.resource)}"
        for quota in overtaken[:MAX_NAMED]
    ]
    reason = Reason(QuotaCode.QUOTAS_OVERTAKEN, {"names": names, "more": len(overtaken) - len(names)})
    listed = [
        {
            "team": quota.change.team.slug,
            "resource": quota.change.resource,
            "seen": quota.change.seen,
            "quota": quota.quota,
        }
        for quota in overtaken
    ]
    return PreconditionFailed(reason, code=ProblemCode.CHANGED_MEANWHILE, overtaken=listed)


def _effects(changes: Iterable[QuotaChange]) -> QuotaEffects:
    return effects_of({(change.team.slug, change.resource): change.quota for change in changes})


def _write(actor: User | SystemActor, change: QuotaChange, row: Quota | None) -> bool:
    limits = (row.borrowing_limit, row.lending_limit) if row is not None else (None, None)
    values = (change.quota, *limits) if change.quota is not None else None
    return write_quota(actor=actor, owner=change.team, resource=change.resource, row=row, target=values)
