"""Fields with a better name: taken and answered by both, and refused where the two differ."""

from __future__ import annotations

from typing import Any

import pytest

from portal.catalog.documents import RENAMED as OF_ENTRIES
from portal.catalog.models import Flavor
from portal.events.kinds import AuditKind
from portal.events.models import Event
from portal.gpu_checks.settings import RENAMED as OF_CHECKS
from tests.api.conftest import document, problem

pytestmark = pytest.mark.django_db
SMALL = {"slug": "small", "name": "Small", "cpu_milli": 1000, "memory_mib": 1024}
SHELL = {"slug": "shell", "name": "Shell", "program": "bash", "argv": ["bash", "{port}"]}
LIFETIMES = ("default_lifetime_hours", "default_lifetime_h", "max_lifetime_hours", "max_lifetime_h")
CHECKS = "pools/sim/checks"


def lifetimes(answer: Any) -> list[int | None]:
    """By new and old name in turn."""
    assert answer.status_code in (200, 201), answer.content
    return [answer.json()[name] for name in LIFETIMES]


@pytest.fixture(params=["new", "old"])
def named(request: pytest.FixtureRequest) -> Any:
    """`_hours` or `_h` behind what a field is called, as a client says it."""
    ending = "_hours" if request.param == "new" else "_h"
    return lambda **given: {name + ending: value for name, value in given.items()}


@pytest.mark.parametrize(("path", "made"), [("flavors", SMALL), ("templates", SHELL)])
def test_lifetimes_are_written_by_either_name_and_read_by_both(
    api: Any, olga: Any, bob: Any, named: Any, path: str, made: dict[str, Any]
) -> None:
    operator, where = api(olga), f"{path}/{made['slug']}"
    assert lifetimes(operator.post(path, made | named(default_lifetime=8, max_lifetime=72))) == [8, 8, 72, 72]
    # What is left out stays, null is a value, and 0 another one.
    assert lifetimes(operator.send("PATCH", where, named(max_lifetime=0))) == [8, 8, 0, 0]
    assert lifetimes(operator.send("PATCH", where, {"name": "Other"})) == [8, 8, 0, 0]
    assert lifetimes(operator.send("PATCH", where, named(default_lifetime=None))) == [None, None, 0, 0]
    assert lifetimes(api(bob).get(where)) == [None, None, 0, 0]
    (wrong,) = named(max_lifetime=-1)
    refused = problem(operator.send("PATCH", where, named(max_lifetime=-1)), 400, "invalid")
    assert list(refused["errors"]) == [wrong]


def test_both_names_may_say_the_same_and_nothing_else(api: Any, olga: Any) -> None:
    operator = api(olga)
    both = {"max_lifetime_hours": 72, "max_lifetime_h": 72}
    assert lifetimes(operator.post("flavors", SMALL | both)) == [None, None, 72, 72]
    none = {"max_lifetime_hours": None, "max_lifetime_h": None}
    assert lifetimes(operator.send("PATCH", "flavors/small", none)) == [None] * 4
    for new, old in ((72, 71), (0, None), (None, 0)):
        given = {"name": "Changed", "max_lifetime_hours": new, "max_lifetime_h": old}
        refused = problem(operator.send("PATCH", "flavors/small", given), 400, "invalid")
        assert refused["reason"] == {
            "code": "names_differ",
            "params": {"old": "max_lifetime_h", "new": "max_lifetime_hours"},
        }
        assert list(refused["errors"]) == ["max_lifetime_hours"]
    kept = Flavor.objects.get(slug="small")
    assert (kept.name, kept.max_lifetime_h) == ("Small", None)
    draft = {"flavor_draft": SMALL | {"max_lifetime_hours": 1, "max_lifetime_h": 2}}
    refused = problem(operator.post("catalog/preview", draft), 400, "invalid")
    assert list(refused["errors"]) == ["flavor_draft.max_lifetime_hours"]
    same = {"flavor_draft": SMALL | {"max_lifetime_hours": 1, "max_lifetime_h": 1}}
    assert operator.post("catalog/preview", same).status_code == 200


def test_a_version_is_the_same_by_whichever_name_it_was_made(api: Any, olga: Any, named: Any) -> None:
    operator = api(olga)
    seen = operator.post("flavors", SMALL)["ETag"]
    changed = operator.send("PATCH", "flavors/small", named(max_lifetime=5), **{"If-Match": seen})
    assert lifetimes(changed)[2:] == [5, 5] and changed["ETag"] != seen
    problem(
        operator.send("PATCH", "flavors/small", named(max_lifetime=6), **{"If-Match": seen}),
        412,
        "changed_meanwhile",
    )
    # The other name of the same value changes nothing.
    for name in ("max_lifetime_hours", "max_lifetime_h"):
        again = operator.send("PATCH", "flavors/small", {name: 5}, **{"If-Match": changed["ETag"]})
        assert again["ETag"] == changed["ETag"]
    newest, first = operator.get("flavors/small/versions").json()
    assert newest["changes"] == [{"field": "max_lifetime_hours", "before": None, "after": 5}]
    assert [newest["data"][name] for name in LIFETIMES[2:]] == [5, 5]
    assert first["data"]["max_lifetime_hours"] is None
    told = Event.objects.filter(kind=AuditKind("flavor.changed")).latest("pk")
    assert told.data["changed"] == ["max_lifetime_hours"]
    assert lifetimes(operator.post("flavors/small/versions/1/restore", {}))[2:] == [None, None]


