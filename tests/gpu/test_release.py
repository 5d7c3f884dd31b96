"""Letting go of NVML: as long as somebody holds it and its deadline has not passed, and no longer."""

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


def test_only_while_it_is_held() -> None:
    assert not release.is_asked()
    with release.released():
        assert release.is_asked()
        with pytest.raises(release.ReleaseTaken), release.released():
            pass
    assert not release.is_asked()


def test_a_deadline_that_has_passed_asks_nobody() -> None:
    with release.released(lease_s=0):
        assert not release.is_asked()
        release.wait()


def test_what_was_not_written_yet_asks_nobody() -> None:
    with release.released():
        (release.lock_folder() / "nvml-released").write_text("")
        assert not release.is_asked()


def test_who_has_no_patience_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "PATIENCE_S", 0.0)
    with release.released():
        with pytest.raises(release.StillAsked):
            release.wait(0)
        with pytest.raises(GpuBeingReset) as told:
            gpus.scan()
    assert told.value.retryable


def test_inventory_waits_until_the_driver_may_be_opened(tmp_path: Path) -> None:
    found: list[MachineState] = []
    scan = threading.Thread(target=lambda: found.append(inventory.scan(root=tmp_path).state))
    with release.released():
        scan.start()
        scan.join(3 * release.LOOK_S)
        assert not found
    scan.join(30)
    assert len(found) == 1
