"""Checks that every resource of the REST API must pass, configured per resource by a class.

Permissions are in `tests/permissions`. The rows of a resource are created once. Each check is a subtest whose
changes are rolled back.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, ClassVar

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.urls import resolve

from portal.common.scopes import Scope
from tests.api.conftest import problem
from tests.worlds import taken_back


def rows_of(response: Any) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.content
    rows: list[dict[str, Any]] = response.json()["results"]
    return rows


Check = Callable[[], None]


def make_equal(rows: Any, fields: Iterable[str]) -> None:
    """Give all rows of a model equal values in these fields, where constraints allow it."""
    for name in fields:
        field = name.lstrip("-")
        value = rows.model.objects.values_list(field, flat=True).first()
        with suppress(IntegrityError), transaction.atomic():
            rows.model.objects.update(**{field: value})


@pytest.mark.django_db
class ListCase:
    """A resource with a list; `stock` creates at least one row."""

    path: ClassVar[str]
    read_scope: ClassVar[str]
    reader: ClassVar[str] = "olga"
    fixtures: ClassVar[tuple[str, ...]] = ()
    # Query and its number of rows.
    filters: ClassVar[dict[str, int]] = {}
    max_queries: ClassVar[int] = 3
    lacks: ClassVar[tuple[str, ...]] = ("DELETE",)
    # Fields that change over time.
    moving: ClassVar[frozenset[str]] = frozenset()

    def stock(self) -> None:
        """Create rows beside those of the fixtures."""

    @pytest.fixture(autouse=True)
    def _stocked(self, request: pytest.FixtureRequest, db: None) -> None:
        for name in self.fixtures:
            request.getfixturevalue(name)
        self.stock()

    @pytest.fixture(autouse=True)
    def _programs(self, _stocked: None, request: pytest.FixtureRequest, api: Any) -> None:
        """`program` is a client with a token of all scopes whose user sees the rows."""
        self.api = api
        self.person = request.getfixturevalue(self.reader)
        self.program = api(self.person)

    def test_it_behaves_as_all_resources(self, subtests: pytest.Subtests) -> None:
        for check in self.checks():
            with subtests.test(check.__name__), taken_back():
                check()

    def checks(self) -> Iterator[Check]:
        yield from (
            self.listed_with_and_without_a_slash,
            self.needs_somebody_and_the_scope,
            self.refuses_an_unknown_query,
            self.pages_of_one_row_hold_all_rows_in_the_same_order,
            self.pages_of_equal_rows_hold_all_rows_both_ways,
            self.filters_leave_the_right_rows,
            self.refuses_parameters_without_a_value,
            self.as_many_queries_for_many_as_for_few,
            self.other_methods,
        )

    def rows(self, response: Any) -> list[dict[str, Any]]:
        """The rows of a page without changing values."""
        return [self.still(row) for row in rows_of(response)]

    def still(self, row: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in row.items() if key not in self.moving}

    def listed_with_and_without_a_slash(self) -> None:
        rows = self.rows(self.program.get(self.path))
        assert rows
        assert self.rows(self.program.get(f"{self.path}/")) == rows

    def needs_somebody_and_the_scope(self) -> None:
        others = [scope for scope in Scope.values if scope not in (self.read_scope, Scope.ALL, Scope.SCIM)]
        problem(self.api(None).get(self.path), 401, "not_authenticated")
        problem(self.api(self.person, *others).get(self.path), 403, "permission_denied")
        assert self.api(self.person, self.read_scope).get(self.path).status_code == 200

    def refuses_an_unknown_query(self) -> None:
        for query in ("nonsense=1", "page_size=0", "page_size=x", "page_size=201", "cursor=x"):
            body = problem(self.program.get(f"{self.path}?{query}"), 400, "invalid")
            assert list(body["errors"]) == [query.partition("=")[0]]
            assert body["reason"]["code"] in ("unknown_parameter", "page_size_invalid", "cursor_invalid")
            assert body["next_action"]

    def pages_of_one_row_hold_all_rows_in_the_same_order(self) -> None:
        for query in self.sorts():
            assert self.paged(query) == self.rows(self.program.get(f"{self.path}?{query}")), query

    def pages_of_equal_rows_hold_all_rows_both_ways(self) -> None:
        for query, order in self.sorts().items():
            make_equal(getattr(self.view(), "queryset", None), order[:-1])
            assert self.paged(query) == self.rows(self.program.get(f"{self.path}?{query}")), query

    def view(self) -> Any:
        return resolve(f"/api/v1/{self.path}").func.cls  # type: ignore[attr-defined]

    def sorts(self) -> dict[str, tuple[str, ...]]:
        """The list's sort orders, by query."""
        sorts = {f"sort={name}": order for name, order in getattr(self.view(), "sorts", {}).items()}
        return sorts or {"": getattr(self.view(), "ordering", ())}

    def paged(self, query: str) -> list[dict[str, Any]]:
        """The rows of all pages, compared with those read backwards."""
        url = f"{self.path}?page_size=1&{query}"
        pages = [self.program.get(url).json()]
        while url := pages[-1]["next"]:
            pages.append(self.program.get(url).json())
        back = pages[-1:]
        while url := back[-1]["previous"]:
            back.append(self.program.get(url).json())
        shown = [[self.still(row) for row in page["results"]] for page in pages]
        if len(back) > 1:
            assert [[self.still(row) for row in page["results"]] for page in reversed(back)] == shown
        return [row for page in shown for row in page]

    def filters_leave_the_right_rows(self) -> None:
        for query, count in self.filters.items():
            assert len(self.rows(self.program.get(f"{self.path}?{query}"))) == count, query

    def refuses_parameters_without_a_value(self) -> None:
        filterset = getattr(self.view(), "filterset_class", None)
        names = {*(filterset.base_filters if filterset else ()), "page_size", "cursor"}
        for name in sorted({*names, *(query.split("=")[0] for query in self.filters)}):
            for value in ("", "%20"):
                body = problem(self.program.get(f"{self.path}?{name}={value}"), 400, "invalid")
                assert list(body["errors"]) == [name]

    def as_many_queries_for_many_as_for_few(self) -> None:
        self.program.get("me")  # the last use of a token is written once a minute
        with CaptureQueriesContext(connection) as queries:
            self.program.get(self.path)
        assert len(queries) <= self.max_queries, [query["sql"] for query in queries]

    def other_methods(self) -> None:
        for method in self.lacks:
            problem(self.program.send(method, self.path), 405, "method_not_allowed")
        described = self.program.send("OPTIONS", self.path)
        assert described.status_code == 200
        assert "GET" in described["Allow"]
        head = self.program.send("HEAD", self.path)
        assert (head.status_code, head.content) == (200, b"")


