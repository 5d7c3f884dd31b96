"""A node worker killed at each stage of a command: before, in and after the driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from portal.people.accounts.models import User
from portal.workspaces import services
from portal.workspaces.models import Workspace
from provisioning.service.environ import ROOT
from tests.broker import Message
from tests.crash.conftest import Planes
from tests.instance import eventually
from tests.suite.choice import quick_of
from tests.sweeps import sweep

pytestmark = [pytest.mark.apart, pytest.mark.engine, pytest.mark.django_db]
DRIVER = "provisioning.drivers.local"
START = {
    "before the driver": "provisioning.node.tasks._call",
    "before anything is written": f"{DRIVER}.driver.launch",
    "between the record and the launch": f"{DRIVER}.start.spawn",
    "while it is launched": f"{DRIVER}.launching._read_all",
    "before the answer": "provisioning.node.tasks._send_to_control",
}
STOP = {
    "before the driver": "provisioning.node.tasks._call",
    "before the signal": f"{DRIVER}.generations._terminate",
    "before the answer": "provisioning.node.tasks._send_to_control",
}
DELETE = {
    "before the driver": "provisioning.node.tasks._call",
    "before the folder is removed": f"{DRIVER}.state.WorkspaceDir.remove",
    "before the answer": "provisioning.node.tasks._send_to_control",
}
EACH = "a kill at each moment; `make test` has one moment of each command"
STARTED_BY_THEN = {"while it is launched", "before the answer"}


def dies_at(place: str, message: Message) -> None:
    """Pass the command to a worker that is killed at `place`."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.dying_node", place],
        cwd=ROOT,
        env={**os.environ, "BERTH_NODE_NAME": "node-1"},
        input=json.dumps(message.kwargs["command"]),
        text=True,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def command_of(planes: Planes) -> Message:
    (message,) = planes.sent.take("node.execute")
    return message


@pytest.mark.parametrize("moment", quick_of(START, ("while it is launched",), EACH))
def test_worker_killed_while_starting(planes: Planes, moment: str) -> None:
    workspace = planes.make()
    dies_at(START[moment], command_of(planes))
    launched = agents_soon(planes, workspace) if moment in STARTED_BY_THEN else []
    # Commands are not sent again before their lease ends.
    sweep()
    assert planes.state(workspace) == "provisioning"
    assert not planes.sent.of("node.execute")
    planes.lose_the_lease(workspace)
    planes.until(workspace, "running")
    assert workspace.generation == 1
    assert len(planes.agents(workspace)) == 1
    if launched:
        assert planes.agents(workspace) == launched, "it was started a second time"
    planes.check()


@pytest.mark.parametrize("moment", quick_of(START, (), EACH))
def test_worker_killed_while_starting_without_gpus(planes: Planes, bob: User, moment: str) -> None:
    planes.pretend_a_gpu(held_by=bob)
    workspace = planes.make("one-gpu", start_without_gpu=True)
    assert workspace.gpu_awaited
    dies_at(START[moment], command_of(planes))
    planes.lose_the_lease(workspace)
    planes.until(workspace, "running")
    assert (workspace.generation, workspace.gpu_released, workspace.gpu_awaited) == (1, True, True)
    assert len(planes.agents(workspace)) == 1
    planes.check()


def agents_soon(planes: Planes, workspace: Workspace) -> list[tuple[int, int]]:
    """The agent launched by the killed worker, which it survives."""
    return eventually(lambda: planes.agents(workspace) or None, limit_s=10, what="an agent")


@pytest.mark.parametrize("moment", quick_of(STOP, ("before the answer",), EACH))
def test_worker_killed_while_stopping(planes: Planes, moment: str) -> None:
    workspace = planes.make()
    planes.until(workspace, "running")
    planes.sent.clear()
    services.stop(actor=planes.owner, workspace_id=workspace.pk)
    dies_at(STOP[moment], command_of(planes))
    planes.check()
    planes.lose_the_lease(workspace)
    planes.until(workspace, "stopped")
    assert planes.agents(workspace) == []
    planes.check()


@pytest.mark.parametrize("moment", quick_of(DELETE, ("before the folder is removed",), EACH))
def test_worker_killed_while_deleting(planes: Planes, moment: str) -> None:
    workspace = planes.make()
    planes.until(workspace, "running")
    services.stop(actor=planes.owner, workspace_id=workspace.pk)
    planes.until(workspace, "stopped")
    planes.sent.clear()
    services.delete(actor=planes.owner, workspace_id=workspace.pk)
    dies_at(DELETE[moment], command_of(planes))
    planes.lose_the_lease(workspace)
    planes.until(workspace, "terminated")
    assert not list((planes.home / "local").glob("ws-*"))
    planes.check()


def test_launched_workspace_that_is_no_longer_wanted_is_stopped(planes: Planes) -> None:
    """Its worker died before its result, and the user stopped it."""
    workspace = planes.make()
    dies_at(START["before the answer"], command_of(planes))
    assert agents_soon(planes, workspace)
    services.stop(actor=planes.owner, workspace_id=workspace.pk)
    planes.lose_the_lease(workspace)
    planes.until(workspace, "stopped")
    assert planes.agents(workspace) == []
    planes.check()
