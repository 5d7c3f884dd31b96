"""Cursor pages: stable while rows come and go, and as fast on page 1000 as on the first."""

from __future__ import annotations

from rest_framework.pagination import CursorPagination as BaseCursorPagination


class CursorPagination(BaseCursorPagination):
    page_size = 50
    max_page_size = 200
    page_size_query_param = "page_size"
    ordering = "-id"
