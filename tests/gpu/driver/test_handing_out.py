"""The portal's preflight check and scrub in real processes, from the queue to a GPU and back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from portal.catalog.models import Flavor
from portal.common.actors import SYSTEM
from portal.fleet.inventory.cordons import lift_cordon
from portal.fleet.inventory.models import Device
from portal.gpu_checks import policy, results
from portal.scheduling import cycle
from portal.workspaces import services
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from provisioning import messages
from provisioning.check_messages import CheckAnswer
from provisioning.gpu.scrub_run import run_scrub
from provisioning.node import gpu_tasks
from provisioning.types import DeviceInfo
from tests.broker import Broker
from tests.factories import node_info
from tests.gpu.driver.machine import Machine, uuid_of
from tests.gpu.driver.test_checks import SHORT, Check, Make
from tests.gpu_checks.helpers import checked_pool, fresh, held, only
from tests.rows import error_message
from tests.workspaces.helpers import answer as node_says
from tests.workspaces.helpers import check_invariants, run_until_ready

pytestmark = pytest.mark.django_db
MODEL = "NVIDIA H100 80GB HBM3"
UUIDS = (uuid_of(1), uuid_of(2))


class Node:
    """The driver of a node on the fake machine."""

    checks_at_once = False

    def __init__(self, check: Check) -> None:
        self._check = check

    def check_device(self, uuid: str, level: str, **more: Any) -> Any:
        return self._check(uuid, level, plan=SHORT, **more)

    def scrub_device(self, uuid: str, **more: Any) -> Any:
        return run_scrub(uuid, **more)


@pytest.fixture
def two(with_kernels: Make, catalog: None, clock: Any) -> Machine:
    """Two H100 under R550, and a pool that has not taken inventory yet."""
    devices = tuple(
        DeviceInfo(uuid=uuid, index=n, model=MODEL, memory_mib=81_559) for n, uuid in enumerate(UUIDS)
    )
    checked_pool(node_info(devices=devices))
    return with_kernels(550, *(f"gpu H100 {uuid}" for uuid in UUIDS))


@pytest.fixture
def node(
    two: Machine, check: Check, sent: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> Callable[[], str]:
    """Runs the node's next task, delivers the result, and returns its kind."""
    monkeypatch.setenv("BERTH_HOME", str(tmp_path))
    monkeypatch.setattr(gpu_tasks, "driver_for", lambda pool: Node(check))

    def work() -> str:
        command = only(sent)
        thread = gpu_tasks.begin(command)
        assert isinstance(thread, threading.Thread)
        thread.join()
        (message,) = sent.take("control.apply_gpu_check")
        assert results.apply_answer(messages.load(message.kwargs["answer"], CheckAnswer))
        return command.kind

    return work


@pytest.fixture
def workspace(node: Callable[[], str], make: Callable[..., Workspace], alice: Any) -> Workspace:
    flavor = Flavor.objects.get(accelerator_count=1, name__contains="× NVIDIA")
    return make(alice, flavor.slug)


def device_of(workspace: Workspace) -> Device:
    return Device.objects.get(allocated__active=True, allocated__allocation__workspace=workspace)


def test_lost_gpu_is_cordoned_and_another_is_allocated_and_scrubbed(
    two: Machine, node: Callable[[], str], workspace: Workspace, sent: Broker, alice: Any
) -> None:
    bad = device_of(workspace)
    two.fault("off_the_bus", "count_nonzero", gpu=UUIDS.index(bad.uuid))
    assert node() == "check"
    workspace.refresh_from_db()
    assert workspace.state == State.PENDING and "failed its check" in error_message(workspace)
    assert fresh(bad).cordoned and not held(bad)
    assert "fallen off the bus" in fresh(bad).cordon_reason

    cycle.run()
    workspace.refresh_from_db()
    good = device_of(workspace)
    assert good != bad and node() == "check"
    run_until_ready(sent, workspace)

    # Release: the scrub first finds the second GPU lost, then recovers.
    services.stop(actor=alice, workspace_id=workspace.pk)
    two.fault("off_the_bus", "count_nonzero", gpu=UUIDS.index(good.uuid))
    assert node_says(sent, "stop", "stopped")
    assert node() == "scrub"
    assert fresh(good).cordoned and "fallen off the bus" in fresh(good).cordon_reason
    check_invariants()
    two.mend()
    lift_cordon(actor=SYSTEM, device_id=good.pk)
    services.start(actor=alice, workspace_id=workspace.pk)
    workspace.refresh_from_db()
    assert workspace.state == State.PROVISIONING


def test_gpus_are_not_allocated_until_the_fabric_is_up(
    two: Machine, node: Callable[[], str], workspace: Workspace, clock: Any
) -> None:
    settings = (two.folder / "machine").read_text()
    (two.folder / "machine").write_text(f"{settings}fabric 1\n")
    asked = device_of(workspace)
    assert node() == "check"
    workspace.refresh_from_db()
    assert workspace.state == State.PENDING and not held(asked)
    assert fresh(asked).cordoned and "fabric manager" in fresh(asked).cordon_reason
    # It is checked again automatically, without an operator.
    (two.folder / "machine").write_text(settings)
    clock.shift(policy.RECHECK_AFTER + timedelta(seconds=1))
    policy.run()
    assert node() == "check"
    assert not fresh(asked).cordoned
