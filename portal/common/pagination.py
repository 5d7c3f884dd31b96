"""Cursor pagination: stable under inserts and deletes, with constant cost per page."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.core.exceptions import ValidationError
from django.db import DataError
from django.db.models import Q
from django.utils.translation import gettext as _
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request
from rest_framework.utils.urls import replace_query_param

from portal.common.errors import InvalidInput
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import next_action_of


@dataclass(frozen=True, slots=True)
class _Cursor:
    """Where a page begins: after `values` in the order of the list, or before them if `backwards`.

    `values` are those of the fields of the order in one row, which together identify it. None is the
    beginning, or the end if `backwards`.
    """

    values: tuple[Any, ...] | None = None
    backwards: bool = False


class Pages(CursorPagination):
    """Cursor pagination in the view's order. Rejects invalid parameters.

    DRF's cursor has the first field of the order and counts rows of the same value, up to 1,000. This one
    has all fields.
    """

    page_size = 50
    max_page_size = 200
    page_size_query_param = "page_size"
    ordering: tuple[str, ...]
    _at: _Cursor
    _address: str

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any] | None:
        self._address = request.build_absolute_uri()
        self.ordering = tuple(view.sorted_by())
        size = self.get_page_size(request)
        self._at = self._cursor_in(request)
        order = _reversed(self.ordering) if self._at.backwards else self.ordering
        try:
            if self._at.values is not None:
                queryset = queryset.filter(_beyond(order, self._at.values))
            rows = list(queryset.order_by(*order)[: size + 1])
        except (ValueError, TypeError, OverflowError, DataError, ValidationError) as error:
            if self.cursor_query_param in request.query_params:
                raise _bad_cursor() from error
            raise
        self._has_more = len(rows) > size
        self.page = rows[:size]
        if self._at.backwards:
            self.page.reverse()
        return self.page

    def get_next_link(self) -> str | None:
        if self._at.backwards:
            # Without rows here, all are behind this page.
            return None if self._at.values is None else self._link(self._row_values(-1), backwards=False)
        return self._link(self._row_values(-1), backwards=False) if self._has_more else None

    def get_previous_link(self) -> str | None:
        if not self._at.backwards:
            return None if self._at.values is None else self._link(self._row_values(0), backwards=True)
        return self._link(self._row_values(0), backwards=True) if self._has_more else None

    def _row_values(self, number: int) -> list[Any] | None:
        """Return the values of the order in a row of the page, or None on an empty page."""
        return [_value(self.page[number], name.lstrip("-")) for name in self.ordering] if self.page else None

    def _link(self, values: Sequence[Any] | None, *, backwards: bool) -> str:
        text = json.dumps([",".join(self.ordering), backwards, values], default=str, separators=(",", ":"))
        encoded = urlsafe_b64encode(text.encode()).decode()
        link: str = replace_query_param(self._address, self.cursor_query_param, encoded)
        return link

    def _cursor_in(self, request: Request) -> _Cursor:
        """Return the cursor of the request. Raises `InvalidInput` if it is malformed or of another order."""
        cursor = request.query_params.get(self.cursor_query_param)
        if cursor is None:
            return _Cursor()
        try:
            order, backwards, values = json.loads(urlsafe_b64decode(cursor.encode()))
        except (ValueError, TypeError, RecursionError):
            raise _bad_cursor() from None
        plain = values is None or (
            isinstance(values, list)
            and len(values) == len(self.ordering)
            and all(isinstance(value, str | int) for value in values)
        )
        if order != ",".join(self.ordering) or not isinstance(backwards, bool) or not plain:
            raise _bad_cursor()
        return _Cursor(None if values is None else tuple(values), backwards)

    def get_page_size(self, request: Request) -> int:
        text = request.query_params.get(self.page_size_query_param)
        if text is None:
            return self.page_size
        return whole_number(
            text, CommonCode.PAGE_SIZE_INVALID, field=self.page_size_query_param, maximum=self.max_page_size
        )

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema with nullable links in OpenAPI 3.1 form. DRF's own is 3.0."""

        def link(of: str) -> dict[str, Any]:
            return {
                "type": ["string", "null"],
                "format": "uri",
                "description": f"The {of} page with the same filters; null where there is none.",
                "example": "https://berth.example.org/api/v1/workspaces?cursor=cD0yMDI2",
            }

        rows = {**schema, "description": "The rows, in the order of the list."}
        return {
            "type": "object",
            "required": ["next", "previous", "results"],
            "properties": {"next": link("next"), "previous": link("previous"), "results": rows},
        }


def _reversed(order: Sequence[str]) -> tuple[str, ...]:
    return tuple(name[1:] if name.startswith("-") else f"-{name}" for name in order)


def _beyond(order: Sequence[str], values: Sequence[Any]) -> Q:
    """Return the condition for rows that follow the row with these values.

    The first field is bounded by itself as well, so that databases use its index.
    """
    first, *_rest = order
    bound = Q(**{f"{first.lstrip('-')}__{'lte' if first.startswith('-') else 'gte'}": values[0]})
    same, following = Q(), Q()
    for name, value in zip(order, values, strict=True):
        field = name.lstrip("-")
        following |= same & Q(**{f"{field}__{'lt' if name.startswith('-') else 'gt'}": value})
        same &= Q(**{field: value})
    return bound & following if len(order) > 1 else following


def _value(row: Any, name: str) -> Any:
    if isinstance(row, Mapping):
        return row[name]
    for part in name.split("__"):
        row = getattr(row, part)
    return row


def whole_number(text: str, code: StrEnum, *, field: str, maximum: int) -> int:
    """Parse a query parameter from 1 to `maximum`. Raises `InvalidInput` with `code`."""
    if text.isascii() and text.isdigit() and len(text) < 8 and 1 <= int(text) <= maximum:
        return int(text)
    reason = Reason(code, {"maximum": maximum})
    raise InvalidInput(reason, errors={field: [next_action_of(reason)]})


def _bad_cursor() -> InvalidInput:
    return InvalidInput(
        Reason(CommonCode.CURSOR_INVALID),
        errors={"cursor": [_("Use a value from a “next” or “previous” link.")]},
    )
