"""Rows of the workspace list equal the detail, at a constant number of queries."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import time_machine
from django.db import connection
from django.db.models import F, Value
from django.db.models.functions import Concat
from django.utils import timezone
from rest_framework import serializers
from rest_framework.renderers import JSONRenderer

from portal.catalog.environments.models import Environment, EnvironmentVersion
from portal.catalog.models import Flavor, Template
from portal.common.reasons.codes import Rule
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of
from portal.fleet.inventory.models import AllocatedDevice, Allocation, Node, Pool
from portal.people.accounts.models import ApiToken, Team, User
from portal.people.accounts.serializers import TokenSerializer
from portal.scheduling.codes import AdmissionCode
from portal.workspaces import rows as workspace_rows
from portal.workspaces import selectors
from portal.workspaces import serializers as serializers_module
from portal.workspaces.lifecycle import DesiredState, PreemptionCause, State
from portal.workspaces.models import Preemption, QueueEntry, Workspace, WorkspaceStatus
from portal.workspaces.serializers import WorkspaceSerializer
from tests.factories import FlavorFactory, UserFactory, WorkspaceFactory

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]


@pytest.fixture
def one_of_each(team: Any, pool: Any, bob: Any) -> None:
    """A workspace in each state; one holds devices and is preempted, one waits."""
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


def test_row_equals_the_workspace_detail(api: Any, olga: Any, one_of_each: None) -> None:
    client = api(olga)
    states = "&".join(f"state={state.value}" for state in State)
    rows = client.get(f"workspaces?{states}").json()["results"]
    assert {row["state"] for row in rows} == set(State.values)
    for row in rows:
        own = client.get(f"workspaces/{row['id']}").json()
        for stage in (*row["stages"], *own["stages"]):
            # The duration of the current stage.
            stage["seconds"] = None
        assert row == own
    [busy] = [row for row in rows if row["devices"]]
    assert busy["preempting"] and len(busy["nodes"]) == 2 and len(busy["devices"]) == 4


CHANGES: dict[str, Callable[[Workspace], Any]] = {
    "name": lambda row: Workspace.objects.filter(pk=row.pk).update(name="renamed"),
    "desired_state": lambda row: Workspace.objects.filter(pk=row.pk).update(
        desired_state=DesiredState.STOPPED
    ),
    "resources": lambda row: Workspace.objects.filter(pk=row.pk).update(
        resources={**row.resources, "cpu_milli": 77}
    ),
    "ready_at": lambda row: Workspace.objects.filter(pk=row.pk).update(
        ready_at=row.created_at + timedelta(hours=1)
    ),
    "ends_at": lambda row: Workspace.objects.filter(pk=row.pk).update(
        ends_at=row.created_at + timedelta(hours=1)
    ),
    "secrets": lambda row: Workspace.objects.filter(pk=row.pk).update(secrets=["KEY"]),
    "stages": lambda row: Workspace.objects.filter(pk=row.pk).update(checks_began_at=row.created_at),
    "owner": lambda row: User.objects.filter(pk=row.owner_id).update(username="renamed"),
    "team": lambda row: Team.objects.filter(pk=row.team_id).update(slug="renamed"),
    "template": lambda row: Template.objects.filter(pk=row.template_id).update(slug="renamed"),
    "url": lambda row: Template.objects.filter(pk=row.template_id).update(open_path="/other"),
    "flavor": lambda row: Flavor.objects.filter(pk=row.flavor_id).update(slug="renamed"),
    "pool": lambda row: Pool.objects.filter(pk=row.pool_id).update(slug="renamed"),
    "simulated": lambda row: Pool.objects.filter(pk=row.pool_id).update(
        simulated=not Pool.objects.get(pk=row.pool_id).simulated
    ),
    "activity": lambda row: WorkspaceStatus.objects.filter(pk=row.pk).update(activity={"connections": 3}),
    "heartbeat_at": lambda row: WorkspaceStatus.objects.filter(pk=row.pk).update(heartbeat_at=row.created_at),
    "error": lambda row: WorkspaceStatus.objects.filter(pk=row.pk).update(
        reason=Reason(AdmissionCode.NO_NODE_REPORTED).as_json()
    ),
    "preempting": lambda row: Preemption.objects.filter(pk=row.pk).delete(),
    "nodes": lambda row: Node.objects.filter(allocations__workspace=row).update(
        name=Concat(Value("x"), F("name"))
    ),
    "devices": lambda row: AllocatedDevice.objects.filter(allocation__workspace=row).update(milli=500),
    "environment": lambda row: Workspace.objects.filter(pk=row.pk).update(
        environment_version=EnvironmentVersion.objects.get()
    ),
}


@pytest.mark.parametrize("field", CHANGES)
def test_cached_row_is_never_older_than_the_database(
    api: Any, olga: Any, one_of_each: None, field: str
) -> None:
    made = Environment.objects.create(name="Tools", slug="tools", updated_at=timezone.now())
    EnvironmentVersion.objects.create(environment=made, number=1, source_kind="packages", python="3.12")
    client = api(olga)
    path = "workspaces?state=running"
    [before] = client.get(path).json()["results"]
    # Cached now: an equal row consists of the same objects.
    key = UUID(before["id"])
    assert workspace_rows.read([key])[0] is workspace_rows.read([key])[0]
    CHANGES[field](Workspace.objects.get(state=State.RUNNING))
    [after] = client.get(path).json()["results"]
    assert after[field] != before[field]
    assert after == client.get(f"workspaces/{key}").json()


def test_released_devices_are_hidden(api: Any, olga: Any, one_of_each: None) -> None:
    client = api(olga)
    [before] = client.get("workspaces?state=running").json()["results"]
    Allocation.objects.update(released_at=timezone.now())
    [after] = client.get("workspaces?state=running").json()["results"]
    assert before["devices"] and before["nodes"] and not after["devices"] and not after["nodes"]


def test_time_dependent_values_are_not_cached(api: Any, olga: Any, one_of_each: None) -> None:
    client = api(olga)
    waiting = Workspace.objects.get(state=State.PENDING)
    until = {"amount": 1000, "team": "Vision", "until": "2026-11-23T14:21:00+00:00", "idle": 0, "idle_s": 0}
    reason = Reason(
        Rule.PLACEMENT,
        {
            "resource": "cpu_milli",
            "wanted": 1000,
            "free": 0,
            "limit": 2000,
            "team": "Vision",
            "node": "",
            "node_reason": None,
            "more_nodes": 0,
            "holders": [until],
        },
    )
    QueueEntry.objects.filter(pk=waiting.pk).update(outcome="queued", reason=reason.as_json())
    asked_at = datetime(2026, 11, 21, 10, tzinfo=UTC)
    Workspace.objects.filter(pk=waiting.pk).update(requested_at=asked_at, state_since=asked_at)
    seen = []
    for at in ("2026-11-23T10:00:00Z", "2026-11-22T10:00:00Z"):
        with time_machine.travel(at, tick=False):
            [row] = client.get("workspaces?state=pending").json()["results"]
            assert row == client.get(f"workspaces/{waiting.pk}").json()
            seen.append(row)
    assert "about 14:21 UTC" in seen[0]["error"]["message"]
    assert "about 23 Nov 14:21 UTC" in seen[1]["error"]["message"]
    [first, second] = [
        stage["seconds"] for row in seen for stage in row["stages"] if stage["state"] == "current"
    ]
    assert (first, second) == (48 * 3600, 24 * 3600)


def written(value: Any) -> bytes:
    found: bytes = JSONRenderer().render(value)
    return found


def test_fields_match_django_rest_framework(olga: Any, one_of_each: None) -> None:
    keys = selectors.rows_for(olga).values_list("pk", flat=True)
    for row in workspace_rows.read(list(keys)):
        shown = WorkspaceSerializer(row).data
        assert list(shown) == WorkspaceSerializer.Meta.fields
        for name, field in WorkspaceSerializer().fields.items():
            if hasattr(WorkspaceSerializer, f"get_{name}"):
                continue
            value = field.get_attribute(row)
            by_field = None if value is None else field.to_representation(value)
            assert written(shown[name]) == written(by_field), name


def test_token_representation_matches_its_fields(alice: Any, api: Any) -> None:
    api(alice)
    token = ApiToken.objects.get()
    by_fields = serializers.ModelSerializer.to_representation(TokenSerializer(), token)
    assert written(TokenSerializer().to_representation(token)) == written(by_fields)


def page(user: Any) -> Any:
    found = selectors.workspaces_for(user).live().order_by("-created_at", "-id")
    return found.values(*workspace_rows.KEYS)[:21]


def test_operator_page_reads_only_the_rows_it_shows(olga: Any) -> None:
    """The index has the order of the list, so nothing is sorted."""
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL plans by what its tables hold")
    plan = page(olga).explain()
    assert "workspace_live_newest" in plan
    assert "TEMP B-TREE" not in plan


def test_user_page_reads_only_the_users_rows(bob: Any) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL plans by what its tables hold")
    assert "SCAN workspaces_workspace" not in page(bob).explain().replace("USING INDEX", "")


def test_query_count_is_constant(api: Any, olga: Any, team: Any, django_assert_num_queries: Any) -> None:
    client = api(olga)
    flavor = FlavorFactory()
    costs = []
    for count in (2, 18):
        for _ in range(count):
            WorkspaceFactory(owner=UserFactory(), team=team, flavor=flavor)
        client.get("workspaces")
        with django_assert_num_queries(4) as seen:
            rows = client.get("workspaces").json()["results"]
        costs.append([query["sql"].partition(" IN (")[0] for query in seen.captured_queries])
    assert len(rows) == 20
    assert costs[0] == costs[1]


def test_equal_reasons_are_formatted_once_per_list(
    api: Any, olga: Any, team: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = [Reason(AdmissionCode.LOOKED_AT_AGAIN), Reason(AdmissionCode.NO_NODE_REPORTED)]
    for number in range(6):
        workspace = WorkspaceFactory(owner=UserFactory(), team=team, state=State.PENDING)
        kept = {"reason": reasons[number % 2].as_json(), "outcome": "queued"}
        QueueEntry.objects.filter(workspace=workspace).update(**kept)
    said = []
    real = serializers_module.message_of
    monkeypatch.setattr(serializers_module, "message_of", lambda reason: said.append(reason) or real(reason))
    rows = api(olga).get("workspaces").json()["results"]
    assert [row["error"]["message"] for row in rows] == [
        message_of(reasons[n % 2]) for n in (5, 4, 3, 2, 1, 0)
    ]
    assert len(said) == 2
