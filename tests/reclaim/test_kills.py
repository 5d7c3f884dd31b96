"""A process is killed before each of its writes, in each step of the ladder: nothing is half done.

What a kill -9 leaves of a process is what it had committed, and no message that it was about to send. Here a
step is cut off before its first write, before its second, and so on, with its transactions rolled back.
Which process does it makes no other difference: the worker walks the ladder and looks, web keeps, extends,
releases and attaches. Without beat nothing walks, which is an outage (`test_passes`); what a killed node
leaves of a stop is that of every stop (`tests/crash`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.events.models import Event, Notification
from portal.fleet.inventory.models import AllocatedDevice, Pool
from portal.reclaim import keeping, observing, passes, policy_services
from portal.reclaim.models import LastPass, ReclaimNotice, WorkspaceActivity
from portal.scheduling import snapshot_cache
from portal.workspaces import extending, gpus, resizing
from portal.workspaces.models import Workspace
from tests.factories import FlavorFactory, local_pool_with, node_info
from tests.suite.choice import quick_of
from tests.workspaces.helpers import run_until_ready

pytestmark = pytest.mark.django_db
HOUR = 3600


class Killed(BaseException):
    """As by SIGKILL: nobody catches it."""


@contextmanager
def killed_before(statement: int) -> Iterator[list[str]]:
    """Killed before it writes for that time, counted from 1; the list says what it was, if it came so far."""
    count, hit = 0, []

    def execute(call: Callable[..., Any], sql: str, *rest: Any) -> Any:
        nonlocal count
        # Between two of them it makes no difference when.
        if not hit and sql.startswith(("INSERT", "UPDATE", "DELETE")):
            count += 1
            if count == statement:
                hit.append(sql)
                raise Killed
        return call(sql, *rest)

    with connection.execute_wrapper(execute), suppress(Killed):
        yield hit


@contextmanager
def undone() -> Iterator[None]:
    """All that is written within is taken back."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@pytest.fixture(autouse=True)
def _transactions(monkeypatch) -> None:
    """Each is a savepoint in that of the test, those too that would else be a part of what is around them."""
    real = transaction.Atomic.__enter__

    def enter(self: transaction.Atomic) -> None:
        self.savepoint = True
        real(self)

    monkeypatch.setattr(transaction.Atomic, "__enter__", enter)


@pytest.fixture
def accelerated(catalog, make, alice, sent, settings) -> Workspace:
    """One that runs on a GPU, releases it after an hour and stops after two, with half an hour's notice."""
    settings.BERTH_LIFETIME_HOURS = settings.BERTH_MAX_LIFETIME_HOURS = 72
    settings.BERTH_IDLE_MINUTES, settings.BERTH_IDLE_GPU_MINUTES = 0, 120
    FlavorFactory(slug="one-gpu", accelerator_count=1)
    local_pool_with(node_info(gpus=1))
    Pool.objects.update(hand_out_max_age_hours=0)
    workspace: Workspace = make(alice, "one-gpu")
    run_until_ready(sent, workspace)
    Workspace.objects.update(ends_at=timezone.now() + timedelta(hours=10))
    return Workspace.objects.get(pk=workspace.pk)


def idle(workspace: Workspace, minutes: float) -> None:
    """It was seen to do nothing for so long."""
    now = timezone.now()
    WorkspaceActivity.objects.update_or_create(
        workspace=workspace,
        defaults={
            "generation": workspace.generation,
            "observed_at": now,
            "idle_s": minutes * 60,
            "gpu_idle_s": minutes * 60,
            "report": json.dumps({"at_s": now.timestamp()}),
        },
    )
    type(workspace.status).objects.filter(workspace=workspace).update(heartbeat_at=None)
    LastPass.objects.update_or_create(pk=1, defaults={"at": now - timedelta(seconds=30)})


