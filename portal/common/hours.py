"""Serializer field for durations in hours that are stored in seconds."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.fields import empty


class HoursField(serializers.FloatField):
    """Accepts and shows hours.

    Value and default are whole seconds; `source` is the stored field.
    """

    def run_validation(self, data: Any = empty) -> Any:
        hours = super().run_validation(data)
        return round(hours * 3600) if isinstance(hours, float) else hours

    def to_representation(self, value: Any) -> Any:
        return round(value / 3600, 4)