def test_how_long_a_flavor_is_needed_is_in_hours_as_a_workspaces_is(api: Any, olga: Any) -> None:
    operator = api(olga)

    def expected(answer: Any) -> list[float]:
        assert answer.status_code in (200, 201), answer.content
        return [answer.json()["expected_hours"], answer.json()["expected_s"]]

    def change(**given: Any) -> Any:
        return operator.send("PATCH", "flavors/small", given)

    assert expected(operator.post("flavors", SMALL | {"expected_hours": 1.5})) == [1.5, 5400]
    assert Flavor.objects.get(slug="small").expected_s == 5400
    assert expected(change(expected_s=28_801)) == [8.0003, 28_801]
    assert expected(change(expected_hours=8.0003)) == [8.0003, 28_801]
    assert expected(change(name="Other")) == [8.0003, 28_801]
    assert expected(change(expected_hours=1 / 60, expected_s=60)) == [0.0167, 60]
    assert expected(change(expected_hours=720)) == [720, 2_592_000]
    for wrong in (0, 720.1, None, "nan", True, 1e300):
        refused = problem(change(expected_hours=wrong), 400, "invalid")
        assert list(refused["errors"]) == ["expected_hours"], wrong
    differ = problem(change(expected_hours=2, expected_s=7201), 400, "invalid")
    assert differ["reason"]["code"] == "names_differ"
    assert expected(operator.get("flavors/small")) == [720, 2_592_000]


def test_when_a_pool_is_checked_is_set_by_either_name(
    api: Any, olga: Any, bob: Any, pool: Any, named: Any
) -> None:
    operator = api(olga)
    seen = operator.put(CHECKS, named(check_every=5, hand_out_max_age=6))
    assert [seen.json()[name] for both in OF_CHECKS.items() for name in both] == [5, 5, 6, 6]
    told = Event.objects.filter(kind=AuditKind.POOL_CHECKS_SET).latest("pk").data
    assert [told[name] for both in OF_CHECKS.items() for name in both] == [5, 5, 6, 6]
    tag = {"If-Match": seen["ETag"]}
    changed = operator.send("PUT", CHECKS, named(check_every=7, hand_out_max_age=6), **tag)
    assert changed.json() == seen.json() | {"check_every_hours": 7, "check_every_h": 7}
    problem(operator.send("PUT", CHECKS, named(check_every=8), **tag), 412, "changed_meanwhile")
    for wrong in (None, -1, 10_000):
        refused = problem(operator.put(CHECKS, named(check_every=wrong)), 400, "invalid")
        assert list(refused["errors"]) == list(named(check_every=wrong))
    # All of it as it was read is no change, and one changed there is changed by whichever name.
    assert operator.put(CHECKS, changed.json())["ETag"] == changed["ETag"]
    again = operator.put(CHECKS, changed.json() | named(check_every=9, hand_out_max_age=0)).json()
    assert [again[name] for both in OF_CHECKS.items() for name in both] == [9, 9, 0, 0]
    # Where neither name says what is so, nobody knows what is meant.
    both = again | {"check_every_hours": 10, "check_every_h": 11, "hand_out_max_age_hours": 3}
    differ = problem(operator.put(CHECKS, both), 400, "invalid")
    assert differ["reason"]["code"] == "names_differ"
    assert api(bob).get(CHECKS).json() == again


@pytest.mark.parametrize(
    ("names", "schemas"),
    [
        (
            OF_ENTRIES,
            [
                *("Flavor", "FlavorCreateRequest", "PatchedFlavorChangeRequest"),
                *("Template", "TemplateWritten", "TemplateCreateRequest", "PatchedTemplateChangeRequest"),
            ],
        ),
        (OF_CHECKS, ["PoolChecks", "PoolChecksRequest"]),
    ],
)
def test_the_document_marks_the_old_name_and_says_which_takes_its_place(
    names: dict[str, str], schemas: list[str]
) -> None:
    for name in schemas:
        fields = document()["components"]["schemas"][name]["properties"]
        for old, new in names.items():
            assert fields[old]["deprecated"] is True and f"`{new}`" in fields[old]["description"]
            assert "deprecated" not in fields[new]
            limits = [{k: fields[n].get(k) for k in ("type", "minimum", "maximum")} for n in (old, new)]
            assert limits[0] == limits[1], name


def test_hours_have_one_ending_unless_they_are_to_go() -> None:
    for name, schema in document()["components"]["schemas"].items():
        for field, each in schema.get("properties", {}).items():
            assert not field.endswith("_h") or each.get("deprecated"), (name, field)
