"""What every resource of the REST API has to do, as test cases that a resource's class configures.

Who of all people may do what is in `tests/permissions`; here is what holds for each resource alike.
"""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.common.scopes import Scope
from tests.api.conftest import problem


def rows_of(response: Any) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.content
    rows: list[dict[str, Any]] = response.json()["results"]
    return rows


@pytest.mark.django_db
class ListCase:
    """A resource that can be listed; `stock` makes at least one row of it."""

    path: ClassVar[str]
    read_scope: ClassVar[str]
    reader: ClassVar[str] = "olga"
    fixtures: ClassVar[tuple[str, ...]] = ()
    # Query and how many rows it leaves.
    filters: ClassVar[dict[str, int]] = {}
    max_queries: ClassVar[int] = 3
    lacks: ClassVar[tuple[str, ...]] = ("DELETE",)
    # Fields that change from one moment to the next.
    moving: ClassVar[frozenset[str]] = frozenset()

    def stock(self) -> None:
        """Rows beside those of the fixtures."""

    @pytest.fixture(autouse=True)
    def _stocked(self, request: pytest.FixtureRequest, db: None) -> None:
        for name in self.fixtures:
            request.getfixturevalue(name)
        self.stock()

    @pytest.fixture
    def program(self, request: pytest.FixtureRequest, api: Any) -> Any:
        """As somebody who sees the rows, with a token for everything."""
        return api(request.getfixturevalue(self.reader))

    def rows(self, response: Any) -> list[dict[str, Any]]:
        """The rows of a page without what moves."""
        return [self.still(row) for row in rows_of(response)]

    def still(self, row: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in row.items() if key not in self.moving}

    def test_it_is_listed_with_and_without_a_slash(self, program: Any) -> None:
        rows = self.rows(program.get(self.path))
        assert rows
        assert self.rows(program.get(f"{self.path}/")) == rows

    def test_it_needs_somebody_and_the_scope(
        self, request: pytest.FixtureRequest, api: Any, program: Any
    ) -> None:
        reader = request.getfixturevalue(self.reader)
        others = [scope for scope in Scope.values if scope not in (self.read_scope, Scope.ALL, Scope.SCIM)]
        problem(api(None).get(self.path), 401, "not_authenticated")
        problem(api(reader, *others).get(self.path), 403, "permission_denied")
        assert api(reader, self.read_scope).get(self.path).status_code == 200

    def test_what_is_not_understood_is_refused(self, program: Any) -> None:
        for query in ("nonsense=1", "page_size=0", "page_size=x", "page_size=201", "cursor=x"):
            body = problem(program.get(f"{self.path}?{query}"), 400, "invalid")
            assert list(body["errors"]) == [query.partition("=")[0]]
            assert body["reason"]["code"] in ("unknown_parameter", "page_size_invalid", "cursor_invalid")
            assert body["next_action"]

    def test_pages_of_one_row_hold_all_rows_in_the_same_order(self, program: Any) -> None:
        whole, paged, url = self.rows(program.get(self.path)), [], f"{self.path}?page_size=1"
        while url:
            page = program.get(url)
            paged += self.rows(page)
            url = page.json()["next"]
        assert paged == whole

    def test_filters(self, program: Any) -> None:
        for query, count in self.filters.items():
            assert len(self.rows(program.get(f"{self.path}?{query}"))) == count, query

    def test_as_many_queries_for_many_as_for_few(self, program: Any) -> None:
        program.get("me")  # the token's time of use is written once a minute
        with CaptureQueriesContext(connection) as queries:
            program.get(self.path)
        assert len(queries) <= self.max_queries, [query["sql"] for query in queries]

    def test_other_methods(self, program: Any) -> None:
        for method in self.lacks:
            problem(program.send(method, self.path), 405, "method_not_allowed")
        described = program.send("OPTIONS", self.path)
        assert described.status_code == 200
        assert "GET" in described["Allow"]
        head = program.send("HEAD", self.path)
        assert (head.status_code, head.content) == (200, b"")


class DetailCase(ListCase):
    """A resource whose rows can be read one by one, by `key`."""

    key: ClassVar[str] = "id"
    # Fields that only the row by itself has.
    only_detail: ClassVar[frozenset[str]] = frozenset()

    def absent(self) -> str:
        return str(uuid.uuid4()) if self.key == "id" else "nonesuch"

    def test_each_row_is_read_as_it_is_listed(self, program: Any) -> None:
        for row in self.rows(program.get(self.path))[:3]:
            response = program.get(f"{self.path}/{row[self.key]}")
            assert response.status_code == 200
            shown = self.still(response.json())
            assert {key: shown[key] for key in shown if key not in self.only_detail} == row

    def test_what_is_not_there(self, api: Any, program: Any) -> None:
        path = f"{self.path}/{self.absent()}"
        assert problem(program.get(path), 404, "not_found")["next_action"]
        problem(api(None).get(path), 401, "not_authenticated")


class CreateCase(ListCase):
    """A resource that can be made from `body`."""

    body: ClassVar[dict[str, Any]]
    required: ClassVar[tuple[str, ...]]
    write_scope: ClassVar[str]
    created: ClassVar[int] = 201
    located: ClassVar[bool] = True

    def test_it_is_made_and_found_where_the_answer_says(self, program: Any) -> None:
        before = len(self.rows(program.get(self.path)))
        made = program.post(self.path, self.body)
        assert made.status_code == self.created, made.content
        assert len(self.rows(program.get(self.path))) == before + 1
        if self.located:
            assert program.get(made["Location"]).status_code == 200

    def test_it_is_made_only_with_the_scope(self, request: pytest.FixtureRequest, api: Any) -> None:
        reader = request.getfixturevalue(self.reader)
        problem(api(reader, self.read_scope).post(self.path, self.body), 403, "permission_denied")
        problem(api(None).post(self.path, self.body), 401, "not_authenticated")
        assert api(reader, self.write_scope).post(self.path, self.body).status_code == self.created

    def test_mistakes_name_the_field(self, program: Any) -> None:
        unknown = problem(program.post(self.path, {**self.body, "nonsense": 1}), 400, "invalid")
        assert list(unknown["errors"]) == ["nonsense"]
        for field in self.required:
            lacking = {key: value for key, value in self.body.items() if key != field}
            assert field in problem(program.post(self.path, lacking), 400, "invalid")["errors"]
        form = program.client.post(f"/api/v1/{self.path}", self.body)
        problem(form, 415, "unsupported_media_type")
