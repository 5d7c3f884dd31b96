"""An instance to kill processes of; and both planes in the test, with the real local driver."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.fleet.inventory import services as inventory
from portal.fleet.inventory.models import Allocation, Pool
from portal.fleet.inventory.node_commands import config_of
from portal.people.accounts.models import User
from portal.workspaces.lifecycle import HOLDING
from portal.workspaces.models import Workspace
from provisioning.drivers.local import network, processes
from provisioning.registry import driver_for
from provisioning.types import Capability, DeviceInfo, PoolConfig
from tests import instance
from tests.broker import AwayRedis, Broker, Message
from tests.crash.harm import Fleet, process_name
from tests.factories import FlavorFactory
from tests.instance import Berth
from tests.sweeps import sweep


@pytest.fixture(scope="module")
def fleet(shared_berth: Berth) -> Iterator[Fleet]:
    """Four small workspaces, two of them running, and a JupyterLab if its environment is installed."""
    fleet = Fleet(shared_berth, bystander="jupyterlab" if instance.notebook_environment() else "files")
    try:
        yield fleet
        fleet.want_all(dict.fromkeys(fleet.desired_state, "deleted"))
        fleet.recovered()
    finally:
        fleet.close()


@pytest.fixture(autouse=True)
def _broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    """The test's own broker, also for tests marked `engine`."""
    from portal.celery import app as control_app
    from portal.common.events import live
    from provisioning.node.worker import app as node_app

    broker = Broker()
    monkeypatch.setattr(control_app, "send_task", broker.send_task)
    monkeypatch.setattr(node_app, "send_task", broker.send_from_node)
    monkeypatch.setattr(live, "connection", AwayRedis)
    return broker


class Planes:
    """Both planes in this process: real rows, real workspace processes, messages delivered by hand."""

    def __init__(self, sent: Broker, home: Path, owner: User, make: Callable[..., Workspace]) -> None:
        from provisioning.drivers.local.driver import LocalDriver

        self.sent, self.home, self.owner, self._make = sent, home, owner, make
        self.marker = LocalDriver(PoolConfig("local", "local", {"home": str(home)})).instance

    def make(self, flavor: str = "tiny", **fields: Any) -> Workspace:
        return self._make(self.owner, flavor, template="files", **fields)

    def pretend_a_gpu(self, *, held_by: User) -> None:
        """Give the node one GPU, held by a user: rows only, as test machines have none."""
        pool = Pool.objects.get()
        seen = driver_for(config_of(pool)).inventory()
        devices = (DeviceInfo(uuid="GPU-1", index=0, model="NVIDIA H100 80GB HBM3", memory_mib=81_559),)
        nodes = tuple(replace(node, devices=devices) for node in seen.nodes)
        able = seen.capabilities | {Capability.WHOLE_GPU}
        inventory.apply_inventory(pool=pool, inventory=replace(seen, nodes=nodes, capabilities=able))
        Pool.objects.update(hand_out_max_age_hours=0)
        FlavorFactory(slug="one-gpu", accelerator_count=1, cpu_milli=100, memory_mib=256)
        self._make(held_by, "one-gpu", template="files")
        self.sent.clear()

    def state(self, workspace: Workspace) -> str:
        workspace.refresh_from_db()
        return str(workspace.state)

    def lose_the_lease(self, workspace: Workspace) -> None:
        """Expire the lease of the running command."""
        past = timezone.now() - timedelta(seconds=1)
        Workspace.objects.filter(pk=workspace.pk).update(lease_expires_at=past, next_reconcile_at=past)

    def until(
        self, workspace: Workspace, state: str, deliver: Callable[[Message], None] | None = None
    ) -> None:
        """Run both planes until the workspace is in `state`, skipping waiting times."""
        deadline = time.monotonic() + 30
        while self.state(workspace) != state:
            assert time.monotonic() < deadline, f"{state} was not reached; it is {workspace.state}"
            now = timezone.now()
            Workspace.objects.filter(next_reconcile_at__gt=now, lease="").update(next_reconcile_at=now)
            sweep()
            for message in self.sent.take():
                (deliver or self.sent.deliver)(message)
            time.sleep(0.02)

    def agents(self, workspace: Workspace) -> list[tuple[int, int]]:
        owned = processes.scan(self.marker, process_name(str(workspace.pk)))
        return [(process.pid, process.generation) for process in owned if process.is_agent]

    def check(self) -> None:
        """Only workspaces that may run hold capacity, and no other processes run."""
        holding = set(Workspace.objects.filter(state__in=HOLDING).values_list("pk", flat=True))
        held = list(Allocation.objects.filter(released_at=None).values_list("workspace", flat=True))
        assert sorted(held, key=str) == sorted(holding, key=str)
        names = {process_name(str(pk)) for pk in holding}
        assert {process.workspace for process in processes.scan(self.marker)} <= names

    def close(self) -> None:
        """Remove everything that a failed test left behind."""
        deadline = time.monotonic() + 10
        while (left := processes.scan(self.marker)) and time.monotonic() < deadline:
            processes.kill(left)
            time.sleep(0.02)
        for process in network.egress_processes_below(self.home / "local"):
            processes.send((process.pid, process.start_ticks), signal.SIGKILL)


@pytest.fixture
def planes(
    catalog: None,
    _broker: Broker,
    tmp_path: Path,
    alice: User,
    make: Callable[..., Workspace],
    monkeypatch: pytest.MonkeyPatch,
    settings: Any,
) -> Iterator[Planes]:
    from tests.populate import add_catalog

    # Nothing answers there; agent messages are not needed here.
    settings.BERTH_AGENT_URL = "http://127.0.0.1:1"
    monkeypatch.setenv("BERTH_NODE_NAME", "node-1")
    home = tmp_path / "home"
    monkeypatch.setenv("BERTH_HOME", str(home))
    monkeypatch.setenv("BERTH_NODE_ENVIRONMENT", str(tmp_path / "none"))
    pool = inventory.create_pool(
        actor=SYSTEM,
        slug="this-machine",
        name="This machine",
        driver="local",
        config={"node": "node-1", "home": str(home), "environment": str(tmp_path / "none")},
    )
    seen = driver_for(config_of(pool)).inventory()
    inventory.apply_inventory(pool=pool, inventory=seen)
    add_catalog()
    with contextlib.closing(Planes(_broker, home, alice, make)) as both:
        yield both
