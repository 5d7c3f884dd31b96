"""Reads: visibility and number of queries."""

from __future__ import annotations

import uuid

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.catalog.models import Flavor, Template
from portal.common.errors import NotFound
from portal.workspaces import results, selectors, services, stage_lines
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests.factories import FlavorFactory, WorkspaceFactory
from tests.sweeps import sweep
from tests.workspaces.helpers import answer, endpoint_of, run_until_ready

pytestmark = pytest.mark.django_db


def test_workspaces_are_visible_by_role(make, alice, bob, charlie, olga, local_pool):
    own, bobs = make(alice), make(bob)
    seen = {user.username: set(selectors.workspaces_for(user)) for user in (alice, bob, charlie, olga)}
    assert seen == {"alice": {own, bobs}, "bob": {bobs}, "charlie": set(), "olga": {own, bobs}}
    assert set(selectors.own_workspaces(alice)) == {own}
    assert selectors.workspace_by_id(alice, bobs.pk) == bobs
    for actor, workspace_id in ((charlie, own.pk), (bob, own.pk), (olga, uuid.uuid4())):
        with pytest.raises(NotFound):
            selectors.workspace_by_id(actor, workspace_id)


def test_owner_of_another_team_sees_no_workspaces_of_this_one(make, alice, charlie, local_pool):
    make(alice)
    assert not selectors.workspaces_for(charlie).exists()


def test_deleted_workspaces_are_not_live(make, alice, local_pool, sent):
    workspace = make(alice)
    Workspace.objects.update(state=State.TERMINATED)
    assert not selectors.own_workspaces(alice).exists()
    assert selectors.workspaces_for(alice).get() == workspace


def many(count: int, alice, team, pool) -> None:
    template, flavor = Template.objects.get(slug="jupyterlab"), Flavor.objects.get(slug="cpu-small")
    for number in range(count):
        WorkspaceFactory(
            name=f"w{number}",
            owner=alice,
            team=team,
            template=template,
            flavor=flavor,
            pool=pool,
            generation=1,
            state=State.RUNNING,
            ready_at=timezone.now(),
        )


def test_list_takes_one_query(alice, team, local_pool, django_assert_num_queries):
    many(20, alice, team, local_pool)
    with django_assert_num_queries(1):
        for workspace in selectors.workspaces_for(alice):
            assert workspace.owner.username and workspace.team.slug and workspace.template.name
            assert workspace.flavor.name and workspace.pool.name and not workspace.simulated


@pytest.mark.parametrize(
    "path", ["/", "/pools/", "/pools/this-machine/", "/teams/", "/workspaces/new/", "/api/v1/workspaces"]
)
def test_queries_of_pages_do_not_grow_with_rows(alice, team, local_pool, path, django_assert_max_num_queries):
    client = Client()
    client.force_login(alice, backend="django.contrib.auth.backends.ModelBackend")
    many(2, alice, team, local_pool)
    client.get(path)
    with CaptureQueriesContext(
        connection,
    ) as few:
        assert client.get(path).status_code == 200
    Workspace.objects.all().delete()
    many(20, alice, team, local_pool)
    with CaptureQueriesContext(connection) as several:
        assert client.get(path).status_code == 200
    assert len(several) <= len(few) + 1, "\n".join(query["sql"] for query in several)
    # Reading a site takes about twenty queries, quota bars fifteen; previews use the cached snapshot.
    assert len(several) < 52


def test_events_are_ordered_and_can_start_after_a_given_one(make, alice, local_pool, sent):
    workspace = make(alice)
    run_until_ready(sent, workspace)
    kinds = [event.kind for event in selectors.events_of(workspace)]
    assert kinds == ["workspace.requested", "workspace.place", "workspace.launched", "workspace.ready"]
    second = list(selectors.events_of(workspace))[1]
    assert [event.kind for event in selectors.events_of(workspace, after=second.pk)] == kinds[2:]


def test_last_choice_is_the_latest_still_available(make, alice, bob, team, local_pool, clock):
    assert selectors.last_choice(alice) is None
    make(alice, "cpu-small", name="one")
    clock.shift(1)
    make(alice, "cpu-large", name="two", template="marimo")
    clock.shift(1)
    make(bob, "cpu-small", name="bobs")
    assert selectors.last_choice(alice).name == "two"
    Template.objects.filter(slug="marimo").update(enabled=False)
    assert selectors.last_choice(alice).name == "one"
    Flavor.objects.filter(slug="cpu-small").update(enabled=False)
    assert selectors.last_choice(alice) is None


# --- stages ---------------------------------------------------------------------------------------


def states(workspace: Workspace) -> list[str]:
    return [stage.state for stage in selectors.stages(workspace)]


def test_stages_of_a_start(make, alice, local_pool, sent, clock):
    FlavorFactory(slug="all", cpu_milli=8000)
    blocker = make(alice, "all")
    workspace = make(alice, "all")
    assert states(workspace) == ["done", "current", "todo", "todo", "todo"]
    sent.clear()
    Workspace.objects.filter(pk=blocker.pk).update(lease="", lease_expires_at=None)
    services.delete(actor=alice, workspace_id=blocker.pk)
    clock.shift(5)
    assert answer(sent, "delete", "absent")

    clock.shift(10)
    sweep()
    workspace.refresh_from_db()
    assert states(workspace) == ["done", "done", "done", "current", "todo"]
    clock.shift(2)
    assert answer(sent, "start", "starting")
    workspace.refresh_from_db()
    # Its process runs, but does not answer yet.
    assert states(workspace) == ["done", "done", "done", "done", "current", "todo"]
    clock.shift(3)
    stages = {stage.key: stage for stage in selectors.stages(workspace)}
    assert stages["admitted"].seconds == pytest.approx(15, abs=0.1)
    assert stages["starting"].seconds == pytest.approx(2, abs=0.1)
    assert stages["answering"].seconds == pytest.approx(3, abs=0.1)
    shares = {line.stage.key: line.share_pct for line in stage_lines.lines(list(stages.values()))}
    assert shares == {
        "requested": None, "admitted": 75, "placed": 0, "starting": 10, "answering": 15, "ready": None,
    }  # fmt: skip
    results.agent_ready(workspace_id=workspace.pk, generation=1, endpoint=endpoint_of(workspace))
    workspace.refresh_from_db()
    assert states(workspace) == ["done"] * 6
    assert [stage.key for stage in selectors.stages(workspace)] == [
        "requested",
        "admitted",
        "placed",
        "starting",
        "answering",
        "ready",
    ]


def test_failed_start_marks_the_failed_stage(make, alice, local_pool, sent):
    workspace = make(alice)
    assert answer(sent, "start", "failed", exit_code=1)
    assert answer(sent, "delete", "absent")
    workspace.refresh_from_db()
    assert "failed" in states(workspace)
