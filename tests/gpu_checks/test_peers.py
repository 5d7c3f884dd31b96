"""Peers for link measurements: selection, reservation and release."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from portal.catalog.models import Flavor
from portal.common.actors import SYSTEM
from portal.common.errors import StateConflict
from portal.common.problem_codes import ProblemCode
from portal.fleet.inventory.cordons import cordon_device
from portal.fleet.inventory.models import CheckLevel, Device, Pool
from portal.gpu_checks import lost_runs, peers, policy, resets, runs
from portal.gpu_checks.models import OPEN, CheckCause, GpuCheckRun, RunState
from portal.scheduling import capacity
from portal.scheduling.engine.codes import PlacementCode
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests.factories import WorkspaceFactory
from tests.gpu_checks.helpers import answer, checked_pool, fresh, linked_node, only, run_of

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]


@pytest.fixture
def gpus(catalog) -> list[Device]:
    """Six linked GPUs on one node, all passed."""
    pool = checked_pool(linked_node("node-1", 6))
    Device.objects.filter(node__pool=pool).update(passed_at=timezone.now())
    return list(Device.objects.filter(node__pool=pool).order_by("index"))


def ask(device: Device, level: str = CheckLevel.STANDARD, **fields) -> GpuCheckRun:
    return runs.request_check(actor=SYSTEM, device_id=device.pk, level=level, **fields)


@pytest.fixture
def allocate(gpus, make, alice) -> Callable[[int], set[int]]:
    """Start this many workspaces with one GPU each; return the GPUs' indexes."""

    def taken(number: int) -> set[int]:
        Pool.objects.update(hand_out_max_age_hours=0)
        one = Flavor.objects.filter(accelerator_count=1).order_by("slug").first()
        for _ in range(number):
            make(alice, one.slug)
        found = Device.objects.filter(allocated__active=True).values_list("index", flat=True)
        assert len(set(found)) == number
        return set(found)

    return taken


def indexes(run: GpuCheckRun) -> list[int]:
    return list(run.peers.order_by("index").values_list("index", flat=True))


def reserved_indexes(device: Device) -> set[int]:
    """The GPUs of the node that are reserved by checks."""
    state = next(iter(capacity.load().values())).nodes[0]
    found = {each.uuid for each in state.devices if each.unusable}
    assert all(each.unusable.code is PlacementCode.DEVICE_CHECKING for each in state.devices if each.unusable)
    return set(Device.objects.filter(uuid__in=found).values_list("index", flat=True))


def test_two_idle_neighbours_are_reserved_as_peers(gpus, sent, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        run = ask(gpus[0])
    assert indexes(run) == [1, 2]
    command = only(sent)
    assert command.peers == (gpus[1].uuid, gpus[2].uuid)
    assert reserved_indexes(gpus[0]) == {0, 1, 2}
    with django_capture_on_commit_callbacks(execute=True):
        assert answer(command)
    assert reserved_indexes(gpus[0]) == set()
    assert run_of(command).state == RunState.DONE
    assert indexes(run) == [1, 2], "who they were stays known"


@pytest.mark.parametrize("level", [CheckLevel.STANDARD, CheckLevel.EXTENDED])
def test_levels_with_links(gpus, level):
    assert indexes(ask(gpus[3], level)) == [0, 1]


def test_quick_checks_and_scrubs_have_no_peers(gpus):
    assert indexes(ask(gpus[0], CheckLevel.QUICK)) == []
    assert indexes(runs.request_scrub(actor=SYSTEM, device_id=gpus[1].pk)) == []
    assert not fresh(gpus[2]).checking


def test_preflight_checks_have_no_peers(gpus, allocate):
    (mine,) = allocate(1)
    workspace = Workspace.objects.get()
    run = ask(gpus[mine], cause=CheckCause.HAND_OUT, workspace=workspace)
    assert run.workspace == workspace and indexes(run) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"island": ""},
        {"island": "nvlink-7"},
        {"healthy": False},
        {"present": False},
        {"cordoned": True},
        {"checking": True},
        {"mig_mode": True},
        {"passed_at": None},
        {"kind": "mig"},
    ],
    ids=str,
)
def test_unsuitable_devices_are_not_peers(gpus, changed):
    Device.objects.filter(pk__in=[gpus[1].pk, gpus[4].pk]).update(**changed)
    assert indexes(ask(gpus[0])) == [2, 3]


