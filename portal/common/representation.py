"""Represents rows of frequently read REST lists fast.

A DRF serializer copies its fields per request and resolves attributes per row, which takes most of the time
of a list. `RowRepresentation` inspects a serializer class once.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any

from rest_framework import serializers

Show = Callable[[Any, Any], Any]
"""Returns the representation of a field from a serializer and a row."""


def stamp(at: dt.datetime | None) -> str | None:
    """Format a time like DRF's `DateTimeField`: ISO 8601, in UTC."""
    if at is None:
        return None
    text = at.isoformat()
    if not text.endswith("+00:00"):
        text = at.astimezone(dt.UTC).isoformat()
    return text[:-6] + "Z"


class RowRepresentation:
    """Serializer mixin that represents rows without using DRF's fields for each row.

    A field shows `get_<name>(row)` if the serializer has that method, else the value of its `source`, or null
    if the source passes through null. For a nested serializer with this mixin, the method returns the row or
    rows to show; for any other field, the value in its REST form.

    `Meta.live` names fields that also depend on the current time.
    """

    def to_representation(self, row: Any) -> dict[str, Any]:
        data = self.cacheable_fields(row)
        for name, show in self._fields.live:
            data[name] = show(self, row)
        return data

    def cacheable_fields(self, row: Any) -> dict[str, Any]:
        """Return all fields in order. Fields in `Meta.live` have no value yet."""
        fields = self._fields
        data = dict(zip(fields.names, fields.values(row), strict=True))
        for name in fields.times:
            data[name] = stamp(data[name])
        for name, show in fields.others:
            data[name] = show(self, row)
        return data

    @cached_property
    def _fields(self) -> _Representation:
        kind: Any = type(self)
        return _representation_of(kind)

    def shared_value(self, show: Callable[[Any], Any], value: Any) -> Any:
        """Return `show(value)`, cached for all rows of a list that share the object `value`."""
        key = (show, id(value))
        if key not in self._shown_cache:
            # Keep the value, so that its id is not reused while the result is cached.
            self._shown_cache[key] = (value, show(value))
        return self._shown_cache[key][1]

    def part(self, serializer: type[Any]) -> Any:
        """Return this serializer's instance of a nested serializer.

        Both share the cache of `shared_value`.
        """
        part = self._parts.get(serializer)
        if part is None:
            part = self._parts[serializer] = serializer()
            part.__dict__["_shown_cache"] = self._shown_cache
        return part

    @cached_property
    def _shown_cache(self) -> dict[tuple[Callable[[Any], Any], int], tuple[Any, Any]]:
        return {}

    @cached_property
    def _parts(self) -> dict[type[Any], Any]:
        return {}


@dataclass(frozen=True, slots=True)
class _Representation:
    """Fields of a serializer class, in order.

    `values` reads all fields from a row. Values of fields in `others` and `live` are placeholders.
    """

    names: tuple[str, ...]
    values: Callable[[Any], tuple[Any, ...]]
    times: tuple[str, ...]
    others: tuple[tuple[str, Show], ...]
    live: tuple[tuple[str, Show], ...]


@lru_cache(maxsize=256)
def _representation_of(serializer: Any) -> _Representation:
    fields: dict[str, Any] = {
        name: field for name, field in serializer().fields.items() if not field.write_only
    }
    live_names: frozenset[str] = getattr(getattr(serializer, "Meta", None), "live", frozenset())
    sources: list[str] = []
    times: list[str] = []
    others: list[tuple[str, Show]] = []
    live: list[tuple[str, Show]] = []
    for name, field in fields.items():
        is_time = type(field) is serializers.DateTimeField
        read_directly = (
            name not in live_names
            and (is_time or _needs_no_conversion(field))
            and _method_of(serializer, field) is None
            and not _may_lead_through_null(field)
        )
        sources.append(field.source if read_directly else "__class__")
        if not read_directly:
            (live if name in live_names else others).append((name, _show_function(serializer, field)))
        elif is_time:
            times.append(name)
    return _Representation(tuple(fields), _getter(sources), tuple(times), tuple(others), tuple(live))


def _getter(sources: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    get = attrgetter(*sources)
    return get if len(sources) > 1 else lambda row: (get(row),)


_AS_IS = (
    serializers.BooleanField,
    serializers.CharField,
    serializers.ChoiceField,
    serializers.FloatField,
    serializers.IntegerField,
    serializers.JSONField,
)
_HOLDERS = (serializers.DictField, serializers.ListField)
_ANYTHING = type(serializers.DictField.child)


def _needs_no_conversion(field: Any) -> bool:
    """Return whether the field would show the value of a row unchanged."""
    if type(field) in _HOLDERS:
        return type(field.child) is _ANYTHING or _needs_no_conversion(field.child)
    return type(field) in _AS_IS


def _may_lead_through_null(field: Any) -> bool:
    return field.allow_null and "." in field.source


def _method_of(serializer: type[Any], field: Any) -> Show | None:
    method_name = getattr(field, "method_name", None) or f"get_{field.field_name}"
    if hasattr(serializers.ModelSerializer, method_name):
        # Ignore methods of every serializer, such as `get_value`.
        return None
    method: Show | None = getattr(serializer, method_name, None)
    return method


def _show_function(serializer: type[Any], field: Any) -> Show:
    method = _method_of(serializer, field)
    read = method or _reader(field)
    is_list = isinstance(field, serializers.ListSerializer)
    nested = type(field.child) if is_list else type(field)
    if issubclass(nested, RowRepresentation):
        return _show_rows(nested, read) if is_list else _show_row(nested, read)
    if method is not None:
        return method
    if _needs_no_conversion(field):
        return read
    return _show_value(stamp if type(field) is serializers.DateTimeField else field.to_representation, read)


def _reader(field: Any) -> Show:
    if not _may_lead_through_null(field):
        get = attrgetter(field.source)
        return lambda _serializer, row: get(row)
    path = tuple(field.source.split("."))

    def read(_serializer: Any, row: Any) -> Any:
        for name in path:
            if row is None:
                return None
            row = getattr(row, name)
        return row

    return read


def _show_value(show: Callable[[Any], Any], read: Show) -> Show:
    def shown(serializer: Any, row: Any) -> Any:
        value = read(serializer, row)
        return None if value is None else show(value)

    return shown


def _show_row(nested: type[Any], read: Show) -> Show:
    def shown(serializer: Any, row: Any) -> Any:
        value = read(serializer, row)
        return None if value is None else serializer.part(nested).to_representation(value)

    return shown


def _show_rows(nested: type[Any], read: Show) -> Show:
    def shown(serializer: Any, row: Any) -> Any:
        values = read(serializer, row)
        return [serializer.part(nested).to_representation(value) for value in values] if values else []

    return shown
