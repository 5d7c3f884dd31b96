"""Checks on one machine take turns where they would disturb each other's measurements."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from provisioning.gpu.check import turns
from provisioning.gpu.check.turns import NamedLock, hold_turns, near_cpus, on_cpus, shared_link, turns_for

SHARED, ALONE = NamedLock("measure", False), NamedLock("measure", True)


@pytest.mark.parametrize("probe", ["canary", "address", "exact", "inversions"])
def test_probes_without_measurement_do_not_wait(probe: str) -> None:
    assert turns_for(probe, "0000:16:00.0", alone=True) == ()


def test_turns_are_exclusive_per_switch_and_for_second_measurements() -> None:
    link = NamedLock("link-0000_16_00.0", True)
    assert turns_for("pcie", "0000:16:00.0", alone=False) == (SHARED, link)
    assert turns_for("peers", "0000:16:00.0", alone=True) == (ALONE, link)
    assert turns_for("copy", "0000:16:00.0", alone=False) == (SHARED,)
    assert turns_for("pcie", "", alone=False) == (SHARED,)


@pytest.mark.parametrize("probe", ["all_pairs", "all_reduce"])
@pytest.mark.parametrize("alone", [True, False])
def test_no_measurement_during_load_of_all_links(alone: bool, probe: str) -> None:
    """Including peers below other switches."""
    assert turns_for(probe, "0000:16:00.0", alone=alone) == (ALONE,)


def test_missed_turn_is_reported(tmp_path: Path) -> None:
    with hold_turns(tmp_path, [SHARED]) as first, hold_turns(tmp_path, [SHARED], wait_s=0) as second:
        assert first and second
        with hold_turns(tmp_path, [ALONE], wait_s=0) as third:
            assert not third
    with hold_turns(tmp_path, [ALONE], wait_s=0) as now:
        assert now
        with hold_turns(tmp_path, [SHARED], wait_s=0) as other:
            assert not other
        with hold_turns(tmp_path, [NamedLock("link-a", True)], wait_s=0) as elsewhere:
            assert elsewhere
    with hold_turns(tmp_path / "nowhere", []) as nothing:
        assert nothing


def test_partially_acquired_locks_are_released(tmp_path: Path) -> None:
    link = NamedLock("link-a", True)
    with hold_turns(tmp_path, [link]):
        with hold_turns(tmp_path, [ALONE, link], wait_s=0) as got:
            assert not got
        with hold_turns(tmp_path, [ALONE], wait_s=0) as free:
            assert free


def test_pci_switch_and_cpus_of_a_device(tmp_path: Path) -> None:
    real = tmp_path / "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1b:00.0"
    real.mkdir(parents=True)
    (real / "local_cpulist").write_text("0-1,4\n")
    link = tmp_path / "sys/bus/pci/devices/0000:1b:00.0"
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    assert shared_link("0000:1b:00.0", tmp_path) == "0000:16:00.0"
    assert near_cpus("0000:1b:00.0", tmp_path) == (0, 1, 4)
    assert shared_link("0000:2b:00.0", tmp_path) == "0000:2b:00.0"
    assert near_cpus("0000:2b:00.0", tmp_path) == ()


def test_copies_run_on_the_cpus_of_their_device() -> None:
    before = os.sched_getaffinity(0)
    one = min(before)
    with on_cpus([one, 100_000]) as moved:
        assert moved and os.sched_getaffinity(0) == {one}
    assert os.sched_getaffinity(0) == before
    with on_cpus([100_000]) as moved:
        assert not moved and os.sched_getaffinity(0) == before


def test_copies_run_anywhere_without_permission_to_set_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise OSError

    monkeypatch.setattr(os, "sched_setaffinity", refused)
    with on_cpus(os.sched_getaffinity(0)) as moved:
        assert not moved


def test_lock_folder_must_be_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_HOME", str(tmp_path))
    assert turns.folder() == tmp_path / f"gpu-turns-{os.getuid()}"
    (tmp_path / "file").touch()
    monkeypatch.setenv("BERTH_HOME", str(tmp_path / "file"))
    assert turns.folder() is None
