"""The library itself, and the devices that it shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pynvml

from provisioning.gpu import forks
from provisioning.gpu.nvml.calls import ask, must, text
from provisioning.gpu.nvml.device import Device


@contextmanager
def session() -> Iterator[Nvml]:
    """Open NVML for the length of the block. Raises `NvmlProblem` where that is not possible.

    Sessions may be open in several threads: the library counts them. One that is opened while this process
    is about to fork waits for that.
    """
    with forks.session():
        driver = open_library()
        try:
            yield driver
        finally:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()


def open_library() -> Nvml:
    """Open NVML until this process ends. Raises `NvmlProblem` where that is not possible.

    For a process that forks no other and may be ended while a lost device blocks every call: closing would
    block, too.
    """
    must("nvmlInit")
    return Nvml()


class Nvml:
    """The driver of this machine. Good only as long as the library is open."""

    __slots__ = ()

    def driver_version(self) -> str | None:
        value = ask("nvmlSystemGetDriverVersion")
        return None if value is None else text(value)

    def cuda_version(self) -> str | None:
        """The newest CUDA version that the driver runs, such as `12.8`."""
        value = ask("nvmlSystemGetCudaDriverVersion_v2")
        return None if value is None else f"{value // 1000}.{value % 1000 // 10}"

    def count(self) -> int:
        return int(must("nvmlDeviceGetCount"))

    def device(self, index: int) -> Device:
        return Device(must("nvmlDeviceGetHandleByIndex", index))

    def by_uuid(self, uuid: str) -> Device:
        """A GPU or a MIG instance. Raises `DeviceGone` where there is none of this UUID."""
        # pynvml hands the value to C as it is, and C wants bytes.
        return Device(must("nvmlDeviceGetHandleByUUID", uuid.encode()))

    def process_name(self, pid: int) -> str | None:
        value = ask("nvmlSystemGetProcessName", pid)
        return None if value is None else text(value)
