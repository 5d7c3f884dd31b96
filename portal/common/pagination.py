"""Cursor pagination: stable under inserts and deletes, with constant cost per page."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from django.core.exceptions import ValidationError
from django.db import DataError
from django.utils.translation import gettext as _
from rest_framework import exceptions
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request

from portal.common.errors import InvalidInput
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import next_action_of


class Pages(CursorPagination):
    """Cursor pagination in the view's `ordering`. Rejects invalid parameters."""

    page_size = 50
    max_page_size = 200
    page_size_query_param = "page_size"

    def get_ordering(self, request: Request, queryset: Any, view: Any) -> tuple[str, ...]:
        return tuple(view.sorted_by())

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any] | None:
        try:
            return super().paginate_queryset(queryset, request, view)
        except exceptions.NotFound:
            raise _bad_cursor() from None
        except (ValueError, TypeError, OverflowError, DataError, ValidationError) as error:
            if self.cursor_query_param in request.query_params:
                raise _bad_cursor() from error
            raise

    def get_page_size(self, request: Request) -> int | None:
        given = request.query_params.get(self.page_size_query_param)
        if given is None:
            return self.page_size
        return whole_number(
            given, CommonCode.PAGE_SIZE_INVALID, field=self.page_size_query_param, maximum=self.max_page_size
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


def whole_number(given: str, code: StrEnum, *, field: str, maximum: int) -> int:
    """Parse a query parameter from 1 to `maximum`. Raises `InvalidInput` with `code`."""
    if given.isascii() and given.isdigit() and len(given) < 8 and 1 <= int(given) <= maximum:
        return int(given)
    reason = Reason(code, {"maximum": maximum})
    raise InvalidInput(reason, errors={field: [next_action_of(reason)]})


def _bad_cursor() -> InvalidInput:
    return InvalidInput(
        Reason(CommonCode.CURSOR_INVALID),
        errors={"cursor": [_("Use a value from a “next” or “previous” link.")]},
    )
