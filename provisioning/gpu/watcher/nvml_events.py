"""XIDs from NVML. Calls may hang in the driver, so this runs in a separate thread."""

from __future__ import annotations

import logging
from collections.abc import Callable

from provisioning.gpu.nvml import Nvml, NvmlProblem, XidEvents, session
from provisioning.gpu.nvml.events import identity
from provisioning.gpu.watcher.kernel_log import slot_of
from provisioning.gpu.watcher.xid_report import XidReport

log = logging.getLogger(__name__)
WAIT_MS = 1000


def follow(on_report: Callable[[XidReport], None], is_running: Callable[[], bool]) -> None:
    """Call `on_report` for every XID of every GPU while `going()` is true. Raises `NvmlProblem`.

    A device without events does not affect the others.
    """
    with session() as driver:
        events = XidEvents()
        try:
            slots: dict[int | None, str] = {}
            for index in range(driver.count()):
                _register(driver, index, events, slots)
            while is_running():
                report = _next(events, slots)
                if report is not None:
                    on_report(report)
        finally:
            events.close()


def _register(driver: Nvml, index: int, events: XidEvents, slots: dict[int | None, str]) -> None:
    """Register a device and remember its address, since NVML may not report it once the device is lost."""
    try:
        device = driver.device(index)
        bus = device.pci_bus_id()
        if bus is not None:
            slots[identity(device.handle)] = slot_of(bus)
            events.register(device)
    except NvmlProblem as problem:
        log.info("GPU %d does not report XIDs through NVML: %s", index, problem)


def _next(events: XidEvents, slots: dict[int | None, str]) -> XidReport | None:
    event = events.wait(WAIT_MS)
    if event is None:
        return None
    device, xid = event
    slot = slots.get(device)
    if slot is None:
        # The kernel's log has its address.
        log.warning("received XID %d of an unknown GPU", xid)
        return None
    return XidReport(slot, xid)


__all__ = ["NvmlProblem", "follow"]
