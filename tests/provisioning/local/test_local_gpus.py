"""The GPU inventory over an NVML that says what each test wants to hear."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml

from provisioning.drivers.local.gpus import scan
from provisioning.types import DeviceKind


class Nvml(SimpleNamespace):
    """One GPU, minor number 3, MIG off; a test overrides what it needs."""

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name)


def fake(**changes: Any) -> Nvml:
    def no_mig(handle: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    return Nvml(
        **{
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetMinorNumber": lambda handle: 3,
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
            "nvmlDeviceGetName": lambda handle: "NVIDIA H200",
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=141 << 30),
            "nvmlDeviceGetMigMode": no_mig,
            **changes,
        }
    )


def test_a_whole_gpu():
    found = scan(fake())
    (device,) = found.devices
    assert (device.uuid, device.model, device.memory_mib) == ("GPU-0", "NVIDIA H200", 141 * 1024)
    assert device.kind is DeviceKind.GPU and found.note == ""


def test_mig_instances_take_the_place_of_their_gpu():
    def slot(handle: int, number: int) -> str:
        if number > 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return f"slot{number}"

    found = scan(
        fake(
            nvmlDeviceGetMigMode=lambda handle: (1, 1),
            nvmlDeviceGetMaxMigDeviceCount=lambda handle: 7,
            nvmlDeviceGetMigDeviceHandleByIndex=slot,
            nvmlDeviceGetGpuInstanceId=lambda handle: 1,
            nvmlDeviceGetComputeInstanceId=lambda handle: 0,
        )
    )
    assert [device.uuid for device in found.devices] == ["GPU-slot0", "GPU-slot1"]
    assert {device.parent_uuid for device in found.devices} == {"GPU-0"}
    assert {device.kind for device in found.devices} == {DeviceKind.MIG}


def test_no_driver_is_a_note():
    def missing() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    found = scan(fake(nvmlInit=missing))
    assert found.devices == () and found.note.startswith("No NVIDIA driver")


def test_a_lost_gpu_is_a_warning_and_the_others_stay():
    def memory(handle: int) -> SimpleNamespace:
        if handle == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return SimpleNamespace(total=1 << 30)

    found = scan(fake(nvmlDeviceGetCount=lambda: 2, nvmlDeviceGetMemoryInfo=memory))
    assert [device.uuid for device in found.devices] == ["GPU-1"]
    assert len(found.warnings) == 1 and "GPU 0" in found.warnings[0]
