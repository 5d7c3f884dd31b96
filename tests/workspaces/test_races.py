"""Concurrent actions with separate connections, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from portal.catalog import selectors as catalog_selectors
from portal.catalog.models import Flavor
from portal.common.errors import StateConflict
from portal.common.events.models import Event
from portal.common.models import IdempotencyRecord
from portal.fleet.inventory import services as inventory
from portal.fleet.inventory.models import AllocatedDevice, Device, Node
from portal.fleet.inventory.node_commands import config_of
from portal.people.accounts import services as accounts
from portal.people.accounts.models import Membership, Role
from portal.workspaces import gpus, reconcile, resizing, results, services
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from provisioning.registry import driver_for
from provisioning.types import Op
from tests.factories import FlavorFactory, MembershipFactory, UserFactory, create_workspace, simulated_pool
from tests.races import at_once
from tests.sweeps import sweep
from tests.workspaces.helpers import check_invariants, run_until_ready, seen

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite]
THREADS = 20


@pytest.fixture
def users(team) -> list[Any]:
    return [MembershipFactory(team=team, user=UserFactory()).user for _ in range(THREADS)]


@pytest.fixture
def one_gpu(catalog, tmp_path):
    return simulated_pool(str(tmp_path / "sim"), slug="sim", nodes=1, gpus=1)


def creations(team, users, flavor: str, **fields) -> list[Callable[[], Workspace]]:
    template = catalog_selectors.all_templates().get(slug="jupyterlab")
    chosen = catalog_selectors.all_flavors().get(slug=flavor)
    return [
        lambda user=user: create_workspace(actor=user, team=team, template=template, flavor=chosen, **fields)
        for user in users
    ]


def test_one_of_twenty_concurrent_requests_gets_the_last_device(team, users, one_gpu, sent):
    made = at_once(creations(team, users, "sim-h100-x1"))

    assert [type(item) for item in made] == [Workspace] * THREADS, made
    states = Counter(Workspace.objects.values_list("state", flat=True))
    assert states == {State.PROVISIONING: 1, State.PENDING: THREADS - 1}
    assert AllocatedDevice.objects.filter(active=True).count() == 1
    assert len(sent.commands) == 1
    check_invariants()


def test_twenty_concurrent_requests_do_not_exceed_the_cores_of_a_node(team, users, local_pool, sent):
    FlavorFactory(slug="quarter", cpu_milli=2000, memory_mib=512)
    made = at_once(creations(team, users, "quarter"))
    assert [type(item) for item in made] == [Workspace] * THREADS, made
    states = Counter(Workspace.objects.values_list("state", flat=True))
    assert states == {State.PROVISIONING: 4, State.PENDING: THREADS - 4}
    check_invariants()


def test_queued_and_new_requests_at_once_do_not_share_a_freed_device(team, alice, users, one_gpu, sent):
    """A release, several sweeps and new requests at the same moment: still one holder."""
    (first,) = (job() for job in creations(team, [alice], "sim-h100-x1"))
    run_until_ready(sent, first)
    waiting = [job() for job in creations(team, users[:8], "sim-h100-x1")]
    assert {item.state for item in waiting} == {State.PENDING}
    services.delete(actor=alice, workspace_id=first.pk)
    (delete,) = sent.commands
    sent.clear()

    outcome = at_once(
        [
            lambda: results.apply_result(seen(delete, "absent")),
            *([sweep] * 4),
            *creations(team, users[8:12], "sim-h100-x1"),
        ]
    )
    assert not [item for item in outcome if isinstance(item, Exception)], outcome
    # Both hints stay in the broker, which delivers nothing here: the periodic sweep replaces them.
    assert not [item for item in at_once([sweep] * 4) if isinstance(item, Exception)]
    assert Workspace.objects.filter(state=State.PROVISIONING).count() == 1
    assert len([command for command in sent.commands if command.op is Op.START]) == 1
    check_invariants()


def test_concurrent_requests_with_one_key_make_one_workspace(team, alice, local_pool, sent):
    made = at_once(creations(team, [alice] * 10, "cpu-small", idempotency_key="key"))
    assert {item.pk for item in made} == {Workspace.objects.get().pk}, made
    assert IdempotencyRecord.objects.count() == 1
    assert len(sent.commands) == 1


def test_concurrent_requests_with_one_name_make_one_workspace(team, alice, local_pool, sent):
    made = at_once(creations(team, [alice] * 8, "cpu-small", name="same"))
    assert Counter(type(item) for item in made) == {Workspace: 1, StateConflict: 7}, made
    assert {item.code for item in made if isinstance(item, StateConflict)} == {"name_taken"}
    assert len(sent.commands) == 1


def test_concurrent_requests_without_a_name_get_different_names(team, alice, local_pool, sent):
    made = at_once(creations(team, [alice] * 6, "cpu-small"))
    assert [type(item) for item in made] == [Workspace] * 6, made
    assert len({item.name for item in made}) == 6


def test_result_delivered_to_several_workers_is_applied_once(team, alice, local_pool, sent):
    (workspace,) = (job() for job in creations(team, [alice], "cpu-small"))
    (start,) = sent.commands
    ready = seen(start, "running", ready=True, endpoint="http://127.0.0.1:18001")
    assert Counter(at_once([lambda: results.apply_result(ready)] * 8)) == {True: 1, False: 7}
    assert Event.objects.filter(workspace=workspace, kind="workspace.ready").count() == 1


def test_concurrent_start_stop_and_delete_leave_a_consistent_state(team, alice, local_pool, sent):
    (workspace,) = (job() for job in creations(team, [alice], "cpu-small"))
    run_until_ready(sent, workspace)
    verbs = [services.stop, services.delete, services.start, services.stop, services.delete]
    outcome = at_once([lambda verb=verb: verb(actor=alice, workspace_id=workspace.pk) for verb in verbs])
    assert {type(item) for item in outcome} <= {Workspace, StateConflict}, outcome
    workspace.refresh_from_db()
    assert workspace.desired_state == "deleted"
    assert workspace.state in {State.STOPPING, State.TERMINATING}
    check_invariants()
    assert len(sent.commands) == 1


def test_concurrent_sweeps_send_each_command_once(team, users, local_pool, sent):
    FlavorFactory(slug="tiny", cpu_milli=100, memory_mib=128)
    rows = [job() for job in creations(team, users, "tiny")]
    sent.clear()
    Workspace.objects.update(next_reconcile_at=rows[0].created_at, lease="", lease_expires_at=None)
    outcome = at_once([reconcile.sweep] * 6)
    assert not [item for item in outcome if isinstance(item, Exception)], outcome
    assert Counter(command.ref.workspace_id for command in sent.commands) == {str(row.pk): 1 for row in rows}


def test_last_two_owners_cannot_both_leave(team, alice):
    other = MembershipFactory(team=team, role=Role.OWNER).user
    outcome = at_once(
        [
            lambda user=user: accounts.remove_member(actor=user, team=team, username=user.username)
            for user in (alice, other)
        ]
    )
    assert Counter(type(item) for item in outcome) == {type(None): 1, StateConflict: 1}, outcome
    assert Membership.objects.filter(team=team, role=Role.OWNER).count() == 1


def test_two_concurrent_inventories_of_one_pool(catalog, tmp_path):
    pool = simulated_pool(str(tmp_path / "sim"), slug="sim", nodes=3, gpus=4)
    Device.objects.all().delete()
    Node.objects.all().delete()
    report = driver_for(config_of(pool)).inventory()
    outcome = at_once([lambda: inventory.apply_inventory(pool=pool, inventory=report)] * 4)
    assert outcome == [None] * 4
    assert (Node.objects.count(), Device.objects.count()) == (3, 12)


def test_concurrent_release_attach_and_stop_leave_one_outcome(team, alice, one_gpu, sent):
    """In any order its allocation equals its request, and nothing runs twice."""
    (workspace,) = (job() for job in creations(team, [alice], "sim-h100-x1"))
    run_until_ready(sent, workspace)
    outcome = at_once(
        [
            *([lambda: gpus.release(actor=alice, workspace_id=workspace.pk)] * 3),
            *([lambda: gpus.attach(actor=alice, workspace_id=workspace.pk)] * 2),
            lambda: services.stop(actor=alice, workspace_id=workspace.pk),
        ]
    )
    assert all(isinstance(each, Workspace | StateConflict) for each in outcome), outcome
    workspace.refresh_from_db()
    assert workspace.state == State.STOPPING
    assert workspace.gpu_released != bool(workspace.resources["accelerators"]["count"])
    (stop,) = sent.commands
    sent.clear()
    assert results.apply_result(seen(stop, "absent"))
    workspace.refresh_from_db()
    assert workspace.state == State.STOPPED
    assert not AllocatedDevice.objects.filter(active=True).exists()
    check_invariants()


def test_concurrent_resize_release_and_stop_leave_one_outcome(team, alice, one_gpu, sent):
    """In any order its request has the resources of its flavor."""
    (workspace,) = (job() for job in creations(team, [alice], "sim-h100-x1"))
    run_until_ready(sent, workspace)
    flavor = Flavor.objects.get(slug="sim-cpu")
    outcome = at_once(
        [
            *([lambda: resizing.resize(actor=alice, workspace_id=workspace.pk, flavor=flavor)] * 3),
            *([lambda: gpus.release(actor=alice, workspace_id=workspace.pk)] * 2),
            lambda: services.stop(actor=alice, workspace_id=workspace.pk),
        ]
    )
    assert all(isinstance(each, Workspace | StateConflict) for each in outcome), outcome
    workspace.refresh_from_db()
    assert workspace.state == State.STOPPING
    assert workspace.resources["accelerators"]["count"] == (
        0 if workspace.gpu_released else workspace.flavor.accelerator_count
    )
    assert len(sent.commands) == 1
