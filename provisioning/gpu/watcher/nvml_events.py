"""XIDs as NVML tells them. Each call may hang in the driver: this runs in a thread that nobody waits for."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import Any

import pynvml

from provisioning.gpu.nvml import NvmlProblem, problem_of, session
from provisioning.gpu.watcher.kernel_log import slot_of
from provisioning.gpu.watcher.seen import Seen

log = logging.getLogger(__name__)
WAIT_MS = 1000
KINDS = pynvml.nvmlEventTypeXidCriticalError


def follow(tell: Callable[[Seen], None], going: Callable[[], bool]) -> None:
    """Tell of every XID of every GPU, as long as `going` says so. Raises `NvmlProblem`.

    A device that offers no events keeps the others from nothing.
    """
    with session() as driver:
        try:
            events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            raise problem_of(error) from error
        try:
            slots: dict[int | None, str] = {}
            for index in range(driver.count()):
                _register(index, events, slots)
            while going():
                seen = _next(events, slots)
                if seen is not None:
                    tell(seen)
        finally:
            pynvml.nvmlEventSetFree(events)


def _register(index: int, events: object, slots: dict[int | None, str]) -> None:
    """Have its XIDs told, and note where it is: once it is lost, NVML may not say so any more."""
    try:
        device = pynvml.nvmlDeviceGetHandleByIndex(index)
        slots[_number(device)] = _slot(device)
        pynvml.nvmlDeviceRegisterEvents(device, KINDS, events)
    except pynvml.NVMLError as error:
        log.info("GPU %d tells no XIDs by NVML: %s", index, error)


def _number(device: Any) -> int | None:
    """What tells one handle from another: NVML has one for each device as long as it is open."""
    return ctypes.cast(device, ctypes.c_void_p).value


def _slot(device: Any) -> str:
    bus = pynvml.nvmlDeviceGetPciInfo(device).busId
    return slot_of(bus.decode() if isinstance(bus, bytes) else bus)


def _next(events: object, slots: dict[int | None, str]) -> Seen | None:
    try:
        event = pynvml.nvmlEventSetWait_v2(events, WAIT_MS)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_TIMEOUT:
            return None
        raise problem_of(error) from error
    if event.eventType != KINDS:
        return None
    slot = slots.get(_number(event.device))
    if slot is None:
        # The kernel's log has its address.
        log.warning("XID %d of a GPU that nobody knows", event.eventData)
        return None
    return Seen(slot, int(event.eventData))


__all__ = ["NvmlProblem", "follow"]
