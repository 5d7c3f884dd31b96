"""Pages of long lists by cursors: stable under inserts and deletes, with constant cost per page.

A cursor holds the values of the list's order in one row. Together they identify the row, so the order ends
with the primary key. No value may be null.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db import DataError
from django.db.models import Q, QuerySet


class InvalidCursor(ValueError):
    """The cursor is malformed, or belongs to another order."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The start of a page: after `values` in the order of the list, or before them if `backwards`.

    Without values: at the beginning, or at the end if `backwards`.
    """

    values: tuple[Any, ...] | None = None
    backwards: bool = False


@dataclass(frozen=True, slots=True)
class KeysetPage:
    """Rows of a page, and the cursors of the next and previous pages; None if there is no such page."""

    rows: list[Any]
    next: Cursor | None
    previous: Cursor | None


def encode(cursor: Cursor, order: Sequence[str]) -> str:
    """Return the cursor as text for a URL."""
    text = json.dumps([",".join(order), cursor.backwards, cursor.values], default=str, separators=(",", ":"))
    return urlsafe_b64encode(text.encode()).decode()


def decode(text: str, order: Sequence[str]) -> Cursor:
    """Return the cursor of a URL. Raises `InvalidCursor`."""
    try:
        name, backwards, values = json.loads(urlsafe_b64decode(text.encode()))
    except (ValueError, TypeError, RecursionError):
        raise InvalidCursor from None
    plain = values is None or (
        isinstance(values, list)
        and len(values) == len(order)
        and all(isinstance(value, str | int) for value in values)
    )
    if name != ",".join(order) or not isinstance(backwards, bool) or not plain:
        raise InvalidCursor
    return Cursor(None if values is None else tuple(values), backwards)


def read(queryset: QuerySet[Any, Any], order: Sequence[str], cursor: Cursor, size: int) -> KeysetPage:
    """Read up to `size` rows in one query. Rows are instances or mappings with the fields of `order`.

    Raises `InvalidCursor` for values that the database cannot compare.
    """
    ordered = _reversed(order) if cursor.backwards else tuple(order)
    try:
        if cursor.values is not None:
            queryset = queryset.filter(_rows_after(ordered, cursor.values))
        rows = list(queryset.order_by(*ordered)[: size + 1])
    except (ValueError, TypeError, OverflowError, DataError, ValidationError) as error:
        if cursor.values is None:
            raise
        raise InvalidCursor from error
    has_more = len(rows) > size
    rows = rows[:size]
    if cursor.backwards:
        rows.reverse()
    first = Cursor(_values(rows[0], order) if rows else None, backwards=True)
    last = Cursor(_values(rows[-1], order) if rows else None)
    # Rows exist before the start of the page, unless it starts at an end of the list.
    before = cursor.values is not None
    if cursor.backwards:
        return KeysetPage(rows, last if before else None, first if has_more else None)
    return KeysetPage(rows, last if has_more else None, first if before else None)


def _reversed(order: Sequence[str]) -> tuple[str, ...]:
    return tuple(name[1:] if name.startswith("-") else f"-{name}" for name in order)


def _rows_after(order: Sequence[str], values: Sequence[Any]) -> Q:
    """Return the condition for rows that follow the row with these values.

    A separate condition bounds the first field, so that databases use its index.
    """
    first, *_rest = order
    bound = Q(**{f"{first.lstrip('-')}__{'lte' if first.startswith('-') else 'gte'}": values[0]})
    same, following = Q(), Q()
    for name, value in zip(order, values, strict=True):
        field = name.lstrip("-")
        following |= same & Q(**{f"{field}__{'lt' if name.startswith('-') else 'gt'}": value})
        same &= Q(**{field: value})
    return bound & following if len(order) > 1 else following


def _values(row: Any, order: Sequence[str]) -> tuple[Any, ...]:
    return tuple(_value(row, name.lstrip("-")) for name in order)


def _value(row: Any, name: str) -> Any:
    if isinstance(row, Mapping):
        return row[name]
    for part in name.split("__"):
        row = getattr(row, part)
    return row
