"""A silent pool keeps its last known state, with age and cause, on pages, over REST and in counts."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.fleet.inventory import counting, services
from portal.fleet.inventory.models import AllocatedDevice, Allocation, Device, Node, Pool
from tests.factories import WorkspaceFactory, local_pool_with, node_info
from tests.ui.test_pages import text_of

pytestmark = pytest.mark.django_db
AGE, CAUSE = "No contact for 8 min", "The pool&#x27;s node worker has not responded for several minutes."
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def silent(catalog, alice, team, settings) -> Pool:
    """A pool of 2 nodes with 4 GPUs each, 3 of them in use, that reported 8 minutes ago."""
    pool = local_pool_with(*(node_info(name, gpus=4, cpu_milli=8000) for name in ("one", "two")))
    node = Node.objects.get(name="one")
    workspace = WorkspaceFactory(owner=alice, team=team, name="training", state="running", pool=pool)
    allocation = Allocation.objects.create(
        workspace=workspace,
        node=node,
        generation=1,
        granted_at=timezone.now(),
        cpu_milli=2000,
        memory_mib=1024,
    )
    for device in Device.objects.filter(node=node, index__lt=3):
        AllocatedDevice.objects.create(allocation=allocation, device=device, milli=1000)
    then = timezone.now() - timedelta(minutes=8)
    pool.nodes.update(seen_at=then)
    Pool.objects.filter(pk=pool.pk).update(inventory_at=then)
    services.mark_asked(Pool.objects.get(pk=pool.pk))
    # As with a pool of an engine: its nodes were online in the last inventory.
    pool.nodes.update(online=True)
    pool.refresh_from_db()
    assert pool.state == "unreachable"
    return pool


def test_pages_show_last_known_state_with_age_and_cause(silent, bob, as_user):
    client = as_user(bob)
    shown = text_of(client.get(f"/pools/{silent.slug}/"))
    assert f"{AGE}. {CAUSE}" in shown
    assert shown.count(CAUSE) == 1
    assert "0 of 2 online" in shown
    assert "3 of 8 in use" in shown and "3 of 4 in use" in shown and "free" not in shown.split("Nodes")[0]
    assert shown.count(f"Offline {AGE}") == 2
    home = text_of(client.get("/"))
    assert AGE in home and "3 of 8 in use" in home and "0 of 2 nodes online" in home
    gpus = text_of(client.get("/gpus/"))
    assert f"{AGE}. {CAUSE}" in gpus
    assert "3 of 8 GPUs in use, 5 out of service" in gpus
    page = text_of(client.get(f"/gpus/nodes/{Node.objects.get(name='one').pk}/"))
    assert f"{AGE}. {CAUSE}" in page


def test_rest_and_counts_agree(silent, bob, as_user):
    client = as_user(bob)
    (pool,) = client.get("/api/v1/pools").json()["results"]
    assert (pool["state"], pool["node_count"], pool["online_count"]) == ("unreachable", 2, 0)
    count = next(row for row in pool["resources"] if row["resource"] == "gpu")
    assert (count["total"], count["in_service"], count["allocated"], count["free"]) == (8000, 0, 3000, 0)
    nodes = client.get("/api/v1/nodes").json()["results"]
    assert [node["online"] for node in nodes] == [False, False]
    assert client.get("/api/v1/nodes?online=true").json()["results"] == []
    devices = client.get("/api/v1/devices").json()["results"]
    states = sorted((row["node"], row["state"], row["reachable"]) for row in devices)
    assert (
        states
        == [("one", "allocated", False)] * 3 + [("one", "offline", False)] + [("two", "offline", False)] * 4
    )
    assert counting.site()["cpu_milli"].free == 0


def test_silent_node_among_others_is_named_once(silent, bob, as_user):
    Pool.objects.filter(pk=silent.pk).update(state="online", state_message="")
    Node.objects.filter(name="two").update(online=False)
    shown = text_of(as_user(bob).get("/gpus/"))
    assert f"two : {AGE}." in shown
    assert "one : " not in shown
    assert "3 of 8 GPUs in use, 1 free, 4 out of service" in shown
    assert "1 of 2 online" in text_of(as_user(bob).get(f"/pools/{silent.slug}/"))


def test_team_page_shows_usage_of_members(silent, alice, team, as_user):
    amounts = {"cpu_milli": 2000, "memory_mib": 1024, "workspaces": 1}
    WorkspaceFactory(owner=alice, team=team, name="plain", state="running", pool=silent, amounts=amounts)
    shown = text_of(as_user(alice).get("/teams/vision/"))
    assert "CPU cores 3 · Memory 2 GiB" in shown
