"""NVML's values of one device, as plain data for the report.

A value that the device or driver does not offer is None, never 0, and its name is in `unavailable`. Runs only
in the watcher's process, since a broken driver can block any call.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from provisioning.gpu.check.hindrances import COMPUTE_MODES, FABRIC_STATES
from provisioning.gpu.facts import RECOVERY_ACTIONS
from provisioning.gpu.missing import NEWER_DRIVER, NOUVEAU, has_nouveau, none_shown
from provisioning.gpu.nvml import (
    LIBRARY,
    DriverMismatch,
    GpuLost,
    NoPermission,
    NvmlProblem,
    ResetRequired,
    XidEvents,
    open_library,
)

T = TypeVar("T")
FIX = "Install the NVIDIA driver (nvidia-smi must list the GPU), then run the check again."
MIB = 1024 * 1024
SLICES, A30_SLICES = 8, 4
UNSET = 0xFFFFFFFFFFFFFFFF
LINK_ERRORS = (
    pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
    pynvml.NVML_NVLINK_ERROR_DL_REPLAY,
    pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,
)
# Errors only; symbol errors are normal noise that the link corrects.
NVLINK5_ERRORS = (
    pynvml.NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS,
    pynvml.NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS,
    pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS,
    pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS,
    pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS,
    pynvml.NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS,
    pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS,
)


class NoDevice(Exception):
    """No driver, or no such device. `library` is missing; `fix` is the next action."""

    def __init__(self, text: str, library: str, fix: str) -> None:
        super().__init__(text)
        self.library = library
        self.fix = fix


class DeviceLost(Exception):
    """The device has fallen off the bus."""


class DeviceReader:
    """One NVML device: `device` is the GPU or MIG instance, `gpu` the GPU or the instance's parent."""

    def __init__(self, uuid: str, *, root: Path = Path("/")) -> None:
        self._root = root
        self.uuid = uuid
        self._missing: set[str] = set()
        try:
            self._driver = open_library()
        except NvmlProblem as problem:
            raise _no_driver(problem, root) from problem
        try:
            self.device = self._driver.by_uuid(uuid)
            self.mig = self.device.is_mig()
            self.gpu = self.device.whole_gpu() if self.mig else self.device
        except NvmlProblem as problem:
            if _is_lost(problem):
                raise DeviceLost from problem
            raise self._no_device(problem) from problem

    def _no_device(self, problem: NvmlProblem) -> NoDevice:
        """Explain a missing UUID. A driver that shows no devices may be older than its GPUs."""
        if _quiet(self._driver.count) == 0:
            version = self.query("driver_version", self._driver.driver_version) or ""
            return NoDevice(f"{none_shown(version)}.", "device", NEWER_DRIVER)
        fix = "Check the output of `nvidia-smi -L`, and refresh the inventory if the device was replaced."
        return NoDevice(f"Device {self.uuid} was not found on this node ({_reason(problem)}).", "device", fix)

    def query(self, name: str, read: Callable[[], T | None]) -> T | None:
        """Return the value, or None if unavailable. Raises `DeviceLost`."""
        try:
            value = read()
        except NvmlProblem as problem:
            if _is_lost(problem):
                raise DeviceLost from problem
            value = None
        if value is None:
            self._missing.add(name)
        return value

    @property
    def unavailable(self) -> list[str]:
        """Names requested since the start of the last snapshot that are unavailable."""
        return sorted(self._missing)

    # --- identity ---
    def facts(self, peers: tuple[str, ...] = ()) -> dict[str, Any]:
        driver, gpu = self._driver, self.gpu
        attributes = self.query("sms", self.device.attributes) if self.mig else None
        memory = self.query("memory_mib", self.device.memory)
        ecc = self.query("ecc", gpu.ecc_mode)
        capability = self.query("compute_capability", gpu.compute_capability)
        return {
            "uuid": self.uuid,
            "name": self.query("name", gpu.name) or "",
            "sms": int(attributes.multiprocessorCount) if attributes is not None else None,
            "memory_mib": None if memory is None else memory[0] // MIB,
            "memory_slices": self._slices() if self.mig else None,
            "mig": self.mig,
            "vgpu": bool(self.query("virtualization", gpu.is_virtual)),
            "parent_uuid": (self.query("parent_uuid", gpu.uuid) or "") if self.mig else "",
            "driver_version": self.query("driver_version", driver.driver_version) or "",
            "cuda_version": self.query("cuda_version", driver.cuda_version) or "",
            "pcie_max_gen": self.query("pcie_max_gen", gpu.pcie_max_gen),
            "pcie_max_width": self.query("pcie_max_width", gpu.pcie_max_width),
            "compute_capability": None if capability is None else list(capability),
            "ecc": None if ecc is None else ecc[0],
            "links": {peer: self._links_to(peer) for peer in peers},
            "pci_bus_id": self.query("pci_bus_id", gpu.pci_bus_id) or "",
        }

    def machine_facts(self) -> dict[str, bool]:
        """Read the facts about the machine that explain slow transfers."""
        return {
            "confidential": bool(self.query("confidential", self._driver.confidential)),
            "numa_hidden": self._hides_numa(),
        }

    def _hides_numa(self) -> bool:
        """Return whether this is a virtual machine without a NUMA node for the device."""
        bus = _quiet(self.gpu.pci_bus_id)
        try:
            if not re.search(r"^flags\b.*\bhypervisor\b", (self._root / "proc/cpuinfo").read_text(), re.M):
                return False
            node = (self._root / "sys/bus/pci/devices" / (bus or "") / "numa_node").read_text()
        except (OSError, UnicodeError):
            return False
        return node.strip() == "-1"

    def _slices(self) -> int | None:
        def read() -> int | None:
            instance = self.device.gpu_instance_id()
            placement = None if instance is None else self.gpu.gpu_instance_placement(instance)
            return None if placement is None else placement[2]

        value = self.query("memory_slices", read)
        if value is None:
            # Without permission on the instances (root or a capability), infer it from memory sizes.
            value = self.query("memory_slices_by_size", self._slices_by_size)
        return value

    def _slices_by_size(self) -> int | None:
        """Infer the slices from memory; an instance has slightly less than its share."""
        total, own = self.gpu.memory()[0], self.device.memory()[0]
        slices = A30_SLICES if "A30" in self.gpu.name() else SLICES
        return max(1, round(slices * own / total)) if total else None

    def _links_to(self, peer: str) -> int:
        """Return the number of active NVLinks to `peer`; all, if a switch connects them."""
        bus = self.query("peer_bus", lambda: self._driver.by_uuid(peer).pci_bus_id())
        ends = [_quiet(partial(self.gpu.link_peer, link)) for link in self._links() if self._is_up(link)]
        return sum(switch or (bus is not None and other == bus) for switch, other in filter(None, ends))

    # --- health ---
    def snapshot(self) -> dict[str, Any]:
        """Read the slow values, before and after a run."""
        gpu = self.gpu
        self._missing = set()

        def ecc(name: str, *, uncorrected: bool, aggregate: bool) -> int | None:
            return self.query(name, partial(gpu.ecc_errors, uncorrected=uncorrected, aggregate=aggregate))

        rows = self.query("remapped_rows", gpu.remapped_rows)
        action = self.query("recovery_action", self._recovery_action)
        mode = self.query("compute_mode", gpu.compute_mode)
        fabric = self.query("fabric", gpu.fabric_state)
        mig_mode = self.query("mig_mode", gpu.mig_mode)
        value = {
            "ecc_corrected": ecc("ecc_corrected", uncorrected=False, aggregate=False),
            "ecc_uncorrected": ecc("ecc_uncorrected", uncorrected=True, aggregate=False),
            "ecc_corrected_aggregate": ecc("ecc_corrected_aggregate", uncorrected=False, aggregate=True),
            "ecc_uncorrected_aggregate": ecc("ecc_uncorrected_aggregate", uncorrected=True, aggregate=True),
            "sram_threshold_exceeded": self.query("sram_threshold_exceeded", gpu.sram_threshold_exceeded),
            "remapped_corrected": rows[0] if rows else None,
            "remapped_uncorrected": rows[1] if rows else None,
            "remap_pending": rows[2] if rows else None,
            "remap_failure": rows[3] if rows else None,
            "retired_pending": self.query("retired_pending", gpu.retired_pending),
            "recovery_action": None if action is None else RECOVERY_ACTIONS.get(action, f"action_{action}"),
            "pcie_replays": self.query("pcie_replays", gpu.pcie_replays),
            "power_limit_mw": self.query("power_limit_mw", gpu.power_limit_mw),
            "compute_mode": None if mode is None else COMPUTE_MODES.get(mode),
            "fabric": None if fabric is None else FABRIC_STATES.get(fabric),
            "mig_mode": None if mig_mode is None else mig_mode[0],
            "persistence": self.query("persistence", gpu.persistence_mode),
            "power_limit_set_mw": self.query("power_limit_set_mw", gpu.power_limit_set_mw),
            "power_limit_default_mw": self.query("power_limit_default_mw", gpu.power_limit_default_mw),
            **self._set_clocks(),
            "model": self.query("model", gpu.name) or "",
            "nvlinks": self._nvlinks(),
            "nvlinks_switched": self._is_switched(),
            "nvlinks_of_partners": self._links_of_partners(),
            "processes": self.processes(),
            **self.sample(),
        }
        value["unavailable"] = self.unavailable
        return value

    def board(self) -> dict[str, Any]:
        """Read the values needed once before a run: inforom, ECC, retired memory, conflicting drivers."""
        mode = self.query("ecc", self.gpu.ecc_mode)
        pages, rows = self.query("retired_pages", self.gpu.retired_pages), _quiet(self.gpu.remapped_rows)
        return {
            "inforom_version": self.query("inforom", self.gpu.inforom_version) or None,
            "inforom_valid": self.query("inforom", self.gpu.inforom_valid),
            "nouveau": has_nouveau(self._root),
            "ecc": None if mode is None else mode[0],
            "ecc_default": self.query("ecc_default", self.gpu.ecc_default),
            "retired": rows[0] + rows[1] if rows is not None else pages,
        }

    def display(self) -> dict[str, Any]:
        """Read how displays use the device, before and after a run."""
        return {
            "drawing": self._processes_of("drawing", self.device.graphics_processes),
            "display_active": self.query("display_active", self.gpu.display_active),
        }

    def sample(self) -> dict[str, Any]:
        """Read the fast values, ten times per second."""
        gpu = self.gpu
        return {
            "pcie_gen": self.query("pcie_gen", gpu.pcie_gen),
            "pcie_width": self.query("pcie_width", gpu.pcie_width),
            "sm_clock_mhz": self.query("sm_clock_mhz", partial(gpu.clock_mhz, pynvml.NVML_CLOCK_SM)),
            "memory_clock_mhz": self.query("memory_clock_mhz", partial(gpu.clock_mhz, pynvml.NVML_CLOCK_MEM)),
            "power_mw": self.query("power_mw", gpu.power_mw),
            "temperature_c": self.query("temperature_c", gpu.temperature_c),
            "throttle": self.query("throttle", gpu.throttle_reasons),
        }

    def processes(self) -> list[dict[str, Any]] | None:
        """Return the compute processes on the device; without names, which may be confidential."""
        return self._processes_of("processes", self.device.computing)

    def _processes_of(
        self, name: str, read: Callable[[], tuple[tuple[int, int | None], ...] | None]
    ) -> list[dict[str, Any]] | None:
        processes = self.query(name, read)
        if processes is None:
            return None
        return [{"pid": pid, "memory_mib": None if used is None else used // MIB} for pid, used in processes]

    def _recovery_action(self) -> int | None:
        return self.gpu.fields([pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])[0]

    def _set_clocks(self) -> dict[str, int | None]:
        """Return the current and default application clocks."""
        gpu, clocks = self.gpu, {}
        for name, kind in (("sm", pynvml.NVML_CLOCK_SM), ("memory", pynvml.NVML_CLOCK_MEM)):
            for setting, read in (("app", gpu.app_clock_mhz), ("default", gpu.default_app_clock_mhz)):
                key = f"{setting}_{name}_clock_mhz"
                clocks[key] = self.query(key, partial(read, kind))
        return clocks

    def _links(self) -> range:
        return range(pynvml.NVML_NVLINK_MAX_LINKS)

    def _is_up(self, link: int) -> bool:
        return _quiet(partial(self.gpu.link_active, link)) is True

    def _nvlinks(self) -> list[dict[str, Any]] | None:
        states = []
        for link in self._links():
            try:
                active = self.gpu.link_active(link)
            except NvmlProblem as problem:
                if _is_lost(problem):
                    raise DeviceLost from problem
                continue
            if active is None:
                continue
            errors = [
                self.query("nvlink_errors", partial(self.gpu.link_errors, link, kind)) for kind in LINK_ERRORS
            ]
            counted = [e for e in (*errors, *self._new_link_errors(link)) if e is not None]
            states.append({"link": link, "active": active, "errors": sum(counted) if counted else None})
        return states or None

    def _is_switched(self) -> bool:
        """Return whether an active link leads to a switch."""
        ends = (_quiet(partial(self.gpu.link_peer, link)) for link in self._links() if self._is_up(link))
        return any(end is not None and end[0] for end in ends)

    def _links_of_partners(self) -> int | None:
        """Return the highest number of active links on a device of this model with the same links.

        These are devices on NVLink switches, and devices with a link to this one. Others on the node may lack
        a bridge, or have one to each other.
        """
        name, bus, count = _quiet(self.gpu.name), _quiet(self.gpu.pci_bus_id), _quiet(self._driver.count)
        if name is None or bus is None or count is None:
            return None
        numbers = [self._links_of_partner(index, name, bus) for index in range(count)]
        return max((number for number in numbers if number is not None), default=None)

    def _links_of_partner(self, index: int, name: str, bus: str) -> int | None:
        try:
            device = self._driver.device(index)
            if device.name() != name or device.pci_bus_id() == bus:
                return None
        except NvmlProblem:
            # Ignore failures of other devices.
            return None
        up = [link for link in self._links() if _quiet(partial(device.link_active, link)) is True]
        ends = [_quiet(partial(device.link_peer, link)) for link in up]
        linked = any(switch or other == bus for switch, other in filter(None, ends))
        return len(up) if linked else None

    def _new_link_errors(self, link: int) -> list[int]:
        """Return the NVLink 5 error counters, read as field values; unavailable ones are omitted."""
        fields = [(field, link) for field in NVLINK5_ERRORS]
        values = self.query("nvlink5_errors", lambda: self.gpu.fields(fields))
        return [value for value in values or () if value is not None and value != UNSET]

    # --- XID events ---
    def watch_xids(self) -> XidEvents | None:
        """Return XID events from now on; None if the driver offers none."""

        def register() -> XidEvents:
            events = XidEvents()
            events.register(self.gpu)
            return events

        return self.query("xid_events", register)

    def next_xid(self, events: XidEvents, wait_ms: int) -> int | None:
        """Return the next XID within `wait_ms`, else None. Raises `DeviceLost`."""
        try:
            event = events.wait(wait_ms)
        except NvmlProblem as problem:
            if _is_lost(problem):
                raise DeviceLost from problem
            raise
        return None if event is None else event[1]


def _is_lost(problem: NvmlProblem) -> bool:
    """Return whether the device is off the bus; a device that only needs a reset still answers."""
    return isinstance(problem, GpuLost) and not isinstance(problem, ResetRequired)


def _quiet(read: Callable[[], T | None]) -> T | None:
    """Return the value, or None on any NVML error."""
    try:
        return read()
    except NvmlProblem:
        return None


def _reason(problem: NvmlProblem) -> str:
    """Return NVML's own message."""
    return str(problem.__cause__ or problem)


def _no_driver(problem: NvmlProblem, root: Path) -> NoDevice:
    if problem.code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return NoDevice("The NVIDIA driver is not installed on this node.", LIBRARY, FIX)
    text = f"NVML could not be initialized: {_reason(problem)}."
    if version := _loaded(root):
        text += f" Loaded kernel module: {version}."
    return NoDevice(text, "NVIDIA kernel driver", _fix_of(problem, root))


def _loaded(root: Path) -> str:
    """Return the version of NVIDIA's loaded kernel module; empty if none is loaded."""
    try:
        return (root / "sys/module/nvidia/version").read_text().strip()[:40]
    except (OSError, UnicodeError):
        return ""


def _fix_of(problem: NvmlProblem, root: Path) -> str:
    if isinstance(problem, DriverMismatch):
        return (
            "The driver was updated but not reloaded. Reboot the node, or reload the NVIDIA kernel modules."
        )
    if isinstance(problem, NoPermission):
        return "Give this user access to /dev/nvidiactl and /dev/nvidia*."
    if has_nouveau(root):
        return NOUVEAU
    return "Load the kernel module (modprobe nvidia), and search dmesg for NVRM lines."
