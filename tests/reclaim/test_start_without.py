"""Starts without GPUs while none is free, by service, page and REST; and the notice once one is."""

from __future__ import annotations

import pytest

from portal.common.events.models import Event, Notification
from portal.fleet.inventory.models import Pool
from portal.reclaim import free_gpus
from portal.workspaces import gpus, resizing, services
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests.factories import FlavorFactory, local_pool_with, node_info
from tests.reclaim.restarts import allocated_devices, stop_and_free
from tests.rows import reloaded
from tests.workspaces.helpers import check_invariants, run_until_ready

pytestmark = pytest.mark.django_db
FLAVOR = "one-gpu"


@pytest.fixture(autouse=True)
def _node(catalog, settings):
    """One node with one GPU of the local driver; no real hardware."""
    settings.BERTH_RELEASED_CORES, settings.BERTH_RELEASED_MEMORY_GIB = 2, 32
    FlavorFactory(slug=FLAVOR, accelerator_count=1, cpu_milli=3000)
    FlavorFactory(slug="all-cores", cpu_milli=5000)
    local_pool_with(node_info(gpus=1))
    Pool.objects.update(hand_out_max_age_hours=0)


@pytest.fixture
def holder(make, bob, sent) -> Workspace:
    """The workspace that holds the only GPU."""
    workspace = make(bob, FLAVOR)
    run_until_ready(sent, workspace)
    return workspace


def test_workspace_starts_normally_if_a_gpu_is_free(make, alice):
    made = make(alice, FLAVOR, start_without_gpu=True)
    assert (made.state, made.gpu_released, made.gpu_awaited, allocated_devices()) == (
        State.PROVISIONING,
        False,
        False,
        1,
    )


def test_workspace_starts_without_gpus_if_busy_and_attaches_later(holder, make, alice, sent):
    waits = make(alice, FLAVOR)
    assert waits.state == State.PENDING
    services.delete(actor=alice, workspace_id=waits.pk)
    made = make(alice, FLAVOR, start_without_gpu=True)
    assert (made.state, made.gpu_released, made.gpu_awaited) == (State.PROVISIONING, True, True)
    assert (made.resources["accelerators"]["count"], made.resources["cpu_milli"], allocated_devices()) == (
        0,
        2000,
        1,
    )
    assert "without its GPUs" in Event.objects.filter(kind="workspace.requested").latest("pk").message
    check_invariants()
    run_until_ready(sent, made)
    stop_and_free(holder, sent)
    gpus.attach(actor=alice, workspace_id=made.pk)
    assert reloaded(made).resources["accelerators"]["count"] == 1
    assert (reloaded(made).resources["cpu_milli"], reloaded(made).gpu_awaited) == (3000, False)


def test_start_without_gpus_preempts_no_workspace(holder, make, alice, clock, settings):
    settings.BERTH_PREEMPTION, settings.BERTH_MIN_RUN_S = True, 60
    clock.shift(3600)
    make(alice, FLAVOR, start_without_gpu=True)
    assert reloaded(holder).preempting is None


def test_workspace_waits_for_gpus_if_it_would_wait_anyway(holder, make, alice, bob):
    make(bob, "all-cores")
    made = make(alice, FLAVOR, start_without_gpu=True)
    assert (made.state, made.gpu_released) == (State.PENDING, False)


def test_option_is_ignored_for_flavors_without_gpus(make, alice):
    made = make(alice, "cpu-small", start_without_gpu=True)
    assert (made.gpu_released, made.gpu_awaited) == (False, False)


# --- notice of free GPUs --------------------------------------------------------------------------


def notice_count(user) -> int:
    return Notification.objects.filter(user=user, kind="workspace.gpu_free").count()


def test_user_is_notified_once_when_the_gpu_is_free(holder, make, alice, sent):
    made = make(alice, FLAVOR, start_without_gpu=True)
    assert free_gpus.run() == 0
    run_until_ready(sent, made)
    assert free_gpus.run() == 0
    stop_and_free(holder, sent)
    assert (free_gpus.run(), notice_count(alice)) == (1, 1)
    Notification.objects.update(read_at=made.created_at)
    assert (free_gpus.run(), notice_count(alice)) == (0, 1)
    assert (reloaded(made).state, reloaded(made).gpu_released) == (State.RUNNING, True)


def test_one_free_gpu_notifies_one_user_longest_wait_first(holder, make, alice, bob, sent):
    first = make(alice, FLAVOR, start_without_gpu=True)
    run_until_ready(sent, first)
    second = make(bob, FLAVOR, name="second", start_without_gpu=True)
    run_until_ready(sent, second)
    stop_and_free(holder, sent)
    assert (free_gpus.run(), notice_count(alice), notice_count(bob)) == (1, 1, 0)
    assert (free_gpus.run(), notice_count(alice), notice_count(bob)) == (1, 1, 1)


def test_no_notice_of_a_free_gpu_after_the_user_has_acted(holder, make, alice, sent):
    made = make(alice, FLAVOR, start_without_gpu=True)
    run_until_ready(sent, made)
    resizing.resize(actor=alice, workspace_id=made.pk, flavor=FlavorFactory(slug="no-gpu", cpu_milli=2000))
    assert not reloaded(made).gpu_awaited
    stop_and_free(holder, sent)
    assert (free_gpus.run(), notice_count(alice)) == (0, 0)


# --- pages and REST -------------------------------------------------------------------------------


def test_form_offers_and_applies_the_option(holder, team, alice, as_user):
    web = as_user(alice)
    chosen = {"template": "jupyterlab", "flavor": FLAVOR, "team": team.slug}
    page = web.get("/workspaces/new/", chosen).content.decode()
    assert 'name="start_without_gpu"' in page
    assert "Start when capacity is free" in page
    page = web.get("/workspaces/new/", {**chosen, "start_without_gpu": "on"}).content.decode()
    assert "Start without GPUs" in page
    assert (
        'name="start_without_gpu"'
        not in web.get("/workspaces/new/", {**chosen, "flavor": "cpu-small"}).content.decode()
    )
    web.post("/workspaces/new/", {**chosen, "start_without_gpu": "on", "start": "1"})
    made = Workspace.objects.get(owner=alice)
    assert (made.state, made.gpu_released) == (State.PROVISIONING, True)
    body = web.get(f"/workspaces/{made.pk}/").content.decode()
    assert "The owner is notified once when GPUs are free." in body


def test_rest_preview_equals_the_result_of_the_request(holder, team, alice, with_token):
    api = with_token(alice, "workspaces:read", "workspaces:write", "catalog:read")
    wish = {"template": "jupyterlab", "flavor": FLAVOR, "team": team.slug}
    plain = api.post("/api/v1/admission/preview", wish, content_type="application/json").json()
    assert (plain["outcome"], plain["without_gpu"]) == ("queued", False)
    wish["start_without_gpu"] = True
    preview = api.post("/api/v1/admission/preview", wish, content_type="application/json").json()
    assert (preview["outcome"], preview["without_gpu"]) == ("fits_now", True)
    made = api.post("/api/v1/workspaces", wish, content_type="application/json")
    assert made.status_code == 201
    assert (made.json()["gpu_released"], made.json()["flavor"]) == (True, FLAVOR)
    assert made.json()["resources"]["accelerators"]["count"] == 0
