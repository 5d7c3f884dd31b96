"""A process is killed before each of its writes in every reclaim step; no step is half done.

SIGKILL leaves committed writes and no unsent message. Here a step is cut off before its
first write, its second, and so on, with its transactions rolled back. Which process is killed makes no other
difference: the worker runs passes and observes; web keeps, extends, releases and attaches. Without beat no
pass runs, which is an outage (`test_passes`); killed nodes are tested in `tests/crash`.
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
    """Like SIGKILL: not caught anywhere."""


@contextmanager
def killed_before(statement: int) -> Iterator[list[str]]:
    """Kill before the write with this number, from 1; the list gets the statement if it was reached."""
    count, hit = 0, []

    def execute(call: Callable[..., Any], sql: str, *rest: Any) -> Any:
        nonlocal count
        # Between two writes the moment makes no difference.
        if not hit and sql.startswith(("INSERT", "UPDATE", "DELETE")):
            count += 1
            if count == statement:
                hit.append(sql)
                raise Killed
        return call(sql, *rest)

    with connection.execute_wrapper(execute), suppress(Killed):
        yield hit


@contextmanager
def rolled_back() -> Iterator[None]:
    """Roll back all writes of the block."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@pytest.fixture(autouse=True)
def _transactions(monkeypatch) -> None:
    """Make every transaction a savepoint in that of the test, nested ones too."""
    real = transaction.Atomic.__enter__

    def enter(self: transaction.Atomic) -> None:
        self.savepoint = True
        real(self)

    monkeypatch.setattr(transaction.Atomic, "__enter__", enter)


@pytest.fixture
def accelerated(catalog, make, alice, sent, settings) -> Workspace:
    """A workspace on a GPU: released after one hour, stopped after two, with half an hour's notice."""
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
    """Record idle time of this length."""
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


def visible_state(workspace: Workspace) -> tuple[Any, ...]:
    """Return everything visible: states, notices, notifications, audit log."""
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
    """Notice and end move once by the length of the outage."""
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
    """The effects of an observation do not depend on when it was cut off."""
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
    before = visible_state(accelerated)
    with rolled_back():
        act()
        after = visible_state(accelerated)
    assert (before == after) == (step is look)
    seen = []
    for statement in range(1, 400):
        snapshot_cache.forget()
        with rolled_back():
            with killed_before(statement) as hit:
                act()
            if not hit:
                break
            sent.clear()
            seen.append(visible_state(accelerated))
            assert seen[-1] in (before, after), hit
            act()
            assert visible_state(accelerated) == after, hit
    else:
        pytest.fail("it does not end")
    assert len(seen) >= (1 if step is look else 2)


def test_killed_extension_is_applied_once_when_repeated(accelerated, alice):
    """An idempotency key is answered once; without one, each request adds its hours."""
    before = visible_state(accelerated)
    for statement in range(1, 100):
        with rolled_back():
            with killed_before(statement) as hit:
                extending.extend(actor=alice, workspace_id=accelerated.pk, seconds=HOUR)
            if not hit:
                assert Workspace.objects.get().ends_at == accelerated.ends_at + timedelta(hours=1)
                break
            assert visible_state(accelerated) == before, hit
    assert statement > 1
