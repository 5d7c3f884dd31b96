"""Problems of the NVIDIA driver or a device, and deadlines for calls that may hang."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ClassVar, TypeVar

import pynvml

T = TypeVar("T")
LIBRARY = "libnvidia-ml.so.1"
SETTLE_S = 0.1


class NvmlProblem(Exception):
    """A problem of the driver or a device. `state` is stable, `message` a sentence, `fix` one next action."""

    state: ClassVar[str] = "error"
    fix: ClassVar[str] = "Run nvidia-smi on this machine, and search dmesg for NVRM lines."

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code

    @property
    def sentence(self) -> str:
        """The message with its next action."""
        return f"{self.message} {self.fix}"


class NoDriver(NvmlProblem):
    """No NVIDIA driver: its library is not installed, or its kernel module is not loaded."""

    state = "no_driver"
    fix = f"To use GPUs, install the NVIDIA driver ({LIBRARY} and the kernel module), then run nvidia-smi."


class DriverMismatch(NvmlProblem):
    """The library and the loaded kernel module have different versions."""

    state = "driver_mismatch"
    fix = "Reboot this machine, or reload the NVIDIA kernel modules."


class NoPermission(NvmlProblem):
    """This user has no access to the driver."""

    state = "no_permission"
    fix = "Give the node worker's user access to /dev/nvidiactl and /dev/nvidia*."


class GpuLost(NvmlProblem):
    """The device has fallen off the bus."""

    state = "gpu_lost"
    fix = "Drain this machine, then reboot it. If the GPU fails again, replace it."


class ResetRequired(GpuLost):
    """The device needs a reset before it works again."""

    state = "reset_required"
    fix = "Stop all work on this GPU and reset it (nvidia-smi --gpu-reset), or reboot this machine."


class DeviceGone(NvmlProblem):
    """The device does not exist, or no longer."""

    state = "device_gone"
    fix = "Check the output of `nvidia-smi -L`. The inventory is updated automatically."


class TimedOut(NvmlProblem):
    """The driver did not answer in time."""

    state = "timeout"
    fix = "Search dmesg for Xid lines. If the driver does not recover, reboot this machine."


_PROBLEMS: dict[int, tuple[type[NvmlProblem], str]] = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (NoDriver, "The NVIDIA driver is not installed on this machine."),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (NoDriver, "The NVIDIA kernel module is not loaded."),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        DriverMismatch,
        "The NVIDIA library and kernel module have different versions.",
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: (NoPermission, "Access to the NVIDIA driver was denied."),
    pynvml.NVML_ERROR_GPU_IS_LOST: (GpuLost, "The GPU has fallen off the bus."),
    pynvml.NVML_ERROR_RESET_REQUIRED: (ResetRequired, "The GPU needs a reset."),
    pynvml.NVML_ERROR_GPU_NOT_FOUND: (DeviceGone, "GPU not found."),
    pynvml.NVML_ERROR_NOT_FOUND: (DeviceGone, "GPU not found."),
    pynvml.NVML_ERROR_TIMEOUT: (TimedOut, "The NVIDIA driver did not respond in time."),
}
UNAVAILABLE = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
        pynvml.NVML_ERROR_NOT_READY,
        pynvml.NVML_ERROR_INVALID_STATE,
        # Raised by pynvml itself for an empty list of process samples.
        pynvml.NVML_SUCCESS,
    }
)
"""Codes of a working device for values that it does not offer, or not to this user."""


def problem_of(error: pynvml.NVMLError) -> NvmlProblem:
    """Convert an NVML error to a typed problem."""
    code = int(error.value)
    kind, text = _PROBLEMS.get(code, (NvmlProblem, f"The NVIDIA driver reported an error: {error}."))
    return kind(text, code=code)


class DeadlineThread:
    """Runs work that may hang in its own thread, with a deadline.

    One call at a time. While one hangs, others are refused, so threads never accumulate.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._stuck: threading.Thread | None = None

    def call(self, work: Callable[[], T], *, timeout_s: float) -> T:
        """Return or raise the result of `work`.

        Raises `TimedOut` after `timeout_s`, and while an earlier call hangs.
        """
        if not self._turn.acquire(timeout=timeout_s):
            raise TimedOut(f"The NVIDIA driver did not respond within {timeout_s:g} s.")
        try:
            return self._call(work, timeout_s)
        finally:
            self._turn.release()

    def _call(self, work: Callable[[], T], timeout_s: float) -> T:
        box: list[T] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                box.append(work())
            except BaseException as error:
                failed.append(error)

        if self._stuck is not None:
            self._stuck.join(min(timeout_s, SETTLE_S))
            if self._stuck.is_alive():
                raise TimedOut("The NVIDIA driver has not responded to an earlier call.")
        self._stuck = threading.Thread(target=run, name="nvml-bounded", daemon=True)
        self._stuck.start()
        self._stuck.join(timeout_s)
        if box:
            return box[0]
        if failed:
            raise failed[0]
        raise TimedOut(f"The NVIDIA driver did not respond within {timeout_s:g} s.")
