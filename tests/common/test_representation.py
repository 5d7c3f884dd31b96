"""Rows are represented by their serializer's fields, which are inspected once per class."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from rest_framework import serializers

from portal.common.representation import RowRepresentation

AT = datetime(2026, 11, 21, 10, 30, 15, 250_000, tzinfo=UTC)


class PartSerializer(RowRepresentation, serializers.Serializer[Any]):
    name = serializers.CharField()
    words = serializers.CharField()

    def get_words(self, row: Any) -> str:
        return str(self.shared_value(said.append, row.reason) or f"{row.reason['code']}!")


class ThingSerializer(RowRepresentation, serializers.Serializer[Any]):
    id = serializers.UUIDField()
    value = serializers.IntegerField()
    at = serializers.DateTimeField(source="made.at")
    ended_at = serializers.DateTimeField(allow_null=True)
    team = serializers.CharField(source="team.slug", allow_null=True)
    tags = serializers.ListField(child=serializers.CharField())
    hours = serializers.DurationField(allow_null=True)
    double = serializers.SerializerMethodField(method_name="doubled")
    first = PartSerializer(allow_null=True)
    parts = PartSerializer(many=True)
    age = serializers.IntegerField()
    secret = serializers.CharField(write_only=True)

    class Meta:
        live = frozenset({"age"})

    def doubled(self, row: Any) -> int:
        return int(row.value) * 2

    def get_first(self, row: Any) -> Any:
        return row.parts[0] if row.parts else None

    def get_age(self, row: Any) -> int:
        return len(said)


said: list[Any] = []


def thing(**more: Any) -> Any:
    values = {
        "id": UUID(int=7),
        "value": 3,
        "made": SimpleNamespace(at=AT),
        "ended_at": None,
        "team": None,
        "tags": ["a"],
        "hours": None,
        "parts": [],
    }
    return SimpleNamespace(**values | more)


def test_fields_are_represented_in_order_from_their_source() -> None:
    shown = ThingSerializer(thing(hours=timedelta(hours=2))).data
    assert list(shown) == [
        *("id", "value", "at", "ended_at", "team", "tags", "hours", "double", "first", "parts", "age"),
    ]
    assert (shown["id"], shown["value"], shown["double"]) == (str(UUID(int=7)), 3, 6)
    assert (shown["at"], shown["ended_at"]) == ("2026-11-21T10:30:15.250000Z", None)
    assert (shown["team"], shown["tags"], shown["hours"]) == (None, ["a"], "02:00:00")
    assert (shown["first"], shown["parts"]) == (None, [])


def test_times_are_shown_in_utc() -> None:
    east = AT.astimezone(timezone(timedelta(hours=2)))
    assert ThingSerializer(thing(made=SimpleNamespace(at=east))).data["at"] == "2026-11-21T10:30:15.250000Z"


def test_dotted_source_is_followed_if_present() -> None:
    assert ThingSerializer(thing(team=SimpleNamespace(slug="vision"))).data["team"] == "vision"


def test_nested_rows_share_cached_values_and_show_live_fields() -> None:
    said.clear()
    reason = {"code": "full"}
    part = SimpleNamespace(name="p", reason=reason)
    shown = ThingSerializer([thing(parts=[part, part]), thing(parts=[part])], many=True).data
    expected = {"name": "p", "words": "full!"}
    assert [row["first"] for row in shown] == [expected, expected]
    assert [row["parts"] for row in shown] == [[expected, expected], [expected]]
    assert said == [reason]
    assert [row["age"] for row in shown] == [1, 1]


def test_cacheable_fields_exclude_time_dependent_values() -> None:
    serializer = ThingSerializer()
    kept, shown = serializer.cacheable_fields(thing()), serializer.to_representation(thing())
    assert list(kept) == list(shown)
    assert {name: kept[name] for name in kept if name != "age"} == {
        name: shown[name] for name in shown if name != "age"
    }
