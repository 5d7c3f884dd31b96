"""REST shows the wait of a workspace at an engine that places by itself, and its place afterwards."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.workspaces.models import Workspace
from tests.clusters import MODEL, begun_at, cluster_pool, handed_over, waiting_at

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster():
    return cluster_pool(used_by_others={MODEL: 5})


@pytest.fixture
def read(alice, team, as_user):
    browser = as_user(alice)
    return lambda row: browser.get(f"/api/v1/workspaces/{row.pk}").json()


def test_wait_is_shown_as_the_engine_reports_it(cluster, alice, team, read):
    starts_at = timezone.now() + timedelta(minutes=20)
    shown = read(waiting_at(cluster, owner=alice, team=team, starts_at=starts_at))
    wait = shown["engine_wait"]
    assert (wait["position"], wait["code"], wait["message"]) == (3, "priority", "Earlier jobs wait too.")
    assert wait["starts_at"][:19] == starts_at.isoformat()[:19]
    assert wait["seen_at"] < shown["engine_wait"]["starts_at"]
    assert (shown["began_at"], shown["engine_place"]) == (None, [])
    stages = {stage["key"]: stage["state"] for stage in shown["stages"]}
    assert (stages["placed"], stages["engine"], stages["starting"]) == ("done", "current", "todo")


def test_estimate_that_has_passed_is_not_shown(cluster, alice, team, read):
    past = timezone.now() - timedelta(minutes=1)
    shown = read(waiting_at(cluster, owner=alice, team=team, starts_at=past, position=0))
    assert (shown["engine_wait"]["starts_at"], shown["engine_wait"]["position"]) == (None, None)


def test_place_and_begin_are_shown_after_the_wait(cluster, alice, team, read):
    row = begun_at(cluster, owner=alice, team=team)
    shown = read(row)
    assert shown["engine_wait"] is None
    assert shown["engine_place"] == [{"node": "cluster-2", "devices": ["h100/1"]}]
    assert shown["began_at"][:19] == row.began_at.isoformat()[:19]
    stages = {stage["key"]: stage for stage in shown["stages"]}
    assert stages["engine"]["seconds"] == pytest.approx(40, abs=1)
    assert (stages["starting"]["state"], stages["starting"]["began_at"]) == ("current", shown["began_at"])
    Workspace.objects.filter(pk=row.pk).update(state="stopped")
    assert read(row)["engine_place"] == []


def test_time_since_the_engine_queued_it_again_counts_as_its_stage(cluster, alice, team, read):
    row = handed_over(cluster, owner=alice, team=team)
    again = timezone.now() - timedelta(seconds=5)
    row.status.engine = {"queue": {"position": 1, "code": "", "message": "", "starts_at": None, "seen_at": 1}}
    row.status.engine["requeued_at"] = again.timestamp()
    row.status.save()
    stages = {stage["key"]: stage for stage in read(row)["stages"]}
    assert stages["engine"]["seconds"] == pytest.approx(5, abs=1)


def test_version_changes_with_the_position_but_not_with_the_time_of_the_report(cluster, alice, team, as_user):
    row = waiting_at(cluster, owner=alice, team=team)
    browser, path = as_user(alice), f"/api/v1/workspaces/{row.pk}"
    first = browser.get(path)["ETag"]
    row.status.engine["queue"]["seen_at"] += 15
    row.status.save()
    seen_again = browser.get(path)["ETag"]
    row.status.engine["queue"]["position"] = 2
    row.status.save()
    moved = browser.get(path)["ETag"]
    versions = [tag.partition(".")[0] for tag in (first, seen_again, moved)]
    assert first != seen_again
    assert versions[0] == versions[1] != versions[2]


def test_pool_shows_who_places_and_the_use_of_others(cluster, alice, as_user):
    shown = as_user(alice).get(f"/api/v1/pools/{cluster.slug}").json()
    assert shown["traits"]["placing"] == "engine"
    assert shown["used_by_others"] == {MODEL: 5}
