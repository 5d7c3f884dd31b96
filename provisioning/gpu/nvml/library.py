"""The NVML library and its devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pynvml

from provisioning.gpu import forks
from provisioning.gpu.nvml.calls import query_optional, query_required, text
from provisioning.gpu.nvml.device import Device


@contextmanager
def session() -> Iterator[Nvml]:
    """Open NVML during the block. Raises `NvmlProblem` on failure.

    Sessions may be open in several threads, since the library counts them. If this process is about to fork,
    a new session waits.
    """
    with forks.session():
        driver = open_library()
        try:
            yield driver
        finally:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()


def open_library() -> Nvml:
    """Open NVML until this process ends. Raises `NvmlProblem` on failure.

    For processes that never fork and may be killed while a lost device blocks every call, since closing would
    block too.
    """
    query_required("nvmlInit")
    return Nvml()


class Nvml:
    """The driver of this machine. Valid while the library is open."""

    __slots__ = ()

    def driver_version(self) -> str | None:
        value = query_optional("nvmlSystemGetDriverVersion")
        return None if value is None else text(value)

    def cuda_version(self) -> str | None:
        """Return the newest CUDA version that the driver supports, such as `12.8`."""
        value = query_optional("nvmlSystemGetCudaDriverVersion_v2")
        return None if value is None else f"{value // 1000}.{value % 1000 // 10}"

    def confidential(self) -> bool | None:
        """Return whether confidential computing is on."""
        state = query_optional("nvmlSystemGetConfComputeState")
        return None if state is None else bool(state.ccFeature)

    def count(self) -> int:
        return int(query_required("nvmlDeviceGetCount"))

    def device(self, index: int) -> Device:
        return Device(query_required("nvmlDeviceGetHandleByIndex", index))

    def by_uuid(self, uuid: str) -> Device:
        """Return a GPU or MIG instance. Raises `DeviceGone` if there is none with this UUID."""
        # pynvml passes the value to C unchanged, which expects bytes.
        return Device(query_required("nvmlDeviceGetHandleByUUID", uuid.encode()))

    def process_name(self, pid: int) -> str | None:
        value = query_optional("nvmlSystemGetProcessName", pid)
        return None if value is None else text(value)
