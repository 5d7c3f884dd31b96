"""Prepared queries return the rows of the equal Django queries."""

from __future__ import annotations

from typing import Any

import pytest

from portal.common.prepared import PreparedRows
from portal.people.accounts import selectors
from portal.people.accounts.models import Membership, Role, Team, User
from portal.workspaces.models import Workspace
from tests.factories import UserFactory, WorkspaceFactory

pytestmark = pytest.mark.django_db


def of_users(keys: Any) -> Any:
    return User.objects.filter(pk__in=keys).order_by("username").values_list("pk", "date_joined", "is_active")


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_prepared_rows_equal_the_query(count: int) -> None:
    keys = [UserFactory().pk for _ in range(count)]
    UserFactory()
    prepared = PreparedRows(of_users, lambda: User._meta.pk)
    for _ in range(2):
        assert [tuple(row) for row in prepared.rows(keys)] == list(of_users(keys))


def test_sql_is_compiled_once_per_number_of_values(django_assert_num_queries: Any) -> None:
    made = []
    prepared = PreparedRows(lambda keys: made.append(len(keys)) or of_users(keys), lambda: User._meta.pk)
    keys = [UserFactory().pk for _ in range(2)]
    for asked in (keys, keys[:1], keys[1:], keys):
        with django_assert_num_queries(1):
            prepared.rows(asked)
    assert made == [2, 1]


def test_no_values_run_no_query(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        assert PreparedRows(of_users, lambda: User._meta.pk).rows([]) == []


def test_json_is_returned_as_text_on_request(alice: Any, team: Any) -> None:
    workspace = WorkspaceFactory(owner=alice, team=team)

    def resources(keys: Any) -> Any:
        return Workspace.objects.filter(pk__in=keys).order_by().values_list("resources")

    [[text]] = PreparedRows(resources, lambda: Workspace._meta.pk, raw_json=True).rows([workspace.pk])
    [[read]] = PreparedRows(resources, lambda: Workspace._meta.pk).rows([workspace.pk])
    assert isinstance(text, str)
    assert read == workspace.resources


def test_query_with_other_parameters_is_refused() -> None:
    prepared = PreparedRows(lambda keys: of_users(keys).filter(username="x"), lambda: User._meta.pk)
    with pytest.raises(ValueError, match="parameters"):
        prepared.rows([UserFactory().pk])


def test_places_are_the_memberships(alice: Any) -> None:
    for slug, role in (("b", Role.OWNER), ("a", Role.VIEWER)):
        Membership.objects.create(
            user=alice, team=Team.objects.create(slug=slug, name=slug.upper()), role=role
        )
    expected = [(each.team.slug, each.team.name, each.role) for each in selectors.memberships_of(alice)]
    assert [tuple(place) for place in selectors.team_roles_of(alice)] == expected
    assert selectors.team_roles_of(UserFactory()) == []
