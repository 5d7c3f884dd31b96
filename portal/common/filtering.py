"""Filters of the REST API."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django_filters.rest_framework import DjangoFilterBackend  # type: ignore[import-untyped]
from rest_framework.request import Request


class FilterBackend(DjangoFilterBackend):
    """django-filter's, that makes no form of its fields for a request that names none of them."""

    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: Any) -> QuerySet[Any]:
        filterset_class = self.get_filterset_class(view, queryset)
        if filterset_class is None or request.query_params.keys().isdisjoint(filterset_class.base_filters):
            return queryset
        filtered: QuerySet[Any] = super().filter_queryset(request, queryset, view)
        return filtered
