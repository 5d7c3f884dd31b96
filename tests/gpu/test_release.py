"""Release of NVML for resets: while held, and until its deadline."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from provisioning.drivers.local import gpus
from provisioning.errors import GpuBeingReset
from provisioning.gpu import inventory, release
from provisioning.gpu.facts import MachineState


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BERTH_HOME", str(tmp_path))


def test_release_is_requested_only_while_held() -> None:
    assert not release.is_release_requested()
    with release.release_nvml():
        assert release.is_release_requested()
        with pytest.raises(release.ResetInProgress), release.release_nvml():
            pass
    assert not release.is_release_requested()


def test_expired_deadline_makes_no_call() -> None:
    with release.release_nvml(lease_s=0):
        assert not release.is_release_requested()
        release.wait()


def test_unwritten_state_makes_no_call() -> None:
    with release.release_nvml():
        (release.lock_folder() / "nvml-released").write_text("")
        assert not release.is_release_requested()


def test_reset_under_way_is_reported_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "RESET_WAIT_S", 0.0)
    with release.release_nvml():
        with pytest.raises(release.ResetNotOver):
            release.wait(0)
        with pytest.raises(GpuBeingReset) as told:
            gpus.scan()
    assert told.value.retryable


def test_inventory_waits_for_the_end_of_a_reset(tmp_path: Path) -> None:
    found: list[MachineState] = []
    scan = threading.Thread(target=lambda: found.append(inventory.scan(root=tmp_path).state))
    with release.release_nvml():
        scan.start()
        scan.join(3 * release.POLL_INTERVAL_S)
        assert not found
    scan.join(30)
    assert len(found) == 1