def test_allocated_device_is_not_a_peer(gpus, allocate):
    free = sorted(set(range(6)) - allocate(2))
    assert indexes(ask(gpus[free[0]])) == free[1:3]


def test_single_neighbour_is_not_used_as_peer(gpus):
    Device.objects.filter(index__gte=2).update(island="nvlink-1")
    assert indexes(ask(gpus[0])) == []
    assert indexes(ask(gpus[2])) == [3, 4]


def test_devices_of_another_node_are_not_peers(catalog):
    pool = checked_pool(linked_node("node-1", 2), linked_node("node-2", 4))
    Device.objects.filter(node__pool=pool).update(passed_at=timezone.now())
    first = Device.objects.get(uuid="GPU-node-1-0")
    assert indexes(ask(first)) == []


def test_one_device_of_the_pool_is_left_free(gpus, allocate):
    free = sorted(set(range(6)) - allocate(3))
    assert indexes(ask(gpus[free[0]])) == []


def test_no_peers_are_reserved_while_workspaces_wait(gpus):
    WorkspaceFactory(state=State.PENDING)
    assert indexes(ask(gpus[0])) == []


def test_devices_without_links_and_simulated_devices_have_no_peers(catalog, gpus):
    Device.objects.filter(pk=gpus[0].pk).update(island="")
    assert indexes(ask(gpus[0])) == []
    Pool.objects.update(simulated=True, driver="simulated")
    assert indexes(ask(gpus[1])) == []


def test_peers_rotate_between_checks(gpus, sent, django_capture_on_commit_callbacks):
    seen = []
    for week in range(4):
        with django_capture_on_commit_callbacks(execute=True):
            run = ask(gpus[0])
        seen.append(indexes(run))
        with django_capture_on_commit_callbacks(execute=True):
            answer(only(sent))
        GpuCheckRun.objects.filter(pk=run.pk).update(created_at=timezone.now() - timedelta(days=30 - week))
    assert seen == [[1, 2], [3, 4], [1, 5], [2, 3]]


# --- reserved peers -------------------------------------------------------------------------------


def test_reserved_peers_refuse_other_runs(gpus):
    run = ask(gpus[0])
    peer = gpus[1]
    for request in (
        lambda: ask(peer),
        lambda: ask(peer, CheckLevel.QUICK),
        lambda: runs.request_scrub(actor=SYSTEM, device_id=peer.pk),
    ):
        with pytest.raises(StateConflict) as refused:
            request()
        assert refused.value.code is ProblemCode.CHECK_UNDER_WAY
        assert refused.value.extra["run"] == str(run.pk)
    cordon_device(actor=SYSTEM, device_id=peer.pk, reason="looked at")
    with pytest.raises(StateConflict):
        resets.request_reset(actor=SYSTEM, device_id=peer.pk)
    assert ask(gpus[0]) == run, "asking for what is under way answers with that"


def test_two_checks_share_no_peer(gpus):
    first, second = ask(gpus[0]), ask(gpus[3])
    assert indexes(first) == [1, 2]
    assert indexes(second) == [], "with two more of them nothing would stay free"
    assert not fresh(gpus[4]).checking


def test_scheduled_checks_reserve_peers_without_conflicts(
    gpus, sent, clock, django_capture_on_commit_callbacks
):
    with django_capture_on_commit_callbacks(execute=True):
        for device in gpus:
            ask(device, CheckLevel.QUICK)
            answer(only(sent))
    clock.shift(169 * 3600)
    with django_capture_on_commit_callbacks(execute=True):
        policy.run()
    runs_open = list(GpuCheckRun.objects.filter(state__in=OPEN))
    assert [(run.level, run.cause, len(indexes(run))) for run in runs_open] == [("standard", "schedule", 2)]
    with django_capture_on_commit_callbacks(execute=True):
        policy.run()
    assert list(GpuCheckRun.objects.filter(state__in=OPEN)) == runs_open


