"""Commands show that a workspace waits at an engine, and where it runs afterwards."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from portal.cli import waiting
from tests.clusters import begun_at, cluster_pool, waiting_at


@pytest.fixture
def cluster(catalog):
    return cluster_pool()


def test_show_and_list_print_the_wait(as_bob, cluster, bob, team):
    starts_at = timezone.now() + timedelta(minutes=20)
    waiting_at(cluster, owner=bob, team=team, name="train", starts_at=starts_at)
    ran = as_bob("show", "train")
    assert ran.code == 0, ran.err
    (line,) = [line for line in ran.out.splitlines() if line.startswith("waits")]
    assert "at cluster, position 3, expected to start " in line
    assert line.endswith(": priority: Earlier jobs wait too.")
    assert "nodes" not in ran.out
    assert "waits at cluster (simulated)" in as_bob("ls").out


def test_show_prints_where_the_engine_placed_it(as_bob, cluster, bob, team):
    begun_at(cluster, owner=bob, team=team, name="train")
    ran = as_bob("show", "train")
    rows = dict(line.split(maxsplit=1) for line in ran.out.splitlines())
    assert (rows["nodes"], rows["devices"]) == ("cluster-2", "h100/1")
    assert "waits" not in rows


def test_progress_of_a_start_names_position_estimate_and_reason():
    at = datetime.now().astimezone() + timedelta(days=2)
    wait = {"position": 3, "code": "priority", "message": "Earlier jobs wait too."}
    workspace = {
        "name": "train",
        "state": "provisioning",
        "simulated": False,
        "error": None,
        "queue": None,
        "pool": "cluster",
        "stages": [{"label": "At the cluster", "state": "current"}],
        "engine_wait": {**wait, "starts_at": at.isoformat()},
    }
    assert waiting.line_of(workspace) == (
        "train is provisioning, waits at cluster, position 3, "
        f"expected to start {at:%d %b %H:%M}: priority: Earlier jobs wait too."
    )
    workspace["engine_wait"] = {"position": None, "code": "", "message": "", "starts_at": None}
    assert waiting.line_of(workspace) == "train is provisioning, waits at cluster"
