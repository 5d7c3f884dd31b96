"""NVML of a simulated check: the real pynvml over the fake library, scripted by $TMPDIR/fake-nvml.json."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from tests.gpu.fake_nvml import Err, FakeGpu, FakeLibrary, Process, h100_mig, h200, t4

_START = time.monotonic()
_file = Path(os.environ.get("TMPDIR", "/tmp"), "fake-nvml.json")
SCRIPT: dict[str, Any] = json.loads(_file.read_text()) if _file.exists() else {}


class Library(FakeLibrary):
    """With events, SRAM state and link errors; `xid` and `lost` happen `after_s` seconds after the start."""

    def __init__(self, gpu: FakeGpu, script: dict[str, Any]) -> None:
        super().__init__([gpu])
        self.script = script
        self.xids = list(script.get("xids", ()))
        self.snapshots = 0

    def do_nvmlEventSetCreate(self, target: Any) -> int:
        return int(pynvml.NVML_ERROR_NOT_SUPPORTED) if self.script.get("no_events") else 0

    def do_nvmlDeviceRegisterEvents(self, handle: Any, kinds: Any, events: Any) -> int:
        assert kinds.value == pynvml.nvmlEventTypeXidCriticalError
        return 0

    def do_nvmlEventSetWait_v2(self, events: Any, target: Any, wait: Any) -> int:
        if not self.xids or not _due(self.script):
            return int(pynvml.NVML_ERROR_TIMEOUT)
        target._obj.eventType = pynvml.nvmlEventTypeXidCriticalError
        target._obj.eventData = self.xids.pop(0)
        return 0

    def do_nvmlDeviceGetComputeMode(self, handle: Any, target: Any) -> int:
        target._obj.value = self.script.get("compute_mode", 0)
        return 0

    def do_nvmlDeviceGetGpuFabricInfoV(self, handle: Any, target: Any) -> int:
        assert target._obj.version == pynvml.nvmlGpuFabricInfo_v2
        target._obj.state = self.script.get("fabric", 3)
        return 0

    def do_nvmlDeviceGetGpuInstanceById(self, handle: Any, number: Any, target: Any) -> int:
        # As real drivers do without root and without the capability.
        if self.script.get("unprivileged"):
            return int(pynvml.NVML_ERROR_NO_PERMISSION)
        return super().do_nvmlDeviceGetGpuInstanceById(handle, number, target)

    def do_nvmlDeviceGetSramEccErrorStatus(self, handle: Any, target: Any) -> int:
        target._obj.bThresholdExceeded = int(self.script.get("sram", 0))
        self.snapshots += 1
        return 0

    def do_nvmlDeviceGetNvLinkErrorCounter(self, handle: Any, link: int, kind: int, target: Any) -> int:
        # Links are read after the SRAM state of the same snapshot.
        target._obj.value = self.script.get("link_errors", 0) if self.snapshots > 1 else 0
        return 0


def _due(script: dict[str, Any]) -> bool:
    return time.monotonic() - _START >= float(script.get("after_s", 0.0))


def _counter(library: Callable[[], Library], name: str) -> Callable[[], Any]:
    return lambda: SCRIPT.get(name, 0) if library().snapshots > 0 else 0


def build(script: dict[str, Any]) -> Library:
    gpu = {"h200": h200, "t4": t4, "h100_mig": h100_mig}[script.get("gpu", "h200")]()
    values = gpu.values
    values["nvmlDeviceGetCurrPcieLinkGeneration"] = script.get("pcie_gen", 5)
    values["nvmlDeviceGetCurrPcieLinkWidth"] = script.get("pcie_width", 16)
    values["nvmlDeviceGetCurrentClocksEventReasons"] = script.get("throttle", 0)
    if "remapped" in script:
        values["nvmlDeviceGetRemappedRows"] = tuple(script["remapped"])
    for link in gpu.links[: script.get("links_down", 0)]:
        link.active = False
    values["nvmlDeviceGetDefaultApplicationsClock"] = {1: 1980, 2: 3201}
    values["nvmlDeviceGetApplicationsClock"] = {1: script.get("app_sm_mhz", 1980), 2: 3201}
    values["nvmlDeviceGetPowerManagementLimit"] = script.get("power_mw", 700_000)
    values["nvmlDeviceGetPowerManagementDefaultLimit"] = 700_000
    for field, value in script.get("link_fields", {}).items():
        gpu.fields[int(field)] = value
    if "recovery" in script:
        gpu.fields[pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION] = script["recovery"]
    if script.get("vgpu"):
        values["nvmlDeviceGetVirtualizationMode"] = 2
    others = [h200(number + 1) for number in range(script.get("siblings", 0))]
    gpu.processes = [Process(pid) for pid in script.get("strangers", ())]
    library = Library(gpu, script)
    library.gpus += others
    grown = _counter(lambda: library, "ecc_uncorrected")
    corrected = _counter(lambda: library, "ecc_corrected")
    hardware_state = script.get("ecc_standing", 0)
    values["nvmlDeviceGetPcieReplayCounter"] = _counter(lambda: library, "replays")

    class ByKind(dict[int, Any]):
        def get(self, kind: int, default: Any = None) -> Any:
            return corrected() if kind == 0 else grown() + hardware_state

    values["nvmlDeviceGetTotalEccErrors"] = ByKind()
    if script.get("lost"):
        gpu.broken = lambda: Err(pynvml.NVML_ERROR_GPU_IS_LOST) if _due(script) else None
    if script.get("hang"):

        def hang() -> Any:
            while _due(script):
                time.sleep(0.05)

        gpu.broken = hang
    return library


def install() -> None:
    """Install as the watcher's NVML."""
    if not SCRIPT.get("no_driver"):
        pynvml.nvmlLib = build(SCRIPT)
        pynvml._nvmlGetFunctionPointer_cache.clear()
