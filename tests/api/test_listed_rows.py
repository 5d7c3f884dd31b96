"""A list writes its rows out by itself: they say what a workspace's own address says, at a known cost."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from rest_framework import serializers
from rest_framework.renderers import JSONRenderer

from portal.accounts.models import ApiToken
from portal.accounts.serializers import TokenSerializer
from portal.inventory.models import AllocatedDevice, Allocation
from portal.workspaces import listing, selectors
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Preemption, PreemptionCause, Workspace
from portal.workspaces.serializers import WorkspaceSerializer, with_held
from tests.factories import FlavorFactory, UserFactory, WorkspaceFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def one_of_each(team: Any, pool: Any, bob: Any) -> None:
    """A workspace in each state; one holds devices and is asked to leave, one waits."""
    flavor = FlavorFactory(pool=pool)
    for number, state in enumerate(State):
        WorkspaceFactory(name=f"w{number}", owner=bob, team=team, state=state, pool=pool, flavor=flavor)
    running = Workspace.objects.get(state=State.RUNNING)
    Preemption.objects.create(
        workspace=running, preempt_at=running.created_at, cause=next(iter(PreemptionCause))
    )
    for node in pool.nodes.order_by("name"):
        allocation = Allocation.objects.create(
            workspace=running,
            node=node,
            generation=1,
            cpu_milli=1,
            memory_mib=1,
            granted_at=running.created_at,
        )
        for device in node.devices.all()[:2]:
            AllocatedDevice.objects.create(allocation=allocation, device=device)


def test_a_row_is_what_the_workspace_says_of_itself(api: Any, olga: Any, one_of_each: None) -> None:
    client = api(olga)
    states = "&".join(f"state={state.value}" for state in State)
    rows = client.get(f"workspaces?{states}").json()["results"]
    assert {row["state"] for row in rows} == set(State.values)
    for row in rows:
        own = client.get(f"workspaces/{row['id']}").json()
        for stage in (*row["stages"], *own["stages"]):
            # How long the present one has been taking.
            stage["seconds"] = None
        assert row == own
    [busy] = [row for row in rows if row["devices"]]
    assert busy["leaving"] and len(busy["nodes"]) == 2 and len(busy["devices"]) == 4


def written(value: Any) -> bytes:
    found: bytes = JSONRenderer().render(value)
    return found


def test_what_is_written_out_is_what_the_fields_say(olga: Any, one_of_each: None) -> None:
    for workspace in with_held(selectors.workspaces_for(olga)):
        by_hand = WorkspaceSerializer().to_representation(workspace)
        assert list(by_hand) == WorkspaceSerializer.Meta.fields
        by_fields = serializers.ModelSerializer.to_representation(WorkspaceSerializer(), workspace)
        for each in (by_hand, by_fields):
            each["stages"] = [{**stage, "seconds": None} for stage in each["stages"]]
        assert written(by_hand) == written(by_fields)


def test_a_token_is_written_out_as_its_fields_say(alice: Any, api: Any) -> None:
    api(alice)
    token = ApiToken.objects.get()
    by_fields = serializers.ModelSerializer.to_representation(TokenSerializer(), token)
    assert written(TokenSerializer().to_representation(token)) == written(by_fields)


def page(user: Any) -> Any:
    found = selectors.workspaces_for(user).live().order_by("-created_at", "-id")
    return found.values(*listing.COLUMNS)[:21]


def test_an_operators_page_reads_no_more_rows_than_it_shows(olga: Any) -> None:
    """Whatever the number of rows: the index has the order of the list, so nothing is sorted."""
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL plans by what its tables hold")
    plan = page(olga).explain()
    assert "workspace_live_newest" in plan
    assert "TEMP B-TREE" not in plan


def test_a_users_page_reads_that_users_rows_only(bob: Any) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL plans by what its tables hold")
    assert "SCAN workspaces_workspace" not in page(bob).explain().replace("USING INDEX", "")


def test_ten_times_the_rows_are_the_same_queries(
    api: Any, olga: Any, team: Any, django_assert_num_queries: Any
) -> None:
    client = api(olga)
    flavor = FlavorFactory()
    costs = []
    for count in (2, 18):
        for _ in range(count):
            WorkspaceFactory(owner=UserFactory(), team=team, flavor=flavor)
        client.get("workspaces")
        with django_assert_num_queries(3) as seen:
            rows = client.get("workspaces").json()["results"]
        costs.append([query["sql"].partition(" IN (")[0] for query in seen.captured_queries])
    assert len(rows) == 20
    assert costs[0] == costs[1]
