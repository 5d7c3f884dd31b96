"""XIDs as NVML tells them. Each call may hang in the driver: this runs in a thread that nobody waits for."""

from __future__ import annotations

import logging
from collections.abc import Callable

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
            for index in range(driver.count()):
                _register(index, events)
            while going():
                seen = _next(events)
                if seen is not None:
                    tell(seen)
        finally:
            pynvml.nvmlEventSetFree(events)


def _register(index: int, events: object) -> None:
    try:
        pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(index), KINDS, events)
    except pynvml.NVMLError as error:
        log.info("GPU %d tells no XIDs by NVML: %s", index, error)


def _next(events: object) -> Seen | None:
    try:
        event = pynvml.nvmlEventSetWait_v2(events, WAIT_MS)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_TIMEOUT:
            return None
        raise problem_of(error) from error
    if event.eventType != KINDS:
        return None
    try:
        bus = pynvml.nvmlDeviceGetPciInfo(event.device).busId
    except pynvml.NVMLError as error:
        # Lost to NVML: the kernel's log has its address.
        log.warning("XID %d of a GPU that does not say where it is: %s", event.eventData, error)
        return None
    return Seen(slot_of(bus.decode() if isinstance(bus, bytes) else bus), int(event.eventData))


__all__ = ["NvmlProblem", "follow"]