class DetailCase(ListCase):
    """A resource whose rows are read one by one, by `key`."""

    key: ClassVar[str] = "id"
    # Fields of the detail only.
    only_detail: ClassVar[frozenset[str]] = frozenset()

    def absent(self) -> str:
        return str(uuid.uuid4()) if self.key == "id" else "nonesuch"

    def checks(self) -> Iterator[Check]:
        yield from super().checks()
        yield from (self.each_row_is_read_as_it_is_listed, self.unknown_row)

    def each_row_is_read_as_it_is_listed(self) -> None:
        for row in self.rows(self.program.get(self.path))[:3]:
            response = self.program.get(f"{self.path}/{row[self.key]}")
            assert response.status_code == 200
            shown = self.still(response.json())
            assert {key: shown[key] for key in shown if key not in self.only_detail} == row

    def unknown_row(self) -> None:
        path = f"{self.path}/{self.absent()}"
        assert problem(self.program.get(path), 404, "not_found")["next_action"]
        problem(self.api(None).get(path), 401, "not_authenticated")


class CreateCase(ListCase):
    """A resource that can be created from `body`."""

    body: ClassVar[dict[str, Any]]
    required: ClassVar[tuple[str, ...]]
    write_scope: ClassVar[str]
    created: ClassVar[int] = 201
    located: ClassVar[bool] = True

    def checks(self) -> Iterator[Check]:
        yield from super().checks()
        yield from (
            self.created_and_found_where_the_answer_says,
            self.created_only_with_the_scope,
            self.mistakes_name_the_field,
        )

    def created_and_found_where_the_answer_says(self) -> None:
        before = len(self.rows(self.program.get(self.path)))
        response = self.program.post(self.path, self.body)
        assert response.status_code == self.created, response.content
        assert len(self.rows(self.program.get(self.path))) == before + 1
        if self.located:
            assert self.program.get(response["Location"]).status_code == 200

    def created_only_with_the_scope(self) -> None:
        problem(self.api(self.person, self.read_scope).post(self.path, self.body), 403, "permission_denied")
        problem(self.api(None).post(self.path, self.body), 401, "not_authenticated")
        assert self.api(self.person, self.write_scope).post(self.path, self.body).status_code == self.created

    def mistakes_name_the_field(self) -> None:
        unknown = problem(self.program.post(self.path, {**self.body, "nonsense": 1}), 400, "invalid")
        assert list(unknown["errors"]) == ["nonsense"]
        for field in self.required:
            lacking = {key: value for key, value in self.body.items() if key != field}
            assert field in problem(self.program.post(self.path, lacking), 400, "invalid")["errors"]
        form = self.program.client.post(f"/api/v1/{self.path}", self.body)
        problem(form, 415, "unsupported_media_type")
