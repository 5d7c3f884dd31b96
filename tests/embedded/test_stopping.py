"""How `up` treats workspaces before it stops the services."""

from __future__ import annotations

import asyncio
import io
import sys
from typing import Any

import pytest

from portal.embedded import up as up_module
from portal.embedded import workspaces
from portal.embedded.environment import Instance
from portal.embedded.up import Up
from portal.fleet.inventory.models import Pool
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from provisioning.driver import Driver
from provisioning.errors import MissingDependency
from provisioning.registry import driver_class
from provisioning.service.console import Console
from tests.factories import WorkspaceFactory


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def up(instance: Instance, screen: io.StringIO) -> Up:
    return Up(instance, {"PATH": "/usr/bin:/bin"}, Console(screen, screen), keep_workspaces=False)


def answer_with(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run this Python code in place of the portal's stop command."""
    real = asyncio.create_subprocess_exec

    async def instead(*_: str, **options: Any) -> asyncio.subprocess.Process:
        return await real(sys.executable, "-I", "-S", "-c", code, **options)

    monkeypatch.setattr(up_module.asyncio, "create_subprocess_exec", instead)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (None, ""),
        (OSError(13, "Permission denied"), "; a home's file server may still run (Permission denied)"),
        (MissingDependency("It needs x."), "; a home's file server may still run (It needs x.)"),
    ],
)
def test_leftovers_on_the_machine_are_reported(
    up: Up, monkeypatch: pytest.MonkeyPatch, error: Exception | None, words: str
) -> None:
    asked: list[bool] = []

    def release_host(self: Driver, *, keep_workspaces: bool) -> int:
        asked.append(keep_workspaces)
        if error is not None:
            raise error
        return 0

    monkeypatch.setattr(driver_class("local"), "release_host", release_host)
    assert (up._release_host(), asked) == (words, [False])


async def test_result_of_the_portal_is_printed(
    up: Up, screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_with("print('3 stopped')", monkeypatch)
    await up._stop_workspaces()
    assert "Workspaces             3 stopped" in screen.getvalue()


async def test_failing_portal_is_reported_without_delay(
    up: Up, screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_with("import sys; sys.exit('the database is gone')", monkeypatch)
    await up._stop_workspaces()
    assert "not stopped: the database is gone" in screen.getvalue()


async def test_second_ctrl_c_leaves_workspaces_running(
    up: Up, screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_with("import time; time.sleep(600)", monkeypatch)
    stopping = asyncio.create_task(up._stop_workspaces())
    up._on_signal(up_module.signal.SIGINT)
    up._on_signal(up_module.signal.SIGINT)
    async with asyncio.timeout(20):
        await stopping
    assert "left running; the next start adopts them" in screen.getvalue()


async def test_wait_for_workspaces_has_a_limit(
    up: Up, screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up_module, "STOP_WORKSPACES_LIMIT_S", 0.2)
    answer_with("import time; time.sleep(600)", monkeypatch)
    async with asyncio.timeout(20):
        await up._stop_workspaces()
    assert "left running" in screen.getvalue()


@pytest.mark.parametrize("signal_name", ["SIGHUP", "SIGUSR1"])
def test_lost_terminal_keeps_the_workspaces(up: Up, signal_name: str) -> None:
    up._on_signal(up_module.signal.Signals[signal_name])
    assert up._keep_workspaces and up._stop.is_set()


def test_closed_terminal_causes_no_error() -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(5, "Input/output error")

    console = Console(Gone(), Gone())
    with console.step("Services") as step:
        step.update("waiting")
        step.result = "done"
    console.say("Berth is ready")


def test_terminal_without_unicode_gets_ascii() -> None:
    raw = io.BytesIO()
    console = Console(io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    console.say("✓ Berth · ready…")
    assert raw.getvalue() == b"+ Berth - ready...\n"


def test_workspaces_are_counted_by_state(local_pool: Pool) -> None:
    assert workspaces.counts() == {}
    for state in (State.RUNNING, State.RUNNING, State.PROVISIONING, State.TERMINATED):
        WorkspaceFactory(state=state, pool=local_pool)
    assert workspaces.counts() == {"starting": 1, "running": 2}


def test_stop_waits_until_all_workspaces_are_stopped(
    local_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert workspaces.stop() == "none running"
    one = WorkspaceFactory(state=State.RUNNING, pool=local_pool)
    waits = []

    def later(delay_s: float) -> None:
        waits.append(delay_s)
        if len(waits) == 2:
            Workspace.objects.filter(pk=one.pk).update(state=State.STOPPED)

    monkeypatch.setattr(workspaces.time, "sleep", later)
    assert workspaces.stop() == "1 stopped"
    assert len(waits) == 2


def test_workspace_slow_to_stop_is_left_to_the_next_start(local_pool: Pool) -> None:
    one = WorkspaceFactory(state=State.RUNNING, pool=local_pool)
    assert workspaces.stop(limit_s=0) == "0 stopped, 1 not within 0 s; the next start continues"
    one.refresh_from_db()
    assert one.state == State.STOPPING
