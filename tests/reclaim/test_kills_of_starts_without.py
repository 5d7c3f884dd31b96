"""A process is killed before each write of a start without GPUs and its follow-ups; none is half done.

As in `test_kills`. Web starts it, attaches its GPUs, and releases them again if that takes
too long; the worker notifies its user that they are free. For its node these are ordinary starts and stops
(`tests/crash/test_node_worker.py` kills the node in each stage).
"""

from __future__ import annotations

from collections import Counter

import pytest
from django.utils import timezone

from portal.common.events.models import Event, Notification
from portal.common.models import IdempotencyRecord
from portal.fleet.inventory.models import AllocatedDevice, Pool
from portal.reclaim import free_gpus
from portal.scheduling import snapshot_cache
from portal.workspaces import gpus, reconcile
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests.factories import FlavorFactory, local_pool_with, node_info
from tests.reclaim import test_kills
from tests.reclaim.restarts import stop_and_free
from tests.reclaim.test_kills import killed_before, rolled_back
from tests.suite.choice import quick_of
from tests.sweeps import sweep
from tests.workspaces.helpers import answer, check_invariants, run_until_ready

pytestmark = pytest.mark.django_db
_transactions = test_kills._transactions
FLAVOR = "one-gpu"


@pytest.fixture(autouse=True)
def _node(catalog, settings):
    """One node with one GPU of the local driver; no real hardware."""
    settings.BERTH_RELEASED_CORES, settings.BERTH_RELEASED_MEMORY_GIB = 2, 32
    FlavorFactory(slug=FLAVOR, accelerator_count=1, cpu_milli=3000)
    local_pool_with(node_info(gpus=1))
    Pool.objects.update(hand_out_max_age_hours=0)


@pytest.fixture
def holder(make, bob, sent) -> Workspace:
    """The workspace that holds the only GPU."""
    workspace: Workspace = make(bob, FLAVOR)
    run_until_ready(sent, workspace)
    return workspace


def visible_state() -> list[object]:
    """Return its whole state for portal and people, without random keys."""
    return [
        list(
            Workspace.objects.order_by("requested_at", "pk").values_list(
                "owner", "state", "desired_state", "generation", "gpu_awaited", "flavor__slug", "resources"
            )
        ),
        [each.gpu_released for each in Workspace.objects.order_by("requested_at", "pk")],
        AllocatedDevice.objects.filter(active=True).count(),
        Counter(Notification.objects.values_list("user", "kind")),
        Counter(Event.objects.values_list("kind", flat=True)),
        IdempotencyRecord.objects.exclude(sealed="").count(),
    ]


def started(make, alice, sent) -> Workspace:
    made: Workspace = make(alice, FLAVOR, start_without_gpu=True)
    assert made.gpu_awaited
    run_until_ready(sent, made)
    return made


def start(holder, make, alice, sent):
    return lambda: make(alice, FLAVOR, start_without_gpu=True, idempotency_key="once")


def tell(holder, make, alice, sent):
    started(make, alice, sent)
    stop_and_free(holder, sent)
    return free_gpus.run


def attach(holder, make, alice, sent):
    runs = started(make, alice, sent)
    stop_and_free(holder, sent)
    return lambda: gpus.attach(actor=alice, workspace_id=runs.pk)


def continue_without_gpus(holder, make, alice, sent):
    """Its GPU is used by another workspace again, and its user releases it instead of waiting."""
    runs = started(make, alice, sent)
    gpus.attach(actor=alice, workspace_id=runs.pk)
    assert answer(sent, "stop", "absent")
    sweep()
    assert Workspace.objects.get(pk=runs.pk).state == State.PENDING
    return lambda: gpus.release(actor=alice, workspace_id=runs.pk)


@pytest.mark.parametrize(
    "step",
    quick_of(
        [start, tell, attach, continue_without_gpus],
        [attach],
        "a kill before every write; `make test` has some steps",
    ),
)
def test_kill_before_any_write_completes_or_undoes_the_step(holder, make, alice, sent, step):
    act = step(holder, make, alice, sent)
    before = visible_state()
    with rolled_back():
        act()
        after = visible_state()
    assert before != after
    for statement in range(1, 200):
        snapshot_cache.forget()
        with rolled_back():
            with killed_before(statement) as hit:
                act()
            if not hit:
                break
            sent.clear()
            assert visible_state() in (before, after), hit
            check_invariants()
            # A repetition happens once, by the key of the request or since it is done.
            act()
            assert visible_state() == after, hit
    else:
        pytest.fail("it does not end")
    assert statement > 2


@pytest.mark.parametrize("lost", ["its start", "its stop for the GPUs", "its start with them"])
def test_command_lost_with_its_process_is_sent_again(holder, make, alice, sent, lost):
    made = make(alice, FLAVOR, start_without_gpu=True)
    if lost == "its start":
        lose(sent)
    run_until_ready(sent, made)
    stop_and_free(holder, sent)
    gpus.attach(actor=alice, workspace_id=made.pk)
    if lost == "its stop for the GPUs":
        lose(sent)
    assert answer(sent, "stop", "absent")
    sweep()
    if lost == "its start with them":
        lose(sent)
    run_until_ready(sent, made)
    runs = Workspace.objects.get(pk=made.pk)
    assert (runs.state, runs.gpu_released, runs.gpu_awaited) == (State.RUNNING, False, False)
    assert AllocatedDevice.objects.filter(active=True).count() == 1
    check_invariants()


def lose(sent) -> None:
    sent.clear()
    Workspace.objects.filter(state__in=(State.PROVISIONING, State.STOPPING)).update(
        lease_expires_at=timezone.now(), next_reconcile_at=timezone.now()
    )
    reconcile.sweep()
