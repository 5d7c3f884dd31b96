"""Cursor pagination of REST lists (`keyset`)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from django.utils.translation import gettext as _
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request
from rest_framework.utils.urls import replace_query_param

from portal.common import keyset
from portal.common.errors import InvalidInput
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import next_action_of


class Pages(CursorPagination):
    """Cursor pagination in the view's order. Rejects invalid parameters.

    DRF's cursor holds the first field of the order and an offset among rows with the same value, at most
    1,000. This one holds all fields.
    """

    page_size = 50
    max_page_size = 200
    page_size_query_param = "page_size"
    ordering: tuple[str, ...]
    _page: keyset.KeysetPage
    _address: str

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any] | None:
        self._address = request.build_absolute_uri()
        self.ordering = tuple(view.sorted_by())
        size = self.get_page_size(request)
        text = request.query_params.get(self.cursor_query_param)
        try:
            cursor = keyset.Cursor() if text is None else keyset.decode(text, self.ordering)
            self._page = keyset.read(queryset, self.ordering, cursor, size)
        except keyset.InvalidCursor as error:
            raise _bad_cursor() from error
        return self._page.rows

    def get_next_link(self) -> str | None:
        return self._link(self._page.next)

    def get_previous_link(self) -> str | None:
        return self._link(self._page.previous)

    def _link(self, cursor: keyset.Cursor | None) -> str | None:
        if cursor is None:
            return None
        text = keyset.encode(cursor, self.ordering)
        link: str = replace_query_param(self._address, self.cursor_query_param, text)
        return link

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
                "description": f"URL of the {of} page with the same filters; null if there is none.",
                "example": "https://berth.example.org/api/v1/workspaces?cursor=cD0yMDI2",
            }

        rows = {**schema, "description": "The items, in list order."}
        return {
            "type": "object",
            "required": ["next", "previous", "results"],
            "properties": {"next": link("next"), "previous": link("previous"), "results": rows},
        }


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
