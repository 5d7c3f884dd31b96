"""XID events from NVML."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any

import pynvml

from provisioning.gpu.nvml.calls import query_required
from provisioning.gpu.nvml.device import Device
from provisioning.gpu.problems import TimedOut

XID = pynvml.nvmlEventTypeXidCriticalError


class XidEvents:
    """Collects XIDs of registered devices. Raises `NvmlProblem` if the driver offers none."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        self._events = query_required("nvmlEventSetCreate")

    def register(self, device: Device) -> None:
        """Collect XIDs of the device too. Raises `NvmlProblem` if it offers none."""
        query_required("nvmlDeviceRegisterEvents", device.handle, XID, self._events)

    def wait(self, timeout_ms: int) -> tuple[int | None, int] | None:
        """Return (`identity` of the device, XID) of the next event; None on timeout.

        Raises `NvmlProblem`.
        """
        try:
            event = query_required("nvmlEventSetWait_v2", self._events, timeout_ms)
        except TimedOut:
            return None
        return (identity(event.device), int(event.eventData)) if event.eventType == XID else None

    def close(self) -> None:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlEventSetFree(self._events)


def identity(handle: Any) -> int | None:
    """Return an id of a handle; NVML has one handle per device while it is open."""
    return ctypes.cast(handle, ctypes.c_void_p).value
