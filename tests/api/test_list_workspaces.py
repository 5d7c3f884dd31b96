"""GET /api/v1/workspaces"""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest

from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests.api.conftest import problem
from tests.factories import WorkspaceFactory

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]


def names(response: Any) -> list[str]:
    assert response.status_code == 200, response.content
    return [row["name"] for row in response.json()["results"]]


def test_rows_are_limited_to_the_reader(
    api: Any, alice: Any, bob: Any, charlie: Any, olga: Any, team: Any
) -> None:
    WorkspaceFactory(owner=bob, team=team, name="of-bob")
    WorkspaceFactory(owner=alice, team=team, name="of-alice")

    assert names(api(bob).get("workspaces")) == ["of-bob"]
    assert names(api(alice).get("workspaces")) == ["of-alice", "of-bob"]
    assert names(api(olga).get("workspaces")) == ["of-alice", "of-bob"]
    assert names(api(charlie).get("workspaces")) == []
    problem(api(None).get("workspaces"), 401, "not_authenticated")
    problem(api(bob, "catalog:read").get("workspaces"), 403, "permission_denied")


def test_deleted_workspaces_are_listed_on_request(api: Any, bob: Any) -> None:
    WorkspaceFactory(owner=bob, name="here")
    WorkspaceFactory(owner=bob, name="gone", state=State.TERMINATED)

    assert names(api(bob).get("workspaces")) == ["here"]
    assert names(api(bob).get("workspaces?state=terminated")) == ["gone"]
    assert names(api(bob).get("workspaces?state=terminated&state=pending")) == ["gone", "here"]


def test_creation_time_filters_and_sorting(api: Any, bob: Any) -> None:
    rows = [WorkspaceFactory(owner=bob, name=name) for name in ("b", "c", "a")]
    for day, row in enumerate(rows, start=1):
        Workspace.objects.filter(pk=row.pk).update(created_at=datetime(2026, 3, day, tzinfo=UTC))
    program = api(bob)

    assert names(program.get("workspaces?created_after=2026-03-02T00:00:00Z")) == ["a", "c"]
    assert names(program.get("workspaces?created_before=2026-03-02T00:00:00Z")) == ["b"]
    for sort, expected in {"created_at": "bca", "-created_at": "acb", "name": "abc", "-name": "cba"}.items():
        first = program.get(f"workspaces?sort={sort}&page_size=2").json()
        rest = program.get(first["next"]).json()
        assert "".join(row["name"] for row in first["results"] + rest["results"]) == expected
    for wrong in ("owner", ""):
        refused = problem(program.get(f"workspaces?sort={wrong}"), 400, "invalid")
        assert list(refused["errors"]) == ["sort"]
    problem(program.get("workspaces?created_after=soon"), 400, "invalid")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("nodes?online=maybe", "online"),
        ("nodes?online=", "online"),
        ("nodes?online=1", "online"),
        ("workspaces?created_after=", "created_after"),
        ("devices?state=", "state"),
        ("workspaces?state=stopped&state=", "state"),
    ],
)
def test_empty_filter_is_refused(api: Any, bob: Any, path: str, name: str) -> None:
    assert list(problem(api(bob).get(path), 400, "invalid")["errors"]) == [name]


def test_unknown_state_is_refused(api: Any, bob: Any) -> None:
    assert "state" in problem(api(bob).get("workspaces?state=asleep"), 400, "invalid")["errors"]


@pytest.mark.parametrize("position", ["p=garbage", "p=%00", "o=99999999999999999999", "p=" + "9" * 40, "r=x"])
def test_a_forged_cursor_is_refused_or_harmless(api: Any, bob: Any, position: str) -> None:
    cursor = quote(b64encode(position.encode()).decode())
    for path in ("workspaces", "templates", "flavors", "tokens", "nodes", "devices", "teams"):
        assert api(bob).get(f"{path}?cursor={cursor}").status_code in (200, 400), path


def test_pages_stay_consistent_while_rows_are_added(api: Any, bob: Any) -> None:
    for n in range(5):
        WorkspaceFactory(owner=bob, name=f"w{n}")
    program = api(bob)

    first = program.get("workspaces?page_size=2").json()
    WorkspaceFactory(owner=bob, name="w5")
    second = program.get(first["next"]).json()
    third = program.get(second["next"]).json()

    assert first["previous"] is None
    assert [row["name"] for page in (first, second, third) for row in page["results"]] == [
        *("w4", "w3", "w2", "w1", "w0")
    ]
    assert third["next"] is None
    assert [row["name"] for row in program.get(third["previous"]).json()["results"]] == ["w2", "w1"]
