"""Filters of the REST API."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django import forms
from django.db.models import QuerySet
from django_filters import rest_framework as filters  # type: ignore[import-untyped]
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

BOOLEANS = ("true", "false")


class MomentField(filters.IsoDateTimeFilter.field_class):
    """Parses an ISO 8601 time and converts it to UTC, because databases do not accept every UTC offset."""

    def to_python(self, value: Any) -> datetime | None:
        moment: datetime | None = super().to_python(value)
        try:
            return moment.astimezone(UTC) if moment is not None else None
        except OverflowError as error:
            raise forms.ValidationError(self.error_messages["invalid"], code="invalid") from error


class MomentFilter(filters.IsoDateTimeFilter):
    """Filter by a point in time."""

    field_class = MomentField


class FilterBackend(filters.DjangoFilterBackend):
    """DjangoFilterBackend that builds no form for requests without filters.

    Rejects values that the OpenAPI document does not allow. django-filter would ignore the filter and return
    an unfiltered list.
    """

    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: Any) -> QuerySet[Any]:
        filterset_class = self.get_filterset_class(view, queryset)
        if filterset_class is None or request.query_params.keys().isdisjoint(filterset_class.base_filters):
            return queryset
        _require_documented(request, filterset_class)
        filtered: QuerySet[Any] = super().filter_queryset(request, queryset, view)
        return filtered


def _require_documented(request: Request, filterset_class: type[filters.FilterSet]) -> None:
    """Raise `ValidationError` for invalid booleans. `ApiView` refuses empty values."""
    errors: dict[str, list[Any]] = {}
    for name, values in request.query_params.lists():
        filter_ = filterset_class.base_filters.get(name)
        if isinstance(filter_, filters.BooleanFilter) and any(value not in BOOLEANS for value in values):
            errors[name] = [serializers.BooleanField.default_error_messages["invalid"]]
    if errors:
        raise ValidationError(errors)
