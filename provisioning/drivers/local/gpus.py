"""The NVIDIA devices of this machine through NVML. No driver is a fact to report, not an error."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from provisioning.types import DeviceInfo, DeviceKind

CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
CAPABILITIES = Path("/proc/driver/nvidia/capabilities")


@dataclass(frozen=True, slots=True)
class GpuScan:
    """What NVML showed. `note` says why there is nothing; `warnings` name broken devices."""

    devices: tuple[DeviceInfo, ...] = ()
    note: str = ""
    warnings: tuple[str, ...] = ()


def scan(nvml: Any = pynvml) -> GpuScan:
    """Every GPU, or its MIG instances where MIG mode is on. Never raises an NVML error."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return GpuScan(note=_why_not(nvml, error))
    try:
        devices: list[DeviceInfo] = []
        warnings: list[str] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                devices += _device(nvml, index)
            except nvml.NVMLError as error:
                warnings.append(f"GPU {index} does not answer ({error}). Reset it or take it out of service.")
        note = "" if devices else "The NVIDIA driver is installed, but it shows no usable GPU."
        return GpuScan(tuple(devices), note, tuple(warnings))
    except nvml.NVMLError as error:
        return GpuScan(note=_why_not(nvml, error))
    finally:
        nvml.nvmlShutdown()


def _why_not(nvml: Any, error: Exception) -> str:
    code = getattr(error, "value", None)
    if code in (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED):
        return "No NVIDIA driver on this machine: workspaces run without a GPU."
    return f"The NVIDIA driver does not answer ({error}). Run nvidia-smi on this machine to see why."


def _device(nvml: Any, index: int) -> list[DeviceInfo]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    minor = nvml.nvmlDeviceGetMinorNumber(handle)
    uuid = _text(nvml.nvmlDeviceGetUUID(handle))
    model = _text(nvml.nvmlDeviceGetName(handle))
    nodes = tuple(path for path in (f"/dev/nvidia{minor}", *CONTROL_NODES) if Path(path).exists())
    if _mig_enabled(nvml, handle):
        return _instances(nvml, handle, index=index, minor=minor, uuid=uuid, nodes=nodes)
    memory_mib = int(nvml.nvmlDeviceGetMemoryInfo(handle).total) >> 20
    return [DeviceInfo(uuid, index, model, memory_mib, nodes=nodes)]


def _mig_enabled(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:
        return False  # the model knows no MIG


def _instances(
    nvml: Any, handle: Any, *, index: int, minor: int, uuid: str, nodes: tuple[str, ...]
) -> list[DeviceInfo]:
    found: list[DeviceInfo] = []
    for slot in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except nvml.NVMLError:
            continue  # an empty slot
        gi = nvml.nvmlDeviceGetGpuInstanceId(mig)
        ci = nvml.nvmlDeviceGetComputeInstanceId(mig)
        folder = CAPABILITIES / f"gpu{minor}" / "mig" / f"gi{gi}"
        access = [_capability_node(path) for path in (folder / "access", folder / f"ci{ci}" / "access")]
        found.append(
            DeviceInfo(
                uuid=_text(nvml.nvmlDeviceGetUUID(mig)),
                index=index,
                model=_text(nvml.nvmlDeviceGetName(mig)),
                memory_mib=int(nvml.nvmlDeviceGetMemoryInfo(mig).total) >> 20,
                kind=DeviceKind.MIG,
                parent_uuid=uuid,
                nodes=(*nodes, *(path for path in access if path)),
            )
        )
    return found


def _capability_node(path: Path) -> str:
    """The device file that opens a MIG instance, or the empty string."""
    try:
        for line in path.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "DeviceFileMinor":
                return f"/dev/nvidia-caps/nvidia-cap{int(value)}"
    except (OSError, ValueError):
        pass
    return ""


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
