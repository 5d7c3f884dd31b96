"""Reclaim policies as JSON documents, for history, REST and the site file."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, time
from typing import Any
from zoneinfo import available_timezones

from django.core.exceptions import ValidationError

from portal.catalog.models import Flavor, Template
from portal.common.errors import InvalidInput
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.models import Pool
from portal.people.accounts.models import Team
from portal.reclaim.codes import LifetimeCode
from portal.reclaim.engine.week import DAYS
from portal.reclaim.models import PolicyScope, ReclaimPolicy
from portal.reclaim.policies import with_existing_target

Document = dict[str, Any]
LIMITS = (
    "idle_minutes", "idle_gpu_minutes", "gpu_unused_minutes", "release_gpu_minutes", "longest_hours",
    "notice_minutes", "stop_when_spent", "archive_days", "delete_days",
)  # fmt: skip
WEEK = ("zone", "days", "work_from", "work_until", "after_hours_minutes", "stop_at", "start_at", "holidays")
FIELDS = (*LIMITS, *WEEK)
TIMES = frozenset({"work_from", "work_until", "stop_at", "start_at"})
MAX_HOLIDAYS = 400


def document_of(row: ReclaimPolicy) -> Document:
    """Return the values of a policy without its target. Times of day are strings such as 19:00."""
    return {name: _as_json(getattr(row, name)) for name in FIELDS}


def all_documents() -> dict[str, Document]:
    """Return all policies by target; one query."""
    rows = with_existing_target(ReclaimPolicy.objects.select_related("pool", "template", "flavor", "team"))
    return {row.target: document_of(row) for row in sorted(rows, key=lambda row: row.target)}


def stored_values(values: Mapping[str, Any]) -> Document:
    """Return the fields in stored form, with sorted, unique days and holidays."""
    document = dict(values)
    for name in ("days", "holidays"):
        if isinstance(document.get(name), list):
            document[name] = _sort_values(document[name])
    return document


def _sort_values(value: list[Any]) -> list[Any]:
    return sorted(set(value), key=DAYS.index if _days(value) else str)


def _as_json(value: Any) -> Any:
    return value.isoformat("minutes") if isinstance(value, time) else value


def target_of(text: str) -> dict[str, Any]:
    """Return the columns of a target: `site`, or kind and slug. Raises `InvalidInput`."""
    kind, _, slug = text.partition(":")
    rows: Any = {
        PolicyScope.POOL: Pool.objects.filter(deleted_at=None),
        PolicyScope.TEMPLATE: Template.objects.filter(deleted_at=None),
        PolicyScope.FLAVOR: Flavor.objects.filter(deleted_at=None),
        PolicyScope.TEAM: Team.objects.all(),
    }
    if text == PolicyScope.SITE:
        return {"scope": PolicyScope.SITE}
    match = rows[kind].filter(slug=slug).first() if kind in rows and "\0" not in slug else None
    if match is None:
        raise unknown_target(text)
    return {"scope": kind, kind: match}


def unknown_target(text: str) -> InvalidInput:
    """Return the error for a target that does not exist or is not visible to the actor."""
    reason = Reason(LifetimeCode.POLICY_TARGET_UNKNOWN, {"target": text[:100]})
    return InvalidInput(reason, errors={"for": [reason]})


def fill(row: ReclaimPolicy, values: Mapping[str, Any]) -> None:
    """Write the fields in `values` to an unsaved row. Raises `InvalidInput`."""
    problems: dict[str, list[Any]] = {}
    for name in FIELDS:
        if name not in values:
            continue
        value = values[name]
        if name in TIMES and isinstance(value, str):
            try:
                value = time.fromisoformat(value).replace(second=0, microsecond=0, tzinfo=None)
            except ValueError:
                problems[name] = [Reason(LifetimeCode.POLICY_HOURS_INCOMPLETE)]
                continue
        if name in ("days", "holidays"):
            value = _sort_values(value or [])
        setattr(row, name, value if name != "zone" else (value or ""))
    problems |= {name: [Reason(code)] for name, code in _problems(row).items()}
    if problems:
        raise InvalidInput(Reason(LifetimeCode.POLICY_NOT_VALID), errors=problems)
    try:
        row.full_clean(validate_unique=False, validate_constraints=False)
    except ValidationError as error:
        raise InvalidInput(Reason(LifetimeCode.POLICY_NOT_VALID), errors=error.message_dict) from error


def _days(value: Any) -> bool:
    return isinstance(value, list) and all(day in DAYS for day in value)


def _problems(row: ReclaimPolicy) -> dict[str, LifetimeCode]:
    problems = {}
    if row.zone and row.zone not in available_timezones():
        problems["zone"] = LifetimeCode.POLICY_ZONE_UNKNOWN
    if not _days(row.days):
        problems["days"] = LifetimeCode.POLICY_DAYS_UNKNOWN
    elif (row.work_from or row.stop_at) and not (row.days and row.zone):
        problems["days"] = LifetimeCode.POLICY_DAYS_MISSING
    has_span = row.work_from is not None and row.work_until is not None and row.work_from < row.work_until
    hours = row.work_from is not None or row.work_until is not None or row.after_hours_minutes is not None
    if hours and not (has_span and (row.after_hours_minutes or row.stop_at)):
        problems["work_until"] = LifetimeCode.POLICY_HOURS_INCOMPLETE
    if row.start_at is not None and (row.stop_at is None or row.start_at == row.stop_at):
        problems["start_at"] = LifetimeCode.POLICY_START_WITHOUT_STOP
    if len(row.holidays) > MAX_HOLIDAYS or not all(_is_date(holiday) for holiday in row.holidays):
        problems["holidays"] = LifetimeCode.POLICY_HOLIDAYS_UNKNOWN
    if row.scope == PolicyScope.TEAM and row.notice_minutes is not None:
        # A longer notice would weaken limits, and a team must not shorten the notice.
        problems["notice_minutes"] = LifetimeCode.POLICY_NOT_FOR_TEAM
    if row.scope == PolicyScope.TEAM and row.delete_days is not None:
        problems["delete_days"] = LifetimeCode.POLICY_NOT_FOR_TEAM
    if row.scope in (PolicyScope.TEMPLATE, PolicyScope.FLAVOR):
        of_homes = (name for name in ("archive_days", "delete_days") if getattr(row, name) is not None)
        problems |= dict.fromkeys(of_homes, LifetimeCode.POLICY_NOT_FOR_HOMES)
    if all(document_of(row)[name] in (None, "", []) for name in (*LIMITS, "work_from", "stop_at")):
        problems["idle_gpu_minutes"] = LifetimeCode.POLICY_SAYS_NOTHING
    return problems


def _is_date(value: Any) -> bool:
    try:
        return isinstance(value, str) and date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False
