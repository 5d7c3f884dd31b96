"""Concurrent checks, requests and results."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from django.db import connection
from django.utils import timezone

from portal.catalog import selectors
from portal.catalog.models import Flavor
from portal.common.actors import SYSTEM
from portal.common.errors import StateConflict
from portal.common.events.models import Event, Notification
from portal.fleet.inventory.models import AllocatedDevice, Device, Node, Pool
from portal.gpu_checks import pairs, runs
from portal.gpu_checks.models import CheckCause, GpuCheckRun
from portal.scheduling import cycle
from portal.workspaces import services
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests.factories import create_workspace, node_info
from tests.gpu_checks.helpers import answer, checked_pool, commands, linked_node, only
from tests.workspaces.helpers import check_invariants

pytestmark = pytest.mark.django_db(transaction=True)
DEVICES = 4


def at_once(*acts):
    """Run all in threads that start together; return results or refusals."""
    together = threading.Barrier(len(acts))

    def do(act):
        try:
            together.wait(30)
            return act()
        except StateConflict as refused:
            return refused
        finally:
            connection.close()

    with ThreadPoolExecutor(len(acts)) as threads:
        return list(threads.map(do, acts))


def people(number: int, actor, team):
    """Users that each start a workspace with one GPU."""
    template = selectors.all_templates().get(slug="jupyterlab")
    flavor = Flavor.objects.get(accelerator_count=1)
    return [
        partial(create_workspace, actor=actor, team=team, template=template, flavor=flavor, name=f"w-{each}")
        for each in range(number)
    ]


def test_device_is_never_allocated_while_its_check_is_requested(alice, team, catalog, sent):
    checked_pool(node_info(gpus=DEVICES))
    Pool.objects.update(hand_out_max_age_hours=0)

    def operator(device: Device):
        return lambda: runs.request_check(actor=SYSTEM, device_id=device.pk)

    found = at_once(*people(DEVICES, alice, team), *(operator(device) for device in Device.objects.all()))
    assert sum(isinstance(each, Workspace) for each in found) == DEVICES
    cycle.run()
    held = set(AllocatedDevice.objects.filter(active=True).values_list("device", flat=True))
    checked = set(GpuCheckRun.objects.values_list("device", flat=True))
    assert not held & checked
    assert len(held) + len(checked) == DEVICES
    assert set(Device.objects.filter(checking=True).values_list("pk", flat=True)) == checked
    check_invariants()


def test_peer_is_never_allocated_or_reserved_twice(alice, team, catalog, sent):
    # One node, as all workspaces of a user are placed with their home.
    checked_pool(linked_node("node-1", 16))
    Pool.objects.update(hand_out_max_age_hours=0)
    Device.objects.update(passed_at=timezone.now())

    def operator(device: Device):
        return lambda: runs.request_check(actor=SYSTEM, device_id=device.pk, level="standard")

    checked = Device.objects.filter(index__in=[0, 4, 8, 12])
    found = at_once(*people(4, alice, team), *map(operator, checked))
    assert sum(isinstance(each, Workspace) for each in found) == 4
    cycle.run()
    held = list(AllocatedDevice.objects.filter(active=True).values_list("device", flat=True))
    own = list(GpuCheckRun.objects.values_list("device", flat=True))
    named = list(GpuCheckRun.objects.filter(peers__isnull=False).values_list("peers", flat=True))
    assert own and len(held) == 4
    assert len({*held, *own, *named}) == len(held) + len(own) + len(named), "each is for one thing"
    assert set(Device.objects.filter(checking=True).values_list("pk", flat=True)) == {*own, *named}
    check_invariants()


def test_end_of_a_link_check_is_never_allocated(alice, team, catalog, sent, settings):
    """Nor do both GPUs of a node become ends of links to the same node."""
    settings.BERTH_NODES_ADDRESS = "192.0.2.11"
    pool = checked_pool(*(node_info(f"node-{each}", gpus=2, provides=("rdma",)) for each in (1, 2, 3)))
    config = {**pool.config, "node": "node-1", "homes_shared": True}
    Pool.objects.update(hand_out_max_age_hours=0, config=config)
    Device.objects.update(passed_at=timezone.now())
    nodes = list(Node.objects.order_by("name"))

    def operator(one: Node, other: Node):
        return lambda: pairs.request_link_check(actor=SYSTEM, node_id=one.pk, with_node_id=other.pk)

    asked = [operator(nodes[a], nodes[b]) for a, b in ((0, 1), (1, 0), (0, 2), (0, 1))]
    found = at_once(*people(3, alice, team), *asked)
    assert sum(isinstance(each, Workspace) for each in found) == 3
    cycle.run()
    held = list(AllocatedDevice.objects.filter(active=True).values_list("device", flat=True))
    ends = list(GpuCheckRun.objects.values_list("device", flat=True))
    assert len({*held, *ends}) == len(held) + len(ends), "each is for one thing"
    assert set(Device.objects.filter(checking=True).values_list("pk", flat=True)) == set(ends)
    assert len(ends) == 2 * GpuCheckRun.objects.filter(plan__meeting__rank=0).count()
    links = list(GpuCheckRun.objects.values_list("device__node", "partner__device__node"))
    assert len(set(links)) == len(links), "what is under way already is answered again"
    check_invariants()


def test_results_of_both_ends_at_the_same_moment(catalog, sent, settings, olga):
    settings.BERTH_NODES_ADDRESS = "192.0.2.11"
    pool = checked_pool(*(node_info(f"node-{each}", gpus=1, provides=("rdma",)) for each in (1, 2)))
    Pool.objects.update(config={**pool.config, "node": "node-1"})
    Device.objects.update(passed_at=timezone.now())
    one, other = Node.objects.order_by("name")
    pairs.request_link_check(actor=SYSTEM, node_id=one.pk, with_node_id=other.pk)
    first, second = commands(sent)
    found = at_once(
        *[lambda: answer(first, verdict="inconclusive", summary="It could not be said.")] * 2,
        *[lambda: answer(second)] * 2,
    )
    assert found.count(True) == 2
    assert set(GpuCheckRun.objects.values_list("verdict", flat=True)) == {"inconclusive"}
    assert Notification.objects.filter(kind="device.pair_inconclusive").count() == 1
    assert not Device.objects.filter(checking=True).exists()


def test_check_waits_for_the_cycle_that_allocates_the_device(alice, team, catalog, sent, monkeypatch):
    checked_pool(node_info(gpus=1))
    Pool.objects.update(hand_out_max_age_hours=0)
    device = Device.objects.get()
    decided, real = threading.Event(), cycle._start

    def slow_start(site, names):
        if names:
            decided.set()
            # Time for the check to interfere, if it could.
            time.sleep(0.3)
        return real(site, names)

    monkeypatch.setattr(cycle, "_start", slow_start)

    def check():
        assert decided.wait(20)
        return runs.request_check(actor=SYSTEM, device_id=device.pk)

    def create():
        return create_workspace(
            actor=alice,
            team=team,
            template=selectors.all_templates().get(slug="jupyterlab"),
            flavor=Flavor.objects.get(accelerator_count=1),
        )

    workspace, refused = at_once(create, check)
    assert workspace.state == State.PROVISIONING
    assert isinstance(refused, StateConflict) and refused.code == "device_in_use"
    assert not GpuCheckRun.objects.exists()


def test_concurrent_copies_of_a_result_count_once(catalog, sent):
    checked_pool(node_info(gpus=1))
    device = Device.objects.get()
    runs.request_check(actor=SYSTEM, device_id=device.pk)
    command = only(sent)
    found = at_once(*[lambda: answer(command, "ecc")] * 6)
    assert found.count(True) == 1
    assert Event.objects.filter(kind="device.check_failed").count() == 1
    assert Event.objects.filter(kind="device.cordoned").count() == 1


def test_concurrent_equal_requests_return_one_run(catalog, sent):
    checked_pool(node_info(gpus=1))
    device = Device.objects.get()
    found = at_once(*[lambda: runs.request_check(actor=SYSTEM, device_id=device.pk)] * 6)
    assert len({run.pk for run in found}) == 1
    assert len(commands(sent)) == 1


def test_last_check_and_stop_at_the_same_moment_are_consistent(alice, make, catalog, sent):
    """In either order the workspace ends up stopping, with nothing left in between."""
    for number in range(3):
        pool = checked_pool(node_info(f"node-{number}", gpus=1), slug=f"pool-{number}")
        # Otherwise all of her workspaces would wait for the node with her home.
        Pool.objects.filter(pk=pool.pk).update(config={**pool.config, "homes_shared": True})
        workspace = make(alice, Flavor.objects.filter(accelerator_count=1).first().slug, name=f"w{number}")
        assert GpuCheckRun.objects.filter(cause=CheckCause.HAND_OUT, workspace=workspace).exists()
        command = only(sent)
        at_once(
            lambda command=command: answer(command),
            lambda pk=workspace.pk: services.stop(actor=alice, workspace_id=pk),
        )
        workspace.refresh_from_db()
        assert workspace.state == State.STOPPING
        assert workspace.lease
    check_invariants()
