"""A fake CUDA driver and NVML for the scrub's process, over host memory; see `$TMPDIR/scrub.json`.

`total_mib`, `context_mib` (memory of a context), `dirty` (residue words), `stuck` (a word that cannot be
cleared), `hang` and `die` (in this function), `fault` (this function fails), `cuda_uuid`, `processes`
(others), `late` (others that appear once CUDA is open), `deaf` (ignore SIGTERM).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.gpu.fake_nvml import FakeLibrary, Process, h200, uuid_of

MIB = 1 << 20
UUID = uuid_of(0)


def scenario() -> dict[str, Any]:
    return json.loads(Path(os.environ["TMPDIR"], "scrub.json").read_text())


class Status(int):
    """A CUresult: a number with a name."""

    name = "CUDA_SUCCESS"


def status(name: str) -> Status:
    value = Status(0 if name == "CUDA_SUCCESS" else 2)
    value.name = name  # type: ignore[misc]
    return value


class Driver:
    """The functions of `cuda.bindings.driver` that a scrub calls."""

    CU_MEMHOSTALLOC_DEVICEMAP = 2
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=9,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=0,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=132,
        CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE=50 * MIB,
    )

    def __init__(self) -> None:
        self.plan = scenario()
        self.used = self.plan.get("context_mib", 1) * MIB
        self.total = self.plan["total_mib"] * MIB
        self.blocks: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self.dirty = int(self.plan.get("dirty", 0))

    def __getattribute__(self, name: str) -> Any:
        attribute = object.__getattribute__(self, name)
        if name.startswith("cu"):
            plan = object.__getattribute__(self, "plan")
            if plan.get("deaf"):
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if plan.get("hang") == name:
                time.sleep(60)
            if plan.get("die") == name:
                os.kill(os.getpid(), signal.SIGKILL)
            if plan.get("fault") == name:
                return lambda *args: (status(plan["with"]),)
        return attribute

    def _ok(self, *values: Any) -> tuple[Any, ...]:
        return (status("CUDA_SUCCESS"), *values)

    def cuInit(self, flags: int) -> Any:
        return self._ok()

    def cuDriverGetVersion(self) -> Any:
        return self._ok(12080)

    def cuDeviceGetCount(self) -> Any:
        return self._ok(1)

    def cuDeviceGet(self, ordinal: int) -> Any:
        return self._ok(0)

    def cuDeviceGetAttribute(self, which: int, handle: Any) -> Any:
        return self._ok(which)

    def cuDeviceGetName(self, size: int, handle: Any) -> Any:
        return self._ok(b"NVIDIA H200\0")

    def cuDeviceGetUuid(self, handle: Any) -> Any:
        text = self.plan.get("cuda_uuid", UUID).split("-", 1)[1].replace("-", "")
        return self._ok(SimpleNamespace(bytes=bytes.fromhex(text)))

    def cuDevicePrimaryCtxRetain(self, handle: Any) -> Any:
        LIBRARY.gpus[0].processes.append(Process(os.getpid(), 8 * MIB))
        return self._ok(1)

    def cuDevicePrimaryCtxRelease(self, handle: Any) -> Any:
        return self._ok()

    def cuCtxSetCurrent(self, context: Any) -> Any:
        return self._ok()

    def cuStreamCreate(self, flags: int) -> Any:
        return self._ok(1)

    def cuStreamDestroy(self, stream: Any) -> Any:
        return self._ok()

    def cuStreamSynchronize(self, stream: Any) -> Any:
        return self._ok()

    def cuMemGetInfo(self) -> Any:
        return self._ok(self.total - self.used, self.total)

    def cuMemAlloc(self, size: int) -> Any:
        taken = -(-size // MIB) * MIB
        if self.used + taken > self.total:
            return (status("CUDA_ERROR_OUT_OF_MEMORY"),)
        self.used += taken
        block = ctypes.create_string_buffer(size)
        if size >= 2 * MIB and self.dirty:
            ctypes.memset(block, 0xA5, 8 * self.dirty)
            self.dirty = 0
        self.blocks[ctypes.addressof(block)] = block
        return self._ok(ctypes.addressof(block))

    def cuMemFree(self, address: int) -> Any:
        self.used -= -(-len(self.blocks.pop(address)) // MIB) * MIB
        return self._ok()

    def cuMemHostAlloc(self, size: int, flags: int) -> Any:
        block = ctypes.create_string_buffer(size)
        self.host = block
        return self._ok(ctypes.addressof(block))

    def cuMemHostGetDevicePointer(self, address: int, flags: int) -> Any:
        return self._ok(address)

    def cuMemFreeHost(self, address: int) -> Any:
        return self._ok()

    def cuMemsetD8Async(self, address: int, value: int, size: int, stream: Any) -> Any:
        ctypes.memset(address, value, size)
        if self.plan.get("stuck") and size >= 2 * MIB:
            ctypes.c_uint64.from_address(address + 64).value = 1 << 17
        return self._ok()

    def cuMemcpyDtoHAsync(self, host: int, address: int, size: int, stream: Any) -> Any:
        ctypes.memmove(host, address, size)
        return self._ok()

    def cuModuleLoadData(self, code: bytes) -> Any:
        return self._ok(1)

    def cuModuleGetFunction(self, module: Any, name: bytes) -> Any:
        return self._ok(name.decode())

    def cuLaunchKernel(self, function: str, *args: Any) -> Any:
        cells = (ctypes.c_void_p * 3).from_address(args[8])
        address, words, out = (ctypes.c_uint64.from_address(cell or 0).value for cell in cells)
        result = ctypes.c_uint64.from_address(out)
        data = np.frombuffer((ctypes.c_uint64 * words).from_address(address), np.uint64)
        if function == "count_nonzero":
            result.value += int(np.count_nonzero(data))
        else:
            result.value |= int(np.bitwise_or.reduce(data))
        if self.plan.get("late"):
            LIBRARY.gpus[0].processes.append(Process(99, 1))
        return self._ok()


LIBRARY = FakeLibrary([h200()])


def driver() -> Driver:
    return Driver()


def install() -> None:
    """Install as the scrub's NVML."""
    import pynvml

    pynvml.nvmlLib = LIBRARY
    count = int(scenario().get("processes", 0))
    LIBRARY.gpus[0].processes = [Process(40 + number, MIB) for number in range(count)]
