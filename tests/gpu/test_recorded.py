"""Inventory, facts and samples from recordings of an H100 and an H200 (driver 580.159.04)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from provisioning.gpu import inventory
from provisioning.gpu.check.nvml_read import DeviceReader
from provisioning.gpu.check.thresholds import peak_of
from provisioning.gpu.facts import MachineState
from provisioning.gpu.sources import NvmlDevices
from tests.gpu.fake_nvml import FakeLibrary, h200, installed
from tests.gpu.recording import Replay, recorded, replayed

RECORDED = Path(__file__).with_name("recorded")
UUID = "GPU-00000000-1111-2222-3333-444444444444"
"""In place of the device's own."""


@pytest.fixture
def idle() -> Iterator[Replay]:
    with replayed(RECORDED / "h100-r580-idle.json.gz") as replay:
        yield replay
        assert replay.unknown == []


@pytest.fixture
def busy() -> Iterator[Replay]:
    with replayed(RECORDED / "h100-r580-busy.json.gz") as replay:
        yield replay
        assert replay.unknown == []


def test_inventory_of_a_recorded_h100(idle: Replay, tmp_path: Path) -> None:
    found = inventory.scan(root=tmp_path)
    assert (found.state, found.driver_version, found.cuda_version) == (
        MachineState.OK, "580.159.04", "13.0",
    )  # fmt: skip
    (gpu,) = found.gpus
    assert (gpu.uuid, gpu.model, gpu.memory_mib) == (UUID, "NVIDIA H100 80GB HBM3", 81559)
    assert (gpu.compute_capability, gpu.mig_mode, gpu.virtual, gpu.ecc) == ("9.0", False, False, True)
    assert (gpu.pcie.max_gen, gpu.pcie.max_width) == (5, 16)
    assert gpu.links.total == 0, "its driver was loaded without NVLink"
    assert gpu.power_range_mw == (200_000, 700_000)
    assert (gpu.recovery_action, gpu.processes, gpu.unusable_reason) == ("none", (), "")
    assert gpu.memory.retired_pages is None, "it remaps rows, and retires no pages"
    assert (gpu.memory.remap_pending, gpu.memory.ecc_uncorrected) == (False, 0)


def test_check_facts_of_a_recorded_h100(idle: Replay) -> None:
    reader = DeviceReader(UUID)
    facts, seen = reader.facts(), reader.snapshot()
    assert (facts["name"], facts["compute_capability"]) == ("NVIDIA H100 80GB HBM3", [9, 0])
    assert (seen["compute_mode"], seen["fabric"], seen["mig_mode"]) == ("default", "not_supported", False)
    assert (seen["recovery_action"], seen["sram_threshold_exceeded"], seen["processes"]) == (
        "none", False, [],
    )  # fmt: skip
    assert (seen["nvlinks"], seen["nvlinks_of_partners"]) == (None, None)
    assert seen["unavailable"] == ["retired_pending"]


def test_sample_under_load(busy: Replay, tmp_path: Path) -> None:
    (gpu,) = inventory.scan(root=tmp_path).gpus
    assert gpu.processes is not None
    assert [(each.pid, each.memory_mib) for each in gpu.processes] == [(755, 2610)]
    reader = DeviceReader(UUID)
    reader.facts()
    assert reader.snapshot()["processes"] == [{"pid": 755, "memory_mib": 2610}]
    (source,) = NvmlDevices()()
    first, second = source.read(time.time()), source.read(time.time())
    assert (first.gpu_util_pct, first.memory_util_pct, first.memory_used_mib) == (100, 70, 2618)
    assert (first.temperature_c, first.memory_temperature_c, first.throttle) == (38, 46, 0)
    assert first.pcie_tx_kib_s is None, "a rate needs two looks"
    assert second.processes is not None
    (process,) = second.processes
    assert (process.pid, process.sm_pct, process.memory_mib) == (755, 99, 2610)
    assert second.energy_mj is not None and first.energy_mj is not None
    assert second.energy_mj - first.energy_mj == 324_598, "324 J in a second at 324 W"


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_recorded_h200(state: str, tmp_path: Path) -> None:
    with replayed(RECORDED / f"h200-r580-{state}.json.gz") as replay:
        (gpu,) = inventory.scan(root=tmp_path).gpus
        reader = DeviceReader(UUID)
        facts, seen = reader.facts(), reader.snapshot()
        (source,) = NvmlDevices()()
        sample = source.read(time.time())
        assert replay.unknown == []
    assert (gpu.uuid, gpu.model, gpu.memory_mib) == (UUID, "NVIDIA H200", 143_771)
    assert (gpu.unusable_reason, gpu.links.total, gpu.pcie.max_gen) == ("", 0, 5)
    assert (facts["name"], facts["compute_capability"]) == ("NVIDIA H200", [9, 0])
    assert peak_of(facts["name"]) is not None, "it is judged by its datasheet"
    assert (seen["recovery_action"], seen["unavailable"]) == ("none", ["retired_pending"])
    if state == "idle":
        assert gpu.processes == ()
        assert (sample.gpu_util_pct, sample.throttle, sample.power_mw) == (0, 0, 127_371)
        return
    # Held by its power limit of 700 W.
    assert (sample.gpu_util_pct, sample.throttle, sample.power_mw) == (100, 4, 690_567)
    assert sample.processes is not None
    assert [(process.pid, process.memory_mib) for process in sample.processes] == [(653, 1130)]


def test_replay_returns_recorded_answers(tmp_path: Path) -> None:
    with installed(FakeLibrary([h200()])), recorded(tmp_path / "one.json.gz"):
        before = inventory.scan(root=tmp_path)
    with replayed(tmp_path / "one.json.gz") as replay:
        assert inventory.scan(root=tmp_path) == before
        assert replay.unknown == []
        with pytest.raises(pynvml.NVMLError):
            pynvml.nvmlDeviceGetFanSpeed(pynvml.nvmlDeviceGetHandleByIndex(0))
        assert len(replay.unknown) == 1
