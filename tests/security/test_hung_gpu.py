"""A hanging GPU driver must not silence heartbeats, which would make the workspace count as lost."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest
from django.test import Client

from portal.workspaces.tokens import agent_token
from provisioning.agent.program import gpus as gpus_of_the_agent
from provisioning.agent.program.gpus import Gpus
from tests.workspaces.helpers import run_until_ready

LIMIT_S = 20


@pytest.fixture(autouse=True)
def deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus_of_the_agent, "DEADLINE_S", 0.05)


class Driver:
    """NVML that hangs in the call `hangs_in` until released."""

    def __init__(self, hangs_in: str = "") -> None:
        self.hangs_in = hangs_in
        self.calls = 0
        self.hung, self.let_go = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        def call(*_arguments: Any) -> int:
            self.calls += 1
            if name == self.hangs_in:
                self.hung.set()
                assert self.let_go.wait(LIMIT_S)
            return 0

        return call


def eventually(look: Any) -> Any:
    ends_at = time.monotonic() + LIMIT_S
    while not (found := look()):
        assert time.monotonic() < ends_at
        time.sleep(0.01)
    return found


@pytest.mark.parametrize(
    "call",
    ["nvmlDeviceGetHandleByUUID", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo"],
)
def test_hanging_driver_costs_one_deadline_and_is_reported(call):
    gpus = Gpus(["GPU-1"])
    gpus.library = driver = Driver(hangs_in=call)
    assert gpus.sample() is None
    assert 0 <= gpus.stale_s() <= LIMIT_S
    assert driver.hung.wait(LIMIT_S)
    calls = driver.calls
    # No further call waits for it, and it is not called a second time meanwhile.
    for _ in range(100):
        assert gpus.sample() is None
    assert driver.calls == calls
    assert gpus.thread.is_alive()

    driver.hangs_in = ""
    driver.let_go.set()
    found = eventually(gpus.sample)
    assert [each["uuid"] for each in found] == ["GPU-1"]
    assert gpus.stale_s() is None


def test_driver_hanging_at_initialization_is_reported(monkeypatch):
    gpus = Gpus(["GPU-1"])
    hung = threading.Event()
    monkeypatch.setattr(gpus, "_load", lambda: hung.wait(LIMIT_S))
    assert gpus.sample() is None
    assert gpus.stale_s() is not None
    hung.set()


def test_missing_driver_gives_no_samples_and_no_waiting_thread(monkeypatch):
    gpus = Gpus(["GPU-1"])

    def missing() -> None:
        raise OSError("no libnvidia-ml.so.1")

    monkeypatch.setattr(gpus, "_load", missing)
    eventually(lambda: gpus.sample() is None and gpus.broken)
    gpus.thread.join(LIMIT_S)
    assert not gpus.thread.is_alive()
    assert (gpus.sample(), gpus.stale_s()) == (None, None)
    none = Gpus([])
    assert (none.sample(), none.stale_s(), none.thread) == (None, None, None)


@pytest.mark.django_db
def test_page_shows_the_silent_driver(clock, make, alice, local_pool, sent, as_user):
    workspace = make(alice)
    run_until_ready(sent, workspace)
    token = agent_token(workspace.pk, workspace.generation)
    Client(headers={"Authorization": f"Bearer {token}"}).post(
        "/agent/v1/heartbeat",
        json.dumps({"activity": {"gpus": None, "gpus_stale_s": 45}}),
        content_type="application/json",
    )
    page = as_user(alice).get(f"/workspaces/{workspace.pk}/").content.decode()
    assert "no response from the driver for 45 s" in page
