"""GPUs of this machine as devices of the local pool, over a fake library."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from provisioning.drivers.local import gpus
from provisioning.errors import NoCapacity
from provisioning.gpu import inventory
from provisioning.gpu.facts import MachineState
from provisioning.types import Capability, DeviceGrant, DeviceKind, NodePlacement
from tests.gpu.fake_nvml import LOST, Err, FakeLibrary, h100_mig, h200, installed


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / name).touch()
    folder = tmp_path / gpus.CAPABILITIES / "gpu0/mig/gi1"
    (folder / "ci0").mkdir(parents=True)
    (folder / "access").write_text("DeviceFileMinor: 12\nDeviceFileMode: 292\n")
    (folder / "ci0/access").write_text("DeviceFileMinor: 13\nDeviceFileMode: 292\n")
    return tmp_path


def test_whole_gpu_is_listed(root):
    with installed(FakeLibrary([h200()])):
        found = gpus.scan(root=root)
    (device,) = found.devices
    assert (device.model, device.memory_mib, device.kind) == ("NVIDIA H200", 143_771, DeviceKind.GPU)
    assert device.nodes == ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")
    assert (device.compute_capability, device.mig_mode, device.numa) == ("9.0", False, 0)
    assert (found.note, found.driver_version, found.cuda_version) == ("", "570.124.06", "12.8")


def test_mig_instances_are_listed_with_their_gpu(root):
    with installed(FakeLibrary([h100_mig()])):
        parent, first, second = gpus.scan(root=root).devices
    assert parent.mig_mode and parent.kind is DeviceKind.GPU
    assert {first.parent_uuid, second.parent_uuid} == {parent.uuid}
    assert (first.kind, first.mig_profile, first.mig_start) == (DeviceKind.MIG, "3g.40gb", 4)
    assert (second.mig_profile, second.mig_start, second.memory_mib) == ("1g.10gb", 0, 9_856)
    assert first.nodes[-2:] == ("/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13")
    assert first.facts == {"sms": 60, "memory_slices": 4, "gpu_instance": 1}


def test_missing_driver_is_a_note(root):
    with installed(None):
        found = gpus.scan(root=root)
    assert found.devices == () and found.state is MachineState.NO_DRIVER
    assert found.note.startswith("The NVIDIA driver is not installed") and "run without a GPU" in found.note


def test_lost_gpu_is_a_warning_and_others_are_listed(root):
    with installed(FakeLibrary([h200(broken=LOST), h200(1)])):
        found = gpus.scan(root=root)
    assert [device.index for device in found.devices] == [1]
    assert len(found.warnings) == 1 and "GPU 0" in found.warnings[0]


def test_gpu_requiring_a_reset_is_unhealthy(root):
    sick = h200()
    sick.fields[pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION] = 4
    with installed(FakeLibrary([sick])):
        (device,) = gpus.scan(root=root).devices
    assert not device.healthy and "Drain this GPU, then reset it" in device.health_note


def test_local_driver_reports_gpus_and_refuses_whole_grants_of_partitioned_ones(make_pool, monkeypatch):
    # Ignore the real PCI devices of this machine.
    monkeypatch.setattr(inventory, "not_shown", lambda *_: ())
    driver = make_pool().driver
    with installed(FakeLibrary([h100_mig()])):
        found = driver.inventory()
        (node,) = found.nodes
        whole, instance, _ = node.devices
        with pytest.raises(NoCapacity, match="partitioned"):
            driver._devices(NodePlacement("n", (DeviceGrant(whole.uuid),)))
        assert driver._devices(NodePlacement("n", (DeviceGrant(instance.uuid),))) == ((instance,), ())
        with pytest.raises(NoCapacity, match="is missing"):
            driver._devices(NodePlacement("n", (DeviceGrant("GPU-gone"),)))
    assert Capability.MIG in found.capabilities
    assert (node.accelerator_state, node.driver_version) == ("ok", "570.124.06")
    assert node.facts["cpu"]["threads"] > 0 and isinstance(node.provides, tuple)
    mismatch = FakeLibrary(init=Err(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH))
    with installed(mismatch):
        (node,) = driver.inventory().nodes
    assert node.devices == () and node.accelerator_state == "driver_mismatch"
    assert "Reboot this machine" in node.accelerator_note
