"""Slots and circuit breakers of pools whose engine hangs or fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioning.errors import BackendUnavailable, Conflict
from provisioning.node import engine_calls
from provisioning.node.engine_calls import MAX_FAILURES
from provisioning.types import PoolConfig

SLURM, OTHER = PoolConfig("slurm", "simulated"), PoolConfig("other", "simulated")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_calls, "WAIT_S", 0.0)


def call(folder: Path, pool: PoolConfig = SLURM, error: Exception | None = None) -> None:
    with engine_calls.in_slot(pool, folder):
        if error is not None:
            raise error


def fail(folder: Path, pool: PoolConfig = SLURM, times: int = MAX_FAILURES) -> None:
    for _ in range(times):
        with pytest.raises(BackendUnavailable, match="as scripted"):
            call(folder, pool, BackendUnavailable("No answer, as scripted."))


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Move the clock of pauses forward."""
    real, offset = time.time, 0.0

    def forward(seconds: float) -> None:
        nonlocal offset
        offset += seconds
        monkeypatch.setattr(engine_calls.time, "time", lambda: real() + offset)

    return forward


def test_a_pool_has_one_call_at_a_time_and_delays_no_other(tmp_path):
    with engine_calls.in_slot(SLURM, tmp_path):
        with pytest.raises(BackendUnavailable, match="has not answered another call"):
            call(tmp_path)
        call(tmp_path, OTHER)
    call(tmp_path)


def test_a_short_call_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_calls, "WAIT_S", 60.0)
    held = engine_calls.in_slot(SLURM, tmp_path)
    held.__enter__()
    monkeypatch.setattr(engine_calls.time, "sleep", lambda _: held.__exit__(None, None, None))
    call(tmp_path)


def test_failures_open_the_circuit_until_a_trial_succeeds(tmp_path, later):
    fail(tmp_path)
    with pytest.raises(BackendUnavailable, match=f"did not answer {MAX_FAILURES} times"):
        call(tmp_path)
    later(engine_calls.FIRST_PAUSE_S)
    fail(tmp_path, times=1)
    later(engine_calls.FIRST_PAUSE_S)
    with pytest.raises(BackendUnavailable, match=f"did not answer {MAX_FAILURES + 1} times"):
        call(tmp_path)
    later(engine_calls.FIRST_PAUSE_S)
    call(tmp_path)
    fail(tmp_path, times=MAX_FAILURES - 1)
    call(tmp_path)


def test_only_one_pool_of_a_worker_is_tried_at_a_time(tmp_path, later):
    fail(tmp_path)
    fail(tmp_path, OTHER)
    later(engine_calls.FIRST_PAUSE_S)
    with engine_calls.in_slot(SLURM, tmp_path), pytest.raises(BackendUnavailable, match="did not answer"):
        call(tmp_path, OTHER)
    call(tmp_path, OTHER)


def test_a_changed_configuration_is_tried_at_once(tmp_path):
    fail(tmp_path)
    call(tmp_path, PoolConfig("slurm", "simulated", {"seed": 1}))


def test_refusals_are_answers_and_slow_answers_are_failures(tmp_path, monkeypatch):
    for _ in range(MAX_FAILURES):
        with pytest.raises(Conflict):
            call(tmp_path, error=Conflict("The name is taken. Choose another."))
    call(tmp_path)
    monkeypatch.setattr(engine_calls, "SLOW_S", -1.0)
    for _ in range(MAX_FAILURES):
        call(tmp_path)
    with pytest.raises(BackendUnavailable, match="did not answer"):
        call(tmp_path)


def test_a_damaged_state_counts_as_none(tmp_path):
    fail(tmp_path)
    (tmp_path / "slurm.json").write_text('{"failures"')
    call(tmp_path)


def test_pools_of_the_node_plane_have_no_slots(monkeypatch):
    monkeypatch.setattr(engine_calls, "_in_pool_process", True)
    monkeypatch.setattr(engine_calls, "_folder", lambda: pytest.fail("a slot was asked for"))
    with engine_calls.call(PoolConfig("here", "local")):
        pass