def test_lost_run_releases_its_peers(gpus, sent, clock, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        run = ask(gpus[0])
        for _ in range(runs.MAX_ATTEMPTS):
            only(sent)
            clock.shift(runs.BEGIN_WITHIN_S + 1)
            lost_runs.sweep_lost()
    run.refresh_from_db()
    assert run.state == RunState.LOST
    assert reserved_indexes(gpus[0]) == set()


def test_failed_check_releases_peers_and_cordons_only_the_device(
    gpus, sent, django_capture_on_commit_callbacks
):
    with django_capture_on_commit_callbacks(execute=True):
        ask(gpus[0])
    with django_capture_on_commit_callbacks(execute=True):
        assert answer(only(sent), "ecc")
    assert [device.index for device in Device.objects.filter(cordoned=True)] == [0]
    assert not Device.objects.filter(checking=True).exists()


def test_sweep_releases_leftovers_of_a_killed_process(gpus, sent):
    """The run was committed, and the process was killed before the release."""
    run = ask(gpus[0])
    GpuCheckRun.objects.filter(pk=run.pk).update(state=RunState.DONE)
    assert set(peers.unused_reservations().values_list("index", flat=True)) == {0, 1, 2}
    lost_runs.sweep_lost()
    assert not Device.objects.filter(checking=True).exists()


def test_sweep_ignores_open_runs(gpus, sent):
    ask(gpus[0])
    lost_runs.sweep_lost()
    assert reserved_indexes(gpus[0]) == {0, 1, 2}


def test_release_skips_peers_with_a_new_run(gpus, django_capture_on_commit_callbacks):
    """A peer was reserved again between the end of the run and the release."""
    run = ask(gpus[0])
    GpuCheckRun.objects.filter(pk=run.pk).update(state=RunState.DONE)
    Device.objects.filter(pk=gpus[1].pk).update(checking=False)
    again = ask(gpus[1], CheckLevel.QUICK)
    peers.release_unused([gpus[1].pk, gpus[2].pk])
    assert again.open and fresh(gpus[1]).checking
    assert not fresh(gpus[2]).checking


# --- pages and REST -------------------------------------------------------------------------------


def test_pages_show_reserved_peers(client, gpus, olga):
    run = ask(gpus[0])
    client.force_login(olga)
    page = client.get(reverse("gpu_checks:check", args=[run.pk])).content.decode()
    assert "Reserved to measure the links" in page and reverse("fleet:device", args=[gpus[2].pk]) in page
    page = client.get(reverse("fleet:device", args=[gpus[1].pk])).content.decode()
    assert "is measuring the link between the two" in page
    page = client.get(reverse("fleet:device", args=[gpus[0].pk])).content.decode()
    assert "A check or scrub is running" in page


def test_node_page_reads_peers_in_one_query(client, gpus, olga, django_assert_max_num_queries):
    client.force_login(olga)
    where = reverse("fleet:node", args=[gpus[0].node_id])
    client.get(where)
    with CaptureQueriesContext(connection) as idle:
        client.get(where)
    ask(gpus[0])
    with django_assert_max_num_queries(len(idle) + 1):
        page = client.get(where).content.decode()
    assert page.count("is measuring the link between the two") == 2


def test_rest_lists_peers(client, gpus, olga):
    run = ask(gpus[0])
    client.force_login(olga)
    listed = client.get("/api/v1/gpu-checks").json()["results"]
    assert listed[0]["peers"] == [gpus[1].uuid, gpus[2].uuid]
    assert client.get(f"/api/v1/gpu-checks/{run.pk}").json()["peers"] == listed[0]["peers"]
