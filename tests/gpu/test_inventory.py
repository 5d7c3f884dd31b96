"""Inventory: facts of healthy devices, and a state for each failure."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pynvml
import pytest

from provisioning.gpu import inventory
from provisioning.gpu.facts import MachineState
from provisioning.gpu.nvml import DeadlineThread
from provisioning.gpu.topology import PciLocation
from tests.gpu.fake_nvml import (
    LOST,
    UNSUPPORTED,
    Err,
    FakeLibrary,
    Link,
    Process,
    a100,
    h100_mig,
    h200,
    installed,
    t4,
)


def scan_of(library: FakeLibrary | None, root: Path, **more):
    with installed(library):
        return inventory.scan(root=root, bounded=DeadlineThread(), **more)


def pci_gpu(root: Path, bus: str, *, numa: int = 1, path: str = "pci0000:15/0000:15:01.0") -> None:
    real = root / "sys/devices" / path / bus
    real.mkdir(parents=True)
    for name, text in (
        ("vendor", "0x10de"),
        ("device", "0x2335"),
        ("class", "0x030200"),
        ("numa_node", numa),
    ):
        (real / name).write_text(f"{text}\n")
    link = root / "sys/bus/pci/devices" / bus
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(real)


def test_facts_of_an_h200(tmp_path):
    pci_gpu(tmp_path, "0000:1b:00.0", path="pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0")
    gpu = h200(processes=[Process(4242, 512 << 20), Process(4343, None)])
    found = scan_of(FakeLibrary([gpu], names={4242: "/usr/bin/python3 train.py --key s3cret"}), tmp_path)
    assert (found.state, found.sentence, found.broken) == (MachineState.OK, "", ())
    assert (found.driver_version, found.cuda_version) == ("570.124.06", "12.8")
    (facts,) = found.gpus
    assert (facts.model, facts.memory_mib, facts.compute_capability) == ("NVIDIA H200", 143_771, "9.0")
    assert facts.place == PciLocation(1, "pci0000:15", "0000:16:00.0") and facts.numa == 1
    assert (facts.mig_mode, facts.mig_pending, facts.virtual) == (False, False, False)
    assert (facts.links.active, facts.links.total, facts.links.switched) == (18, 18, True)
    assert (facts.pcie.gen, facts.pcie.width, facts.pcie.max_gen) == (1, 16, 5)
    assert facts.ecc is True and facts.memory.remap_pending is False
    assert facts.memory.retired_pages is None  # rows are remapped here: not offered, not 0
    assert facts.clocks_mhz == {"sm": 345, "memory": 3201, "video": None}
    assert facts.max_clocks_mhz["sm"] == 1980
    assert (facts.power_limit_mw, facts.power_range_mw) == (700_000, (200_000, 700_000))
    assert facts.temperature_limits_c == {"slowdown": 89, "shutdown": 92, "memory_max": 95, "gpu_max": 87}
    assert facts.recovery_action == "none" and facts.unusable_reason == "" and facts.persistence is True
    named, unnamed = facts.processes or ()
    assert (named.pid, named.memory_mib, named.name) == (4242, 512, "python3")
    assert (unnamed.memory_mib, unnamed.name) == (None, "")
    text = json.dumps(facts.as_json())
    assert "s3cret" not in text and "temperature_c" not in facts.as_json()


def test_kernel_numa_information_takes_precedence(tmp_path):
    pci_gpu(tmp_path, "0000:1b:00.0", numa=0)
    (facts,) = scan_of(FakeLibrary([h200(nvmlDeviceGetMemoryAffinity=2)]), tmp_path).gpus
    assert facts.numa == 0
    (facts,) = scan_of(FakeLibrary([h200(3, nvmlDeviceGetMemoryAffinity=2)]), tmp_path).gpus
    assert facts.numa == 1


def test_mig_profiles_and_instances_come_from_the_device(tmp_path):
    (facts,) = scan_of(FakeLibrary([h100_mig()]), tmp_path).gpus
    assert facts.mig_mode is True and facts.memory.remap_pending is None
    assert {profile.name: profile.most for profile in facts.profiles} == {
        "1g.10gb": 7, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1
    }  # fmt: skip
    by_name = {profile.name: profile for profile in facts.profiles}
    assert by_name["3g.40gb"].placements == ((0, 4), (4, 4)) and by_name["1g.20gb"].sms == 26
    large, small = facts.instances
    assert (large.profile, large.start, large.size, large.sms) == ("3g.40gb", 4, 4, 60)
    assert (small.profile, small.start, small.memory_mib) == ("1g.10gb", 0, 9_856)
    assert (small.gpu_instance, small.compute_instance, large.gpu_instance) == (7, 0, 1)


def test_mig_profile_is_read_from_the_name_without_permission(tmp_path):
    gpu = h100_mig(nvmlDeviceGetGpuInstanceById=Err(pynvml.NVML_ERROR_NO_PERMISSION))
    gpu.instances[0].name = "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb"
    (facts,) = scan_of(FakeLibrary([gpu]), tmp_path).gpus
    assert [(item.profile, item.start) for item in facts.instances] == [("3g.40gb", -1), ("1g.10gb", -1)]


def test_profile_names_are_derived_on_older_drivers(tmp_path):
    library = FakeLibrary([h100_mig()], without=["nvmlDeviceGetGpuInstanceProfileInfoV"])
    (facts,) = scan_of(library, tmp_path).gpus
    assert "3g.39gb" in {profile.name for profile in facts.profiles}  # made from slices and memory
    library = FakeLibrary([a100()], without=["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetFieldValues"])
    (facts,) = scan_of(library, tmp_path).gpus
    assert facts.memory_mib == 81_920 and facts.recovery_action is None and facts.unusable_reason == ""


def test_unsupported_facts_of_a_t4_are_none(tmp_path):
    (facts,) = scan_of(FakeLibrary([t4()]), tmp_path).gpus
    assert (facts.mig_mode, facts.recovery_action, facts.memory.remap_failed) == (None, None, None)
    assert facts.memory.retired_pages == 3 and facts.island == "" and facts.links.total == 0
    assert facts.as_json()["nvlink"] is None


def test_gpus_on_one_switch_form_an_island(tmp_path):
    lonely = h200(2, links=[Link("", active=False)] * 18)
    found = scan_of(FakeLibrary([h200(0), h200(1), lonely]), tmp_path)
    assert [facts.island for facts in found.gpus] == ["nvlink-0000:1b:00.0", "nvlink-0000:1b:00.0", ""]
    bridged = [
        a100(0, links=[Link("00000000:17:00.0")]),
        a100(1, links=[Link("00000000:07:00.0")]),
        a100(2, links=[Link("00000000:37:00.0")]),
        a100(3, links=[Link("00000000:27:00.0")]),
    ]
    found = scan_of(FakeLibrary(bridged), tmp_path)
    assert [facts.island for facts in found.gpus] == ["nvlink-0000:07:00.0"] * 2 + ["nvlink-0000:27:00.0"] * 2
    hidden = [Link("", switch=True)] * 18
    found = scan_of(FakeLibrary([h200(0, links=hidden), h200(1, links=hidden)]), tmp_path)
    assert len({facts.island for facts in found.gpus}) == 1 and found.gpus[0].island


@pytest.mark.parametrize(
    ("code", "state", "words"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, MachineState.NO_DRIVER, "install the NVIDIA driver"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, MachineState.DRIVER_MISMATCH, "Reboot"),
        (pynvml.NVML_ERROR_NO_PERMISSION, MachineState.NO_PERMISSION, "/dev/nvidiactl"),
        (pynvml.NVML_ERROR_GPU_IS_LOST, MachineState.GPU_LOST, "reboot"),
        (pynvml.NVML_ERROR_RESET_REQUIRED, MachineState.RESET_REQUIRED, "reset"),
        (pynvml.NVML_ERROR_UNKNOWN, MachineState.ERROR, "dmesg"),
    ],
)
def test_driver_start_failure_is_a_state_with_a_next_action(tmp_path, code, state, words):
    found = scan_of(FakeLibrary([h200()], init=Err(code)), tmp_path)
    assert found.state is state and words in found.sentence and found.gpus == ()


def test_no_driver_and_no_gpu_are_distinguished(tmp_path):
    found = scan_of(None, tmp_path)
    assert found.state is MachineState.NO_DRIVER and "run without a GPU" in found.sentence
    assert scan_of(FakeLibrary([]), tmp_path).state is MachineState.NO_GPU
    pci_gpu(tmp_path, "0000:1b:00.0")
    assert "PCI lists 1 NVIDIA GPU" in scan_of(None, tmp_path).sentence
    (tmp_path / "sys/module/nouveau").mkdir(parents=True)
    sentence = scan_of(None, tmp_path).sentence
    assert "PCI lists 1 NVIDIA GPU. The nouveau driver is loaded" in sentence
    assert "blacklist nouveau" in sentence and "install the NVIDIA driver" not in sentence
    found = scan_of(FakeLibrary([]), tmp_path)
    assert found.state is MachineState.GPU_LOST and "NVRM" in found.sentence


def test_broken_device_does_not_hide_others(tmp_path):
    half = h200(1, used=Err(pynvml.NVML_ERROR_UNKNOWN))
    found = scan_of(FakeLibrary([h200(0, broken=LOST), half, h200(2)]), tmp_path)
    assert [facts.index for facts in found.gpus] == [2]
    assert [(item.index, item.state, bool(item.uuid)) for item in found.broken] == [
        (0, "gpu_lost", False), (1, "error", True)
    ]  # fmt: skip
    assert found.state is MachineState.GPU_LOST and "GPU 0" in found.sentence
    assert scan_of(FakeLibrary([half, h200(2)]), tmp_path).state is MachineState.ERROR


def test_failing_value_does_not_fail_the_device(tmp_path):
    gpu = h200(
        nvmlDeviceGetRemappedRows=Err(pynvml.NVML_ERROR_UNKNOWN),
        nvmlDeviceGetPowerUsage=Err(UNSUPPORTED),
        nvmlDeviceGetTemperature=Err(999),
    )
    (facts,) = scan_of(FakeLibrary([gpu]), tmp_path).gpus
    assert facts.memory.remap_failed is None and facts.temperature_c is None


@pytest.mark.parametrize(
    ("rows", "action", "words"),
    [
        ((0, 1, 0, 0), 0, ""),  # repaired: nothing to do
        ((0, 1, 1, 0), 0, "Drain this GPU, then reset it"),
        ((0, 1, 0, 1), 0, "Replace this GPU"),
        ((0, 0, 0, 0), 1, "reset it"),
        ((0, 0, 0, 0), 2, "reboot"),
        ((0, 0, 0, 0), 77, "dmesg"),
    ],
)
def test_unusable_reasons(tmp_path, rows, action, words):
    gpu = h200(nvmlDeviceGetRemappedRows=rows)
    gpu.fields[pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION] = action
    (facts,) = scan_of(FakeLibrary([gpu]), tmp_path).gpus
    assert words in facts.unusable_reason and bool(words) == bool(facts.unusable_reason)


def test_devices_that_vanish_or_change_between_scans(tmp_path):
    library = FakeLibrary([h200(0), h200(1)])
    before = scan_of(library, tmp_path)
    library.gpus[1].uuid = "GPU-replaced"
    del library.gpus[0]
    after = scan_of(library, tmp_path)
    assert len(before.gpus) == 2 and [facts.uuid for facts in after.gpus] == ["GPU-replaced"]


def test_hanging_driver_is_abandoned(tmp_path):
    release = threading.Event()

    def hang() -> int:
        release.wait(10)
        return 1

    library = FakeLibrary([h200(nvmlDeviceGetPersistenceMode=hang)])
    with installed(library):
        bounded = DeadlineThread()
        found = inventory.scan(root=tmp_path, timeout_s=0.1, bounded=bounded)
        again = inventory.scan(root=tmp_path, timeout_s=0.1, bounded=bounded)
        release.set()
        for _ in range(20):
            if inventory.scan(root=tmp_path, timeout_s=5, bounded=bounded).state is not MachineState.TIMEOUT:
                break
    assert found.state is again.state is MachineState.TIMEOUT and found.sentence.endswith(".")
