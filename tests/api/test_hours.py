"""Durations of the catalog and of a pool's checks: hours, in fields that end in `_hours`."""

from __future__ import annotations

from typing import Any

import pytest

from portal.catalog.models import Flavor
from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event
from tests.api.conftest import document, problem

pytestmark = pytest.mark.django_db
SMALL = {"slug": "small", "name": "Small", "resources": {"cpu_milli": 1000, "memory_mib": 1024}}
SHELL = {"slug": "shell", "name": "Shell", "program": "bash", "argv": ["bash", "{port}"]}
CHECKS = "pools/sim/checks"


def lifetimes(answer: Any) -> tuple[int | None, int | None]:
    assert answer.status_code in (200, 201), answer.content
    body = answer.json()
    return body["default_lifetime_hours"], body["max_lifetime_hours"]


@pytest.mark.parametrize(("path", "made"), [("flavors", SMALL), ("templates", SHELL)])
def test_lifetimes_in_hours_round_trip(
    api: Any, olga: Any, bob: Any, path: str, made: dict[str, Any]
) -> None:
    operator, where = api(olga), f"{path}/{made['slug']}"
    limits = {"default_lifetime_hours": 8, "max_lifetime_hours": 72}
    assert lifetimes(operator.post(path, made | limits)) == (8, 72)
    # An omitted field is unchanged; null and 0 are distinct values.
    assert lifetimes(operator.send("PATCH", where, {"max_lifetime_hours": 0})) == (8, 0)
    assert lifetimes(operator.send("PATCH", where, {"name": "Other"})) == (8, 0)
    assert lifetimes(operator.send("PATCH", where, {"default_lifetime_hours": None})) == (None, 0)
    assert lifetimes(api(bob).get(where)) == (None, 0)
    refused = problem(operator.send("PATCH", where, {"max_lifetime_hours": -1}), 400, "invalid")
    assert list(refused["errors"]) == ["max_lifetime_hours"]


def test_versions_and_events_have_the_names_of_rest(api: Any, olga: Any) -> None:
    operator = api(olga)
    seen = operator.post("flavors", SMALL)["ETag"]
    changed = operator.send("PATCH", "flavors/small", {"max_lifetime_hours": 5}, **{"If-Match": seen})
    assert lifetimes(changed) == (None, 5) and changed["ETag"] != seen
    newest, first = operator.get("flavors/small/versions").json()
    assert newest["changes"] == [{"field": "max_lifetime_hours", "before": None, "after": 5}]
    assert (newest["data"]["max_lifetime_hours"], first["data"]["max_lifetime_hours"]) == (5, None)
    told = Event.objects.filter(kind=AuditKind("flavor.changed")).latest("pk")
    assert told.data["changed"] == ["max_lifetime_hours"]
    assert lifetimes(operator.post("flavors/small/versions/1/restore", {})) == (None, None)


def test_expected_hours_of_a_flavor(api: Any, olga: Any) -> None:
    operator = api(olga)

    def expected(answer: Any) -> float:
        assert answer.status_code in (200, 201), answer.content
        return float(answer.json()["expected_hours"])

    def change(**given: Any) -> Any:
        return operator.send("PATCH", "flavors/small", given)

    assert expected(operator.post("flavors", SMALL | {"expected_hours": 1.5})) == 1.5
    assert Flavor.objects.get(slug="small").expected_hours == 1.5
    assert expected(change(expected_hours=8.0003)) == 8.0003
    assert expected(change(name="Other")) == 8.0003
    assert expected(change(expected_hours=1 / 60)) == 1 / 60
    assert expected(change(expected_hours=720)) == 720
    for wrong in (0, 720.1, None, "nan", True, 1e300):
        refused = problem(change(expected_hours=wrong), 400, "invalid")
        assert list(refused["errors"]) == ["expected_hours"], wrong
    assert expected(operator.get("flavors/small")) == 720


def test_check_intervals_of_a_pool(api: Any, olga: Any, bob: Any, pool: Any) -> None:
    operator = api(olga)
    seen = operator.put(CHECKS, {"check_every_hours": 5, "hand_out_max_age_hours": 6})
    assert (seen.json()["check_every_hours"], seen.json()["hand_out_max_age_hours"]) == (5, 6)
    told = Event.objects.filter(kind=AuditKind.POOL_CHECKS_SET).latest("pk").data
    assert (told["check_every_hours"], told["hand_out_max_age_hours"]) == (5, 6)
    tag = {"If-Match": seen["ETag"]}
    changed = operator.send("PUT", CHECKS, {"check_every_hours": 7}, **tag)
    # An omitted field gets its default.
    assert changed.json() == seen.json() | {"check_every_hours": 7, "hand_out_max_age_hours": 24}
    problem(operator.send("PUT", CHECKS, {"check_every_hours": 8}, **tag), 412, "changed_meanwhile")
    for wrong in (None, -1, 10_000):
        refused = problem(operator.put(CHECKS, {"check_every_hours": wrong}), 400, "invalid")
        assert list(refused["errors"]) == ["check_every_hours"]
    # Sending the settings back unchanged changes nothing.
    assert operator.put(CHECKS, changed.json())["ETag"] == changed["ETag"]
    assert api(bob).get(CHECKS).json() == changed.json()


def test_no_field_ends_in_h_or_is_deprecated() -> None:
    for name, schema in document()["components"]["schemas"].items():
        for field, each in schema.get("properties", {}).items():
            assert not field.endswith("_h") and "deprecated" not in each, (name, field)
