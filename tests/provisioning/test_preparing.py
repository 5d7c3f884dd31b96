"""Preparation after starts: in a worker process only, delayed, once for several starts."""

from __future__ import annotations

import threading

import pytest

from provisioning.node import preparing
from provisioning.types import PoolConfig

POOL = PoolConfig("local", "local", {})


class Prepared:
    """A driver that records preparations and may fail."""

    def __init__(self) -> None:
        self.owners: list[int] = []
        self.called = threading.Event()
        self.failure: Exception | None = None
        self.host_prepared = False

    def prepare_host(self) -> None:
        self.host_prepared = True

    def warm_up(self, *, owner: int) -> None:
        self.owners.append(owner)
        self.called.set()
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Prepared:
    prepared = Prepared()
    monkeypatch.setattr(preparing, "driver_for", lambda _: prepared)
    monkeypatch.setattr(preparing, "_due", {})
    monkeypatch.setattr(preparing, "_in_pool_process", True)
    # Longer than any test.
    monkeypatch.setattr(preparing, "AFTER_START_S", 3600)
    return prepared


def test_concurrent_starts_prepare_once_and_a_later_start_again(
    driver: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparing.schedule_preparation(POOL)
    preparing.schedule_preparation(POOL)
    (timer,) = preparing._due.values()
    timer.cancel()
    timer.function(*timer.args)
    assert driver.owners == [preparing.WORKER_PID]
    driver.called.clear()
    monkeypatch.setattr(preparing, "AFTER_START_S", 0.01)
    preparing.schedule_preparation(POOL)
    assert driver.called.wait(30)
    assert driver.owners == [preparing.WORKER_PID] * 2


def test_starts_outside_a_worker_do_not_wait(driver: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "_in_pool_process", False)
    preparing.schedule_preparation(POOL)
    assert preparing._due == {} and driver.owners == []


def test_failure_is_only_logged(driver: Prepared, caplog: pytest.LogCaptureFixture) -> None:
    driver.failure = OSError("no space left on device")
    preparing.now(POOL)
    assert driver.owners and "no space left on device" in caplog.text


@pytest.mark.parametrize("in_worker", [True, False])
def test_only_a_worker_changes_the_machine(
    driver: Prepared, monkeypatch: pytest.MonkeyPatch, in_worker: bool
) -> None:
    monkeypatch.setattr(preparing, "_in_pool_process", in_worker)
    preparing.prepare_host(driver)  # type: ignore[arg-type]
    assert driver.host_prepared == in_worker