def standing(workspace: Workspace) -> tuple[Any, ...]:
    """All of it that people can see: its states, notices, what was told, what is in the audit log."""
    row = Workspace.objects.get(pk=workspace.pk)
    activity = WorkspaceActivity.objects.filter(workspace=workspace)
    return (
        (row.state, row.desired_state, row.flavor.slug, row.gpu_released, row.ends_at, row.ends_version),
        row.resources["accelerators"]["count"],
        tuple(ReclaimNotice.objects.values_list("cause", "due_at")),
        tuple(activity.values_list("kept_until", flat=True)),
        AllocatedDevice.objects.filter(active=True).count(),
        Counter(Notification.objects.values_list("kind", flat=True)),
        Counter(Event.objects.values_list("kind", flat=True)),
    )


def warn(workspace, clock, alice):
    idle(workspace, 45)
    return passes.run


def withdraw(workspace, clock, alice):
    warn(workspace, clock, alice)()
    clock.shift(60)
    idle(workspace, 0)
    return passes.run


def release(workspace, clock, alice):
    warn(workspace, clock, alice)()
    clock.shift(HOUR)
    idle(workspace, 105)
    return passes.run


def stop(workspace, clock, alice):
    policy_services.put_policy(actor=SYSTEM, target="site", values={"release_gpu_minutes": None})
    idle(workspace, 100)
    passes.run()
    clock.shift(HOUR)
    idle(workspace, 160)
    return passes.run


def outage(workspace, clock, alice):
    """The notice and the end move by the time in which nobody looked, once."""
    idle(workspace, 0)
    Workspace.objects.update(ends_at=timezone.now() + timedelta(minutes=20))
    passes.run()
    clock.shift(3 * HOUR)
    return passes.run


def keep(workspace, clock, alice):
    warn(workspace, clock, alice)()
    return lambda: keeping.keep_workspace(actor=alice, workspace_id=workspace.pk)


def release_by_hand(workspace, clock, alice):
    return lambda: gpus.release(actor=alice, workspace_id=workspace.pk)


def resize_by_hand(workspace, clock, alice):
    flavor = FlavorFactory(slug="small")
    return lambda: resizing.resize(actor=alice, workspace_id=workspace.pk, flavor=flavor)


def look(workspace, clock, alice):
    """What follows on a look is the same, whenever it was cut off."""
    idle(workspace, 45)
    type(workspace.status).objects.filter(workspace=workspace).update(heartbeat_at=timezone.now())
    return observing.run


@pytest.mark.parametrize(
    "step",
    quick_of(
        [warn, withdraw, release, stop, outage, keep, release_by_hand, resize_by_hand, look],
        [warn, release, stop],
        "a kill before every write; `make test` has some steps",
    ),
)
def test_kill_before_any_write_completes_or_undoes_the_step(accelerated, clock, alice, sent, step):
    policy_services.create(
        actor=SYSTEM, target="site", values={"release_gpu_minutes": 60, "notice_minutes": 30}
    )
    act = step(accelerated, clock, alice)
    before = standing(accelerated)
    with undone():
        act()
        after = standing(accelerated)
    assert (before == after) == (step is look)
    seen = []
    for statement in range(1, 400):
        snapshot_cache.forget()
        with undone():
            with killed_before(statement) as hit:
                act()
            if not hit:
                break
            sent.clear()
            seen.append(standing(accelerated))
            assert seen[-1] in (before, after), hit
            act()
            assert standing(accelerated) == after, hit
    else:
        pytest.fail("it does not end")
    assert len(seen) >= (1 if step is look else 2)


def test_killed_extension_is_applied_once_when_repeated(accelerated, alice):
    """By its idempotency key a request is answered once; without, each word adds its hours."""
    before = standing(accelerated)
    for statement in range(1, 100):
        with undone():
            with killed_before(statement) as hit:
                extending.extend(actor=alice, workspace_id=accelerated.pk, seconds=HOUR)
            if not hit:
                assert Workspace.objects.get().ends_at == accelerated.ends_at + timedelta(hours=1)
                break
            assert standing(accelerated) == before, hit
    assert statement > 1
