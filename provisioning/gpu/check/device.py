"""One CUDA device through the driver API: memory, kernels, streams, timing.

`driver` is `cuda.bindings.driver` or a test double with the same functions. Sizes are in bytes, times in
milliseconds. Every failed call raises `CudaError` with the driver's name for the error.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from provisioning.gpu.check.compiler import NoCubin, cubins, units_of

MIB = 1024 * 1024
CHUNK_MIN = 2 * MIB
RESERVE_MAX = 64 * MIB
THREADS = 256
GATE_NS = 3_000_000_000

# Failures caused by the device itself, not by the host or the check.
DEVICE_FAULTS = frozenset({
    "CUDA_ERROR_ECC_UNCORRECTABLE", "CUDA_ERROR_NVLINK_UNCORRECTABLE", "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_HARDWARE_STACK_ERROR", "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_MISALIGNED_ADDRESS", "CUDA_ERROR_INVALID_ADDRESS_SPACE", "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_CONTAINED",
})  # fmt: skip


# The driver does not support this kind or version of code; another cubin may work.
IMAGE_REFUSED = frozenset({
    "CUDA_ERROR_INVALID_IMAGE", "CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
    "CUDA_ERROR_INVALID_SOURCE", "CUDA_ERROR_INVALID_PTX", "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
})  # fmt: skip


def _elapsed(start: Any, end: Any) -> tuple[int, float]:
    """Call `cuEventElapsedTime` as in CUDA before 12.8."""
    took = ctypes.c_float()
    library = ctypes.CDLL("libcuda.so.1")
    status = library.cuEventElapsedTime(
        ctypes.byref(took), ctypes.c_void_p(int(start)), ctypes.c_void_p(int(end))
    )
    return int(status), took.value


# Functions that older drivers offer under another name.
OLDER: Mapping[str, Callable[..., tuple[Any, ...]]] = {"cuEventElapsedTime": _elapsed}


class CudaError(Exception):
    """A failed driver call. `name` is like `CUDA_ERROR_OUT_OF_MEMORY`."""

    def __init__(self, call: str, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.call = call
        self.name = name

    @property
    def blames_device(self) -> bool:
        return self.name in DEVICE_FAULTS

    @property
    def out_of_memory(self) -> bool:
        return self.name == "CUDA_ERROR_OUT_OF_MEMORY"


class GateTimedOut(Exception):
    """The gate before a measurement timed out, so the result would include queueing."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of the tested memory; `base` is the index of its first 64-bit word."""

    address: int
    size: int
    base: int

    @property
    def words(self) -> int:
        return self.size // 8


class ErrorLog(ctypes.Structure):
    """Same layout as `ErrorLog` in common.cuh."""

    _fields_ = (
        ("count", ctypes.c_uint64),
        ("first", ctypes.c_uint64),
        ("bits", ctypes.c_uint64),
        ("kept", ctypes.c_uint64),
        ("index", ctypes.c_uint64 * 16),
        ("got", ctypes.c_uint64 * 16),
        ("want", ctypes.c_uint64 * 16),
    )


