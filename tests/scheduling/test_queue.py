"""Queue page and REST, and what waiting and preempted workspaces show."""

from __future__ import annotations

import datetime as dt
import json

import pytest
from django.utils import timezone

from portal.common.errors import InvalidInput, NotAllowed
from portal.quota.limits.models import Quota
from portal.workspaces.models import Preemption, Workspace
from tests import sites
from tests.factories import WorkspaceFactory

pytestmark = pytest.mark.django_db
WORLD = sites.simulated_machines
H100 = "gpu:simulated-h100"


@pytest.fixture
def crowd(make, alice, bob, pool, clock):
    """Two workspaces use everything; three wait: bob's, alice's, bob's."""
    for name in ("a", "b"):
        make(alice, "sim-h100-x4", name=name)
    rows = []
    for owner, name in ((bob, "wait-a"), (alice, "wait-b"), (bob, "wait-c")):
        clock.shift(1)
        rows.append(make(owner, "sim-h100-x4", name=name))
    return rows


def test_order_is_visible_to_all_but_names_only_to_members(crowd, as_user, bob, charlie, olga):
    page = as_user(bob).get("/queue/").content.decode()
    assert page.index("wait-a") < page.index("wait-c")
    assert "wait-b" not in page, "another member's name is not shown"
    assert page.count("4 × Simulated H100") == 3
    stranger = as_user(charlie).get("/queue/").content.decode()
    assert stranger.count("Vision") >= 3
    assert not any(name in stranger for name in ("wait-a", "wait-b", "wait-c"))
    assert "wait-b" in as_user(olga).get("/queue/").content.decode()


def test_queue_page_shows_an_empty_state_and_filters_by_team(crowd, as_user, bob):
    assert "No matching workspaces" in as_user(bob).get("/queue/?team=nobody").content.decode()
    assert "wait-a" in as_user(bob).get("/queue/?team=vision").content.decode()
    Workspace.objects.update(desired_state="stopped")
    assert "The queue is empty" in as_user(bob).get("/queue/").content.decode()


def test_queue_is_listed_over_rest(crowd, with_token, bob, charlie):
    rows = with_token(bob, "quotas:read").get("/api/v1/queue").json()["results"]
    # Oldest first. Alice uses everything, so both of Bob's start before hers.
    assert [(row["position"], row["name"], row["own"]) for row in rows] == [
        (1, "wait-a", True),
        (3, None, False),
        (2, "wait-c", True),
    ]
    assert rows[0]["rule"] and rows[0]["message"] and rows[0]["eta"]
    assert all(row["name"] is None for row in with_token(charlie).get("/api/v1/queue").json()["results"])
    assert with_token(bob).get(f"/api/v1/queue?resource={rows[0]['resource']}").json()["results"]


def test_five_hundred_rows_take_as_many_queries_as_five(crowd, as_user, bob, django_assert_max_num_queries):
    template = crowd[0]
    for n in range(60):
        WorkspaceFactory(
            name=f"w{n}", team=template.team, flavor=template.flavor, template=template.template, owner=bob
        )
    browser = as_user(bob)
    with django_assert_max_num_queries(19):
        assert browser.get("/queue/").status_code == 200


def test_waiting_workspace_shows_position_reason_and_next_step(make, as_user, with_token, alice, team, pool):
    Quota.objects.create(team=team, resource=H100, quota=2000)
    make(alice, "sim-h100-x2")
    row = make(alice, "sim-h100-x1")
    page = as_user(alice).get(f"/workspaces/{row.pk}/").content.decode()
    assert "Position 1 in the queue" in page
    assert "The limit of Vision is 2 × Simulated H100, with 0 left" in page
    assert "kind=quota&amp;resource=gpu%3Asimulated-h100&amp;amount=1000" in page
    data = with_token(alice).get(f"/api/v1/workspaces/{row.pk}").json()
    assert data["queue"]["position"] == 1
    assert data["queue"]["rule"] == "team_limit"
    assert data["preempting"] is None


def test_preempted_workspace_shows_its_stop(make, as_user, with_token, alice, pool, run_node, settle):
    row = make(alice, "sim-h100-x1")
    settle(30)
    Preemption.objects.create(
        workspace=Workspace.objects.get(pk=row.pk),
        preempt_at=timezone.now() + dt.timedelta(seconds=90),
        cause="reclaim",
    )
    page = as_user(alice).get(f"/workspaces/{row.pk}/").content.decode()
    assert "Preempted in" in page
    assert "Files are kept, and the workspace is queued again" in page
    assert with_token(alice).get(f"/api/v1/workspaces/{row.pk}").json()["preempting"]["reason"] == "reclaim"
    assert "Being preempted" in as_user(alice).get("/queue/").content.decode()


def test_queue_shows_duration_and_priority(make, with_token, as_user, alice, bob, team, pool):
    assert make(bob, "sim-cpu", expected_s=7200).expected_s == 7200
    with pytest.raises(NotAllowed):
        make(bob, "sim-cpu", priority=5)
    assert make(alice, "sim-cpu", priority=5).priority == 5
    for wrong in ({"expected_s": 5}, {"priority": 101}):
        with pytest.raises(InvalidInput):
            make(alice, "sim-cpu", **wrong)
    body = {"template": "jupyterlab", "flavor": "sim-cpu", "team": "vision", "expected_hours": 2.5}
    made = with_token(alice).post("/api/v1/workspaces", json.dumps(body), content_type="application/json")
    assert made.json()["expected_hours"] == 2.5
    form = {"template": "jupyterlab", "flavor": "sim-cpu", "team": "vision", "name": "x", "start": "1"}
    assert as_user(alice).post("/workspaces/new/", {**form, "hours": "lots"}).status_code == 400
    assert as_user(alice).post("/workspaces/new/", {**form, "hours": "0,5"}).status_code == 302
    assert Workspace.objects.get(name="x").expected_s == 1800


def test_form_summary_shows_the_team_quota(as_user, alice, team, pool):
    Quota.objects.create(team=team, resource=H100, quota=2000)
    page = as_user(alice).get("/workspaces/new/?team=vision&flavor=sim-h100-x4").content.decode()
    assert "Quota of Vision" in page
    assert "Ask for more" in page
    assert "Your team's quota" in as_user(alice).get("/").content.decode()
