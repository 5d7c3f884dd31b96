"""How REST shows the rows of lists that are read often.

A DRF serializer copies its fields for each request and asks each of them for its attribute, row by row. That
is most of the time of a list. `RowRepresentation` reads the fields of a serializer class once.
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
"""What a field shows of a row, for a serializer."""


def stamp(at: dt.datetime | None) -> str | None:
    """A time as DRF's `DateTimeField` shows it: ISO 8601, in UTC."""
    if at is None:
        return None
    text = at.isoformat()
    if not text.endswith("+00:00"):
        text = at.astimezone(dt.UTC).isoformat()
    return text[:-6] + "Z"


class RowRepresentation:
    """Mixin of serializers: represents rows by their fields, without asking the fields for each row.

    A field shows `get_<name>(row)` where the serializer has such a method, else what its `source` names: null
    where the source leads through null. Of a nested serializer with this mixin, the method returns the row or
    the rows to show; of any other field, the value as REST has it.

    `Meta.live` names the fields that follow from the present time too, not from the row alone.
    """

    def to_representation(self, row: Any) -> dict[str, Any]:
        shown = self.lasting(row)
        for name, show in self._fields.live:
            shown[name] = show(self, row)
        return shown

    def lasting(self, row: Any) -> dict[str, Any]:
        """Return all fields in their order. Those in `Meta.live` have no value yet."""
        fields = self._fields
        shown = dict(zip(fields.names, fields.values(row), strict=True))
        for name in fields.times:
            shown[name] = stamp(shown[name])
        for name, show in fields.others:
            shown[name] = show(self, row)
        return shown

    @cached_property
    def _fields(self) -> _Representation:
        kind: Any = type(self)
        return _representation_of(kind)

    def once(self, show: Callable[[Any], Any], value: Any) -> Any:
        """Return `show(value)`, computed once for all rows of a list that share the object `value`."""
        key = (show, id(value))
        if key not in self._shown:
            # With the value, so that no other one gets its id while this is remembered.
            self._shown[key] = (value, show(value))
        return self._shown[key][1]

    def part(self, serializer: type[Any]) -> Any:
        """Return this serializer's own instance of a nested one. Both share what `once` remembers."""
        part = self._parts.get(serializer)
        if part is None:
            part = self._parts[serializer] = serializer()
            part.__dict__["_shown"] = self._shown
        return part

    @cached_property
    def _shown(self) -> dict[tuple[Callable[[Any], Any], int], tuple[Any, Any]]:
        return {}

    @cached_property
    def _parts(self) -> dict[type[Any], Any]:
        return {}


@dataclass(frozen=True, slots=True)
class _Representation:
    """The fields of a serializer class in their order.

    `values` reads them all from a row: those in `others` and `live` as anything, to be replaced.
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
            and (is_time or _shows_as_is(field))
            and _method_of(serializer, field) is None
            and not _may_lead_through_null(field)
        )
        sources.append(field.source if read_directly else "__class__")
        if not read_directly:
            (live if name in live_names else others).append((name, _show(serializer, field)))
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


def _shows_as_is(field: Any) -> bool:
    """Whether JSON shows the value of a row as the field would."""
    if type(field) in _HOLDERS:
        return type(field.child) is _ANYTHING or _shows_as_is(field.child)
    return type(field) in _AS_IS


def _may_lead_through_null(field: Any) -> bool:
    return field.allow_null and "." in field.source


def _method_of(serializer: type[Any], field: Any) -> Show | None:
    named = getattr(field, "method_name", None) or f"get_{field.field_name}"
    if hasattr(serializers.ModelSerializer, named):
        # Of every serializer, such as `get_value`.
        return None
    method: Show | None = getattr(serializer, named, None)
    return method


def _show(serializer: type[Any], field: Any) -> Show:
    method = _method_of(serializer, field)
    read = method or _reader(field)
    many = isinstance(field, serializers.ListSerializer)
    nested = type(field.child) if many else type(field)
    if issubclass(nested, RowRepresentation):
        return _show_rows(nested, read) if many else _show_row(nested, read)
    if method is not None:
        return method
    if _shows_as_is(field):
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