def u64(value: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(value & 0xFFFFFFFFFFFFFFFF)


def u32(value: int) -> ctypes.c_uint32:
    return ctypes.c_uint32(value)


def ptr(address: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(address)


class Device:
    """A visible device with its own process's primary context, the first by default.

    Makes its context current. `close()` releases everything; a failed construction leaves nothing behind.
    """

    def __init__(self, driver: Any, ordinal: int = 0) -> None:
        self._driver = driver
        self._blocks: set[int] = set()
        self._flag_host: int | None = None
        self.stream: Any = None
        self._beside: tuple[Any, Any, Any] | None = None
        self._functions: dict[str, Any] = {}
        self.kernel_origin: dict[str, str] = {}
        self.call("cuInit", 0)
        self.driver_version: int = self.call("cuDriverGetVersion")
        self.count: int = self.call("cuDeviceGetCount")
        if self.count == 0:
            raise CudaError("cuDeviceGetCount", "CUDA_ERROR_NO_DEVICE")
        self.handle = self.call("cuDeviceGet", ordinal)
        attribute = driver.CUdevice_attribute
        self.capability: tuple[int, int] = (
            self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )
        self.sms = self._attribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        self.l2_bytes = self._attribute(attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)
        name: bytes = self.call("cuDeviceGetName", 256, self.handle)
        self.name = name.split(b"\0")[0].decode(errors="replace")
        self.uuid = uuid_text(self.call("cuDeviceGetUuid", self.handle).bytes)
        self.context = self.call("cuDevicePrimaryCtxRetain", self.handle)
        try:
            self.make_current()
            self.stream = self.call("cuStreamCreate", 0)
            self._log = self.alloc(ctypes.sizeof(ErrorLog))
            self._flag_host = self.call("cuMemHostAlloc", 64, driver.CU_MEMHOSTALLOC_DEVICEMAP)
            self._flag = int(self.call("cuMemHostGetDevicePointer", self._flag_host, 0))
        except CudaError:
            self.close()
            raise

    def make_current(self) -> None:
        """Make this device's context current in this thread."""
        self.call("cuCtxSetCurrent", self.context)

    def peer(self, ordinal: int) -> Device:
        """Return another visible device by its ordinal. Raises `CudaError`; see `use`."""
        return Device(self._driver, ordinal)

    def call(self, function: str, *args: Any) -> Any:
        """Call the driver; return the result without the status. Raises `CudaError`."""
        try:
            status, *values = getattr(self._driver, function)(*args)
        except Exception as error:
            # The bindings resolve functions on first call, by the name in their CUDA version.
            if type(error).__name__ != "FunctionNotFoundError":
                raise
            if function not in OLDER:
                raise CudaError(function, "not supported by this driver") from error
            status, *values = OLDER[function](*args)
        if int(status) != 0:
            raise CudaError(function, getattr(status, "name", str(status)))
        return values[0] if len(values) == 1 else tuple(values)

    def _attribute(self, attribute: Any) -> int:
        return int(self.call("cuDeviceGetAttribute", attribute, self.handle))

    # --- memory ---
    def memory(self) -> tuple[int, int]:
        """Return (free, total)."""
        free, total = self.call("cuMemGetInfo")
        return int(free), int(total)

    def alloc(self, size: int) -> int:
        address = int(self.call("cuMemAlloc", size))
        self._blocks.add(address)
        return address

    def free(self, address: int) -> None:
        self._blocks.discard(address)
        self.call("cuMemFree", address)

    @contextmanager
    def buffers(self, *sizes: int) -> Iterator[list[int]]:
        """Yield buffers; they are always freed at the end."""
        addresses: list[int] = []
        try:
            for size in sizes:
                addresses.append(self.alloc(size))
            yield addresses
        finally:
            for address in addresses:
                self.free(address)

    @contextmanager
    def whole_memory(self) -> Iterator[tuple[list[Chunk], int]]:
        """Allocate all free memory in chunks that halve down to 2 MiB; yield them and the bytes free before.

        Leaves a small reserve, which the driver needs to load further kernels.
        """
        free_before, _ = self.memory()
        reserve = min(RESERVE_MAX, free_before // 256) // CHUNK_MIN * CHUNK_MIN
        chunks: list[Chunk] = []
        size = CHUNK_MIN
        while size * 2 <= free_before:
            size *= 2
        base = 0
        try:
            while size >= CHUNK_MIN:
                if base * 8 + size > free_before - reserve:
                    size //= 2
                    continue
                try:
                    chunks.append(Chunk(self.alloc(size), size, base))
                    base += size // 8
                except CudaError as error:
                    if not error.out_of_memory:
                        raise
                    size //= 2
            yield chunks, free_before
        finally:
            for chunk in chunks:
                self.free(chunk.address)

    def clear(self, address: int, size: int) -> None:
        self.call("cuMemsetD8Async", address, 0, size, self.stream)

    def write(self, address: int, data: Any) -> None:
        """Copy `data`, a ctypes object, to the device."""
        self.call("cuMemcpyHtoDAsync", address, ctypes.addressof(data), ctypes.sizeof(data), self.stream)
        self.sync()

    def read(self, data: Any, address: int) -> None:
        self.call("cuMemcpyDtoHAsync", ctypes.addressof(data), address, ctypes.sizeof(data), self.stream)
        self.sync()

    @contextmanager
    def pinned(self, size: int) -> Iterator[int]:
        address: int = self.call("cuMemHostAlloc", size, 0)
        try:
            yield address
        finally:
            self.call("cuMemFreeHost", address)

    # --- kernels ---
    def load(self, units: tuple[str, ...] = ()) -> None:
        """Build and load kernels for this device and driver, by default all. Raises `NoCubin`."""
        for unit in units or units_of(self.capability):
            refused: CudaError | None = None
            for built in cubins(unit, self.capability, self.driver_version):
                try:
                    self._functions[unit] = self.call("cuModuleLoadData", built.code)
                except CudaError as error:
                    if error.name not in IMAGE_REFUSED:
                        raise
                    refused = error
                    continue
                self.kernel_origin[unit] = built.origin
                refused = None
                break
            if refused is not None:
                version = f"{self.driver_version // 1000}.{self.driver_version % 1000 // 10}"
                raise NoCubin(
                    f"The driver (CUDA {version}) could not load any of the kernels ({refused}). "
                    "Install a newer driver."
                )

    def _function(self, unit: str, kernel: str) -> Any:
        key = f"{unit}.{kernel}"
        if key not in self._functions:
            self._functions[key] = self.call("cuModuleGetFunction", self._functions[unit], kernel.encode())
        return self._functions[key]

    def launch(
        self, unit: str, kernel: str, *args: Any, grid: tuple[int, int] | None = None, threads: int = THREADS
    ) -> None:
        """Queue a kernel. Arguments are ctypes values. Without `grid` it covers the whole device."""
        gx, gy = grid or (self.sms * 8, 1)
        cells = (ctypes.c_void_p * len(args))(*[ctypes.addressof(arg) for arg in args])
        self.call("cuLaunchKernel", self._function(unit, kernel), gx, gy, 1, threads, 1, 1, 0, self.stream,
                  ctypes.addressof(cells), 0)  # fmt: skip

    def sync(self) -> None:
        self.call("cuStreamSynchronize", self.stream)

    def fresh_log(self) -> ctypes.c_void_p:
        """Clear the error log and return it as a kernel argument."""
        empty = ErrorLog(first=0xFFFFFFFFFFFFFFFF)
        self.write(self._log, empty)
        return ptr(self._log)

    def log(self) -> ErrorLog:
        """Wait for the kernels since `fresh_log` and return their errors."""
        errors = ErrorLog()
        self.read(errors, self._log)
        return errors

    # --- timing ---
    def timed(self, work: Callable[[], None]) -> float:
        """Return the device time in ms that the launches of `work` take, without queueing.

        Supports a few hundred launches, since the queue behind the gate is limited. Raises `GateTimedOut`.
        """
        start, end = self.call("cuEventCreate", 0), self.call("cuEventCreate", 0)
        try:
            self.close_gate()
            self.call("cuEventRecord", start, self.stream)
            try:
                work()
                self.call("cuEventRecord", end, self.stream)
            finally:
                self.open_gate()
            self.call("cuEventSynchronize", end)
            self.check_gate()
            return float(self.call("cuEventElapsedTime", start, end))
        finally:
            self.call("cuEventDestroy", start)
            self.call("cuEventDestroy", end)

    @property
    def _gate(self) -> ctypes.Array[ctypes.c_uint32]:
        """Words in host memory: whether the gate is open, and its answer."""
        assert self._flag_host is not None
        return (ctypes.c_uint32 * 2).from_address(self._flag_host)

    def close_gate(self) -> None:
        """Make later work of the stream wait until `open_gate`, for at most 3 s."""
        self._gate[0] = self._gate[1] = 0
        flag, answer = ptr(self._flag), ptr(self._flag + 4)
        self.launch("bandwidth", "gate", flag, u64(GATE_NS), answer, grid=(1, 1), threads=1)

    def open_gate(self) -> None:
        self._gate[0] = 1

    def check_gate(self) -> None:
        """Raise `GateTimedOut` if work started before the gate was opened."""
        if self._gate[1] != 1:
            raise GateTimedOut(
                "The host queued work too slowly for a measurement. Try again when the node is less busy."
            )

    @contextmanager
    def second_stream(self) -> Iterator[Any]:
        """Yield a second stream whose work runs concurrently with the first one's in this block.

        It starts after all earlier work of the first stream, which continues after both.
        """
        if self._beside is None:
            stream = self.call("cuStreamCreate", 0)
            self._beside = (stream, self.call("cuEventCreate", 0), self.call("cuEventCreate", 0))
        stream, begun, ended = self._beside
        self.call("cuEventRecord", begun, self.stream)
        self.call("cuStreamWaitEvent", stream, begun, 0)
        yield stream
        self.call("cuEventRecord", ended, stream)
        self.call("cuStreamWaitEvent", self.stream, ended, 0)

    def close(self) -> None:
        """Release memory and context, even if the context is broken."""
        steps: list[tuple[str, Any]] = [("cuCtxSetCurrent", self.context)]
        steps += [("cuMemFree", address) for address in self._blocks]
        if self._flag_host is not None:
            steps.append(("cuMemFreeHost", self._flag_host))
        if self._beside is not None:
            stream, *events = self._beside
            steps += [*(("cuEventDestroy", event) for event in events), ("cuStreamDestroy", stream)]
        if self.stream is not None:
            steps.append(("cuStreamDestroy", self.stream))
        for function, handle in (*steps, ("cuDevicePrimaryCtxRelease", self.handle)):
            with suppress(CudaError):
                self.call(function, handle)
        self._blocks.clear()


def uuid_text(raw: bytes) -> str:
    """Return the UUID as NVML writes it, without the prefix `GPU-`."""
    text = bytes(raw).hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:32]))


def same_device(requested: str, opened: str) -> bool:
    """Return whether NVML's UUID (`GPU-…`, `MIG-…`) is the one that CUDA opened."""
    return requested.lower().split("-", 1)[-1] == opened.lower()


def open_driver() -> Any:
    """Return `cuda.bindings.driver`. Raises `ImportError` without the `gpu` extra."""
    return importlib.import_module("cuda.bindings.driver")
