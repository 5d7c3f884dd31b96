"""Translates SCIM filters into database conditions. Only stored attributes are supported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.utils.dateparse import parse_datetime

from portal.common.reasons.reason import Reason
from portal.people.scim.codes import ScimCode
from portal.people.scim.errors import invalid_filter
from portal.people.scim.filters import And, Comparison, Node, Not, Or, ValuePath
from portal.people.scim.models import ScimGroup

MATCH_NONE = Q(pk__in=[])
MATCH_ALL = ~MATCH_NONE


class Kind(Enum):
    """How values of an attribute are compared."""

    TEXT = "text"
    EXACT_TEXT = "exact text"
    ID = "id"
    BOOLEAN = "boolean"
    MOMENT = "moment"


@dataclass(frozen=True, slots=True)
class AttributeLookup:
    """Database lookup of an attribute."""

    kind: Kind
    lookup: str


def _of_email(column: AttributeLookup) -> Callable[[Comparison], Q]:
    """Return a function that builds the condition on a sub-attribute of `emails`.

    Accounts without an address lack these attributes and never match.
    """
    return lambda condition: _column_query(condition, column) & ~Q(user__email="")


def _in_group(condition: Comparison) -> Q:
    through = ScimGroup.members.through.objects
    return _link_query(condition, lambda: Q(pk__in=through.values("scimuser_id")),
                   lambda key: Q(pk__in=through.filter(scimgroup_id=key).values("scimuser_id")))  # fmt: skip


def _has_member(condition: Comparison) -> Q:
    present = ScimGroup.members.through.objects.filter(
        scimuser__removed_at=None, scimuser__user__deleted_at=None
    )
    return _link_query(condition, lambda: Q(pk__in=present.values("scimgroup_id")),
                   lambda key: Q(pk__in=present.filter(scimuser_id=key).values("scimgroup_id")))  # fmt: skip


def _link_query(condition: Comparison, any_of: Callable[[], Q], with_key: Callable[[UUID], Q]) -> Q:
    if condition.operator == "pr":
        return any_of()
    if condition.operator not in ("eq", "ne"):
        raise _unsupported(condition)
    key = _uuid(condition.value)
    query = with_key(key) if key is not None else MATCH_NONE
    return query if condition.operator == "eq" else ~query


Attributes = Mapping[str, AttributeLookup | Callable[[Comparison], Q]]
_COMMON: dict[str, AttributeLookup | Callable[[Comparison], Q]] = {
    "externalid": AttributeLookup(Kind.EXACT_TEXT, "external_id"),
    "meta.created": AttributeLookup(Kind.MOMENT, "created_at"),
    "meta.lastmodified": AttributeLookup(Kind.MOMENT, "changed_at"),
    "id": AttributeLookup(Kind.ID, "pk"),
}
USERS: Attributes = _COMMON | {
    "username": AttributeLookup(Kind.TEXT, "user_name"),
    "displayname": AttributeLookup(Kind.TEXT, "display_name"),
    "name.givenname": AttributeLookup(Kind.TEXT, "user__first_name"),
    "name.familyname": AttributeLookup(Kind.TEXT, "user__last_name"),
    "active": AttributeLookup(Kind.BOOLEAN, "user__is_active"),
    "emails": AttributeLookup(Kind.TEXT, "user__email"),
    "emails.value": AttributeLookup(Kind.TEXT, "user__email"),
    "emails.type": _of_email(AttributeLookup(Kind.TEXT, "email_type")),
    "emails.primary": _of_email(AttributeLookup(Kind.BOOLEAN, "email_primary")),
    "groups": _in_group,
    "groups.value": _in_group,
}
GROUPS: Attributes = _COMMON | {
    "displayname": AttributeLookup(Kind.TEXT, "display_name"),
    "members": _has_member,
    "members.value": _has_member,
}


def condition_of(node: Node, attributes: Attributes, within: str = "") -> Q:
    """Return the condition for a filter. Raises `ScimRefusal` (invalidFilter) if it is not supported."""
    match node:
        case And(left, right):
            return condition_of(left, attributes, within) & condition_of(right, attributes, within)
        case Or(left, right):
            return condition_of(left, attributes, within) | condition_of(right, attributes, within)
        case Not(inner):
            return ~condition_of(inner, attributes, within)
        case ValuePath(attribute, inner):
            if within:
                raise invalid_filter(Reason(ScimCode.FILTER_NOT_SUPPORTED, {"attribute": attribute[:100]}))
            return condition_of(inner, attributes, f"{attribute}.")
        case Comparison():
            comparison = Comparison(within + node.attribute, node.operator, node.value)
            column = attributes.get(comparison.attribute)
            if column is None:
                raise _unsupported(comparison)
            return (
                _column_query(comparison, column)
                if isinstance(column, AttributeLookup)
                else column(comparison)
            )


def _column_query(condition: Comparison, column: AttributeLookup) -> Q:
    match column.kind:
        case Kind.BOOLEAN:
            return _boolean_query(condition, column.lookup)
        case Kind.ID:
            return _link_query(condition, lambda: MATCH_ALL, lambda key: Q(**{column.lookup: key}))
        case Kind.MOMENT:
            return _moment_query(condition, column.lookup)
        case Kind.TEXT | Kind.EXACT_TEXT:
            return _text_query(condition, column)


def _text_query(condition: Comparison, column: AttributeLookup) -> Q:
    empty = Q(**{column.lookup: ""})
    value = condition.value
    if condition.operator == "pr" or (value is None and condition.operator == "ne"):
        return ~empty
    if value is None and condition.operator == "eq":
        return empty
    if not isinstance(value, str):
        raise _unsupported(condition)
    case_prefix = "i" if column.kind is Kind.TEXT else ""
    lookup = {
        "eq": f"{case_prefix}exact", "ne": f"{case_prefix}exact", "co": f"{case_prefix}contains",
        "sw": f"{case_prefix}startswith", "ew": f"{case_prefix}endswith",
        "gt": "gt", "ge": "gte", "lt": "lt", "le": "lte",
    }[condition.operator]  # fmt: skip
    query = Q(**{f"{column.lookup}__{lookup}": value})
    return ~query if condition.operator == "ne" else query


def _boolean_query(condition: Comparison, lookup: str) -> Q:
    if condition.operator == "pr":
        return MATCH_ALL
    expected = _boolean(condition)
    if expected is None or condition.operator not in ("eq", "ne"):
        raise _unsupported(condition)
    return Q(**{lookup: expected if condition.operator == "eq" else not expected})


def _moment_query(condition: Comparison, lookup: str) -> Q:
    if condition.operator == "pr":
        return MATCH_ALL
    suffixes = {"eq": "", "ne": "", "gt": "__gt", "ge": "__gte", "lt": "__lt", "le": "__lte"}
    moment = _moment(condition.value)
    if moment is None or condition.operator not in suffixes:
        raise _unsupported(condition)
    query = Q(**{f"{lookup}{suffixes[condition.operator]}": moment})
    return ~query if condition.operator == "ne" else query


def _boolean(condition: Comparison) -> bool | None:
    """Return the boolean value. Entra ID and others send it as text."""
    value = condition.value
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower())
    return value if isinstance(value, bool) else None


def _moment(value: object) -> datetime | None:
    try:
        moment = parse_datetime(value) if isinstance(value, str) else None
        if moment is None or not 1970 <= moment.year < 9000:
            return None
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except ValueError:
        return None


def _uuid(value: Any) -> UUID | None:
    try:
        return UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _unsupported(condition: Comparison) -> Exception:
    return invalid_filter(Reason(ScimCode.FILTER_NOT_SUPPORTED, {"attribute": condition.attribute[:100]}))
