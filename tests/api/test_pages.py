"""Pagination with equal values and with rows that change between pages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.urls import URLPattern, URLResolver, get_resolver
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from portal.common.api import ApiViewSet
from portal.workspaces.models import Workspace
from tests.api.conftest import problem
from tests.factories import WorkspaceFactory
from tests.worlds import taken_back

pytestmark = pytest.mark.django_db
SORTS = ("name", "-name", "created_at", "-created_at")


def _views(patterns: Any = None) -> set[Any]:
    found = set()
    for pattern in get_resolver().url_patterns if patterns is None else patterns:
        if isinstance(pattern, URLResolver):
            found |= _views(pattern.url_patterns)
        elif isinstance(pattern, URLPattern):
            view = getattr(pattern.callback, "cls", None)
            if (
                view
                and issubclass(view, ApiViewSet)
                and "list" in getattr(pattern.callback, "actions", {}).values()
            ):
                found.add(view)
    return found


@pytest.mark.parametrize(
    "view", sorted(_views(), key=lambda view: view.__name__), ids=lambda view: view.__name__
)
def test_every_order_identifies_a_row(view: Any) -> None:
    for order in (view.ordering, *view.sorts.values()):
        fields = []
        for name in order:
            model = view.queryset.model
            *path, last = name.lstrip("-").split("__")
            for part in path:
                relation = model._meta.get_field(part)
                assert relation.unique or name != order[-1], order
                model = relation.related_model
            fields.append(model._meta.get_field(last))
        assert not any(field.null for field in fields), order
        assert fields[-1].unique, order


def _walk(program: Any, url: str | None, between: Any = lambda: None) -> list[str]:
    """The ids of all pages; fails if the list does not end."""
    found: list[str] = []
    for _number in range(100):
        page = program.get(url).json()
        found += [row["id"] for row in page["results"]]
        url = page["next"]
        if url is None:
            return found
        between()
    raise AssertionError("the list does not end")


@pytest.mark.parametrize("sort", SORTS)
def test_deleted_rows_do_not_hide_rows_of_later_pages(api: Any, bob: Any, sort: str) -> None:
    rows = [WorkspaceFactory(owner=bob, name="same") for _number in range(12)]
    Workspace.objects.update(created_at=rows[0].created_at)
    order = sorted((row.pk for row in rows), reverse=sort.startswith("-"))
    deletions = iter(order)

    seen = _walk(
        api(bob),
        f"workspaces?sort={sort}&page_size=3",
        lambda: Workspace.objects.filter(pk=next(deletions)).delete(),
    )

    assert seen == [str(pk) for pk in order]


CHANGES = st.lists(st.tuples(st.sampled_from(("delete", "add", "rename")), st.integers(0, 11)), max_size=12)


@examples(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sort=st.sampled_from(SORTS),
    size=st.integers(1, 5),
    names=st.lists(st.sampled_from("ab"), min_size=1, max_size=12),
    moments=st.lists(st.integers(0, 1), min_size=12, max_size=12),
    changes=CHANGES,
)
def test_unchanged_rows_are_listed_once_whatever_changes_between_pages(
    api: Any,
    bob: Any,
    sort: str,
    size: int,
    names: list[str],
    moments: list[int],
    changes: list[tuple[str, int]],
) -> None:
    with taken_back():
        rows = [WorkspaceFactory(owner=bob, name=name) for name in names]
        for row, minutes in zip(rows, moments, strict=False):
            row.created_at = datetime(2026, 1, 1, 0, minutes, tzinfo=UTC)
            row.save(update_fields=["created_at"])
        field = sort.removeprefix("-")
        order = [str(row.pk) for row in sorted(rows, key=lambda row: (getattr(row, field), row.pk))]
        if sort != field:
            order.reverse()
        program, left, changed = api(bob), list(changes), set()

        def change() -> None:
            if not left:
                return
            kind, number = left.pop()
            row = rows[number % len(rows)]
            if kind == "add":
                WorkspaceFactory(owner=bob, name="a")
                return
            changed.add(str(row.pk))
            if kind == "delete":
                Workspace.objects.filter(pk=row.pk).delete()
            else:
                Workspace.objects.filter(pk=row.pk).update(name="b")

        seen = _walk(program, f"workspaces?sort={sort}&page_size={size}", change)

        assert [pk for pk in seen if pk in order and pk not in changed] == [
            pk for pk in order if pk not in changed
        ]


def test_cursor_of_another_sort_order_is_refused(api: Any, bob: Any) -> None:
    for _number in range(3):
        WorkspaceFactory(owner=bob)
    cursor = api(bob).get("workspaces?sort=name&page_size=1").json()["next"].split("cursor=")[1].split("&")[0]
    body = problem(api(bob).get(f"workspaces?sort=-name&cursor={cursor}"), 400, "invalid")
    assert body["reason"]["code"] == "cursor_invalid"


def test_empty_page_links_back(api: Any, bob: Any) -> None:
    rows = [WorkspaceFactory(owner=bob, name=f"w{number}") for number in range(4)]
    program = api(bob)
    first = program.get("workspaces?sort=name&page_size=2").json()
    second = program.get(first["next"]).json()
    Workspace.objects.filter(pk__in=[row.pk for row in rows[2:]]).delete()
    empty = program.get(first["next"]).json()
    assert (empty["results"], empty["next"]) == ([], None)
    assert [row["name"] for row in program.get(empty["previous"]).json()["results"]] == ["w0", "w1"]
    Workspace.objects.all().delete()
    empty = program.get(second["previous"]).json()
    assert (empty["results"], empty["previous"]) == ([], None)
    assert program.get(empty["next"]).json()["results"] == []
