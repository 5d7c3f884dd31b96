"""What NVML says about one device, as plain data for the report.

A value that this device or driver does not offer is None, and its name stands in `unavailable`: it is
never turned into a 0. Runs only in the watcher's own process, for a broken driver can block any call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from provisioning.gpu.check.hindrances import COMPUTE_MODES, FABRIC_STATES
from provisioning.gpu.missing import NEWER_DRIVER, NOUVEAU, has_nouveau, none_shown

FIX = "Install the NVIDIA driver (nvidia-smi must list the GPU), then run the check again."
MIB = 1024 * 1024
NVLINK_MAX = 18
SLICES, A30_SLICES = 8, 4
UNSET = 0xFFFFFFFFFFFFFFFF
# Errors alone; symbol errors are the ordinary noise that the link corrects.
NVLINK5_ERRORS = (
    "NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS",
    "NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS",
    "NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS",
    "NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS",
    "NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS",
    "NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS",
    "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS",
)
RECOVERY_ACTIONS = {
    0: "none",
    1: "gpu_reset",
    2: "node_reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "recover_imex_domain",
    6: "bus_reset",
    7: "system_reboot",
}


class NoDevice(Exception):
    """No driver, or no such device. `library` is the thing that is missing, `fix` what to do."""

    def __init__(self, text: str, library: str, fix: str) -> None:
        super().__init__(text)
        self.library = library
        self.fix = fix


class Lost(Exception):
    """The device has fallen off the bus."""


class Reader:
    """One device of NVML. `handle` is the device or MIG instance itself, `parent` the GPU it is on."""

    def __init__(self, nvml: Any, uuid: str, *, root: Path = Path("/")) -> None:
        self.nvml, self._root = nvml, root
        self.uuid = uuid
        self._missing: set[str] = set()
        try:
            nvml.nvmlInit()
        except nvml.NVMLError_LibraryNotFound as error:
            raise NoDevice("The NVIDIA driver is not installed here.", "libnvidia-ml.so.1", FIX) from error
        except nvml.NVMLError as error:
            library = "NVIDIA kernel driver"
            text, fix = f"NVML does not start: {error}.", _fix_of(nvml, error, root)
            if version := _loaded(root):
                text += f" The kernel module that is loaded is {version}."
            raise NoDevice(text, library, fix) from error
        try:
            self.handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            self.mig = bool(nvml.nvmlDeviceIsMigDeviceHandle(self.handle))
            self.parent = (
                nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self.handle) if self.mig else self.handle
            )
        except nvml.NVMLError_GpuIsLost as error:
            raise Lost from error
        except nvml.NVMLError as error:
            raise self._no_device(error) from error

    def _no_device(self, error: Any) -> NoDevice:
        """Why there is none of this UUID: a driver that shows nothing at all may be older than its GPUs."""
        try:
            shown = self.nvml.nvmlDeviceGetCount()
        except self.nvml.NVMLError:
            shown = None
        if shown == 0:
            version = _text(self.ask("driver_version", self.nvml.nvmlSystemGetDriverVersion))
            return NoDevice(f"{none_shown(version)}.", "device", NEWER_DRIVER)
        fix = "Compare with `nvidia-smi -L`; refresh the inventory if the device was replaced."
        return NoDevice(f"This machine has no device {self.uuid} ({error}).", "device", fix)

    def ask(self, name: str, read: Callable[[], Any]) -> Any:
        """The value, or None where it is not offered. Raises `Lost`."""
        try:
            return read()
        except self.nvml.NVMLError_GpuIsLost as error:
            raise Lost from error
        except (self.nvml.NVMLError, self.nvml.NVMLLibraryMismatchError, AttributeError):
            self._missing.add(name)
            return None

    @property
    def unavailable(self) -> list[str]:
        """What was asked since the last snapshot began, with it, and is not offered."""
        return sorted(self._missing)

    # --- who it is ---
    def facts(self, peers: tuple[str, ...] = ()) -> dict[str, Any]:
        n, device = self.nvml, self.parent
        attributes = self.ask("sms", lambda: n.nvmlDeviceGetAttributes(self.handle)) if self.mig else None
        cuda = self.ask("cuda_version", lambda: n.nvmlSystemGetCudaDriverVersion_v2())
        memory = self.ask("memory_mib", lambda: n.nvmlDeviceGetMemoryInfo(self.handle).total // MIB)
        virtual = self.ask("virtualization", lambda: n.nvmlDeviceGetVirtualizationMode(device))
        ecc = self.ask("ecc", lambda: n.nvmlDeviceGetEccMode(device)[0])
        capability = self.ask(
            "compute_capability", lambda: list(n.nvmlDeviceGetCudaComputeCapability(device))
        )
        return {
            "uuid": self.uuid,
            "name": _text(self.ask("name", lambda: n.nvmlDeviceGetName(device))) or "",
            "sms": int(attributes.multiprocessorCount) if attributes is not None else None,
            "memory_mib": memory,
            "memory_slices": self._slices() if self.mig else None,
            "mig": self.mig,
            "vgpu": virtual == 2,
            "parent_uuid": _text(self.ask("parent_uuid", lambda: n.nvmlDeviceGetUUID(device)))
            if self.mig
            else "",
            "driver_version": _text(self.ask("driver_version", n.nvmlSystemGetDriverVersion)) or "",
            "cuda_version": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            "pcie_max_gen": self.ask("pcie_max_gen", lambda: n.nvmlDeviceGetMaxPcieLinkGeneration(device)),
            "pcie_max_width": self.ask("pcie_max_width", lambda: n.nvmlDeviceGetMaxPcieLinkWidth(device)),
            "compute_capability": capability,
            "ecc": None if ecc is None else bool(ecc),
            "links": {peer: self._links_to(peer) for peer in peers},
            "pci_bus_id": _bus(_text(self.ask("pci_bus_id", lambda: n.nvmlDeviceGetPciInfo(device).busId))),
        }

    def _slices(self) -> int | None:
        def read() -> int:
            instance = self.nvml.nvmlDeviceGetGpuInstanceById(
                self.parent, self.nvml.nvmlDeviceGetGpuInstanceId(self.handle)
            )
            return int(self.nvml.nvmlGpuInstanceGetInfo(instance).placement.size)

        value: int | None = self.ask("memory_slices", read)
        if value is None:
            # Without rights on the instances (no root, no capability): by memory, which everybody may read.
            value = self.ask("memory_slices_by_size", self._slices_by_size)
        return value

    def _slices_by_size(self) -> int | None:
        """An instance has a little less than its slices' share of the memory."""
        n = self.nvml
        whole = int(n.nvmlDeviceGetMemoryInfo(self.parent).total)
        own = int(n.nvmlDeviceGetMemoryInfo(self.handle).total)
        slices = A30_SLICES if "A30" in _text(n.nvmlDeviceGetName(self.parent)) else SLICES
        return max(1, round(slices * own / whole)) if whole else None

    def _links_to(self, peer: str) -> int:
        """Active NVLinks between this device and `peer`: all where a switch is between them."""
        n, links = self.nvml, 0
        bus = self.ask("peer_bus", lambda: n.nvmlDeviceGetPciInfo(n.nvmlDeviceGetHandleByUUID(peer)).busId)
        for link in range(NVLINK_MAX):
            try:
                if n.nvmlDeviceGetNvLinkState(self.parent, link) != n.NVML_FEATURE_ENABLED:
                    continue
                if n.nvmlDeviceGetNvLinkRemoteDeviceType(self.parent, link) == 2:
                    links += 1  # an NVSwitch
                elif n.nvmlDeviceGetNvLinkRemotePciInfo(self.parent, link).busId == bus:
                    links += 1
            except n.NVMLError:
                continue
        return links

    # --- how it is ---
    def snapshot(self) -> dict[str, Any]:
        """The slow values, before and after a run."""
        n, device = self.nvml, self.parent
        self._missing = set()

        def ecc(kind: int, counter: int, name: str) -> Any:
            return self.ask(name, lambda: int(n.nvmlDeviceGetTotalEccErrors(device, kind, counter)))

        rows = self.ask("remapped_rows", lambda: n.nvmlDeviceGetRemappedRows(device))
        action = self.ask("recovery_action", lambda: self._field(n.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION))
        value = {
            "ecc_corrected": ecc(0, 0, "ecc_corrected"),
            "ecc_uncorrected": ecc(1, 0, "ecc_uncorrected"),
            "ecc_corrected_aggregate": ecc(0, 1, "ecc_corrected_aggregate"),
            "ecc_uncorrected_aggregate": ecc(1, 1, "ecc_uncorrected_aggregate"),
            "sram_threshold_exceeded": self.ask("sram_threshold_exceeded", self._sram),
            "remapped_corrected": rows[0] if rows else None,
            "remapped_uncorrected": rows[1] if rows else None,
            "remap_pending": bool(rows[2]) if rows else None,
            "remap_failure": bool(rows[3]) if rows else None,
            "retired_pending": self.ask(
                "retired_pending", lambda: bool(n.nvmlDeviceGetRetiredPagesPendingStatus(device))
            ),
            "recovery_action": RECOVERY_ACTIONS.get(action, f"action_{action}")
            if action is not None
            else None,
            "pcie_replays": self.ask("pcie_replays", lambda: n.nvmlDeviceGetPcieReplayCounter(device)),
            "power_limit_mw": self.ask("power_limit_mw", lambda: n.nvmlDeviceGetEnforcedPowerLimit(device)),
            "compute_mode": COMPUTE_MODES.get(
                self.ask("compute_mode", lambda: int(n.nvmlDeviceGetComputeMode(device)))
            ),
            "fabric": FABRIC_STATES.get(self.ask("fabric", self._fabric)),
            "mig_mode": self.ask("mig_mode", lambda: bool(n.nvmlDeviceGetMigMode(device)[0])),
            "persistence": self.ask("persistence", lambda: bool(n.nvmlDeviceGetPersistenceMode(device))),
            "power_limit_set_mw": self.ask(
                "power_limit_set_mw", lambda: n.nvmlDeviceGetPowerManagementLimit(device)
            ),
            "power_limit_default_mw": self.ask(
                "power_limit_default_mw", lambda: n.nvmlDeviceGetPowerManagementDefaultLimit(device)
            ),
            **self._set_clocks(),
            "model": self._name(device),
            "nvlinks": self._nvlinks(),
            "nvlinks_switched": self._is_switched(),
            "nvlinks_of_siblings": self._links_of_siblings(),
            "processes": self.processes(),
            **self.sample(),
        }
        value["unavailable"] = self.unavailable
        return value

    def board(self) -> dict[str, Any]:
        """What is asked once, before a run: the board's own memory, who draws, what else is loaded."""
        n, device = self.nvml, self.parent
        version = _text(self.ask("inforom", lambda: n.nvmlDeviceGetInforomImageVersion(device)))
        return {
            "inforom_version": version or None,
            "inforom_valid": self.ask("inforom", self._is_inforom_valid),
            "nouveau": has_nouveau(self._root),
            "drawing": self.ask("drawing", self._drawing),
        }

    def _drawing(self) -> list[int]:
        """Processes that draw on the device: a display's server, as a rule."""
        return [int(p.pid) for p in self.nvml.nvmlDeviceGetGraphicsRunningProcesses(self.handle)]

    def _is_inforom_valid(self) -> bool:
        """Its checksums, by the driver."""
        try:
            self.nvml.nvmlDeviceValidateInforom(self.parent)
        except self.nvml.NVMLError_CorruptedInforom:
            return False
        return True

    def sample(self) -> dict[str, Any]:
        """The quick values, ten times a second."""
        n, device = self.nvml, self.parent
        return {
            "pcie_gen": self.ask("pcie_gen", lambda: n.nvmlDeviceGetCurrPcieLinkGeneration(device)),
            "pcie_width": self.ask("pcie_width", lambda: n.nvmlDeviceGetCurrPcieLinkWidth(device)),
            "sm_clock_mhz": self.ask(
                "sm_clock_mhz", lambda: n.nvmlDeviceGetClockInfo(device, n.NVML_CLOCK_SM)
            ),
            "memory_clock_mhz": self.ask(
                "memory_clock_mhz", lambda: n.nvmlDeviceGetClockInfo(device, n.NVML_CLOCK_MEM)
            ),
            "power_mw": self.ask("power_mw", lambda: n.nvmlDeviceGetPowerUsage(device)),
            "temperature_c": self.ask(
                "temperature_c", lambda: n.nvmlDeviceGetTemperature(device, n.NVML_TEMPERATURE_GPU)
            ),
            "throttle": self.ask("throttle", lambda: int(n.nvmlDeviceGetCurrentClocksEventReasons(device))),
        }

    def processes(self) -> list[dict[str, Any]] | None:
        """Who computes on the device now; names are left out, for they may tell too much."""

        def read() -> list[dict[str, Any]]:
            found = self.nvml.nvmlDeviceGetComputeRunningProcesses(self.handle)
            return [
                {"pid": int(p.pid), "memory_mib": None if p.usedGpuMemory is None else p.usedGpuMemory // MIB}
                for p in found
            ]

        value: list[dict[str, Any]] | None = self.ask("processes", read)
        return value

    def _field(self, field: int) -> int:
        value = self.nvml.nvmlDeviceGetFieldValues(self.parent, [field])[0]
        if value.nvmlReturn != 0:
            raise self.nvml.NVMLError(value.nvmlReturn)
        return int(value.value.uiVal)

    def _fabric(self) -> int:
        n = self.nvml
        info = n.c_nvmlGpuFabricInfo_v2_t()
        info.version = n.nvmlGpuFabricInfo_v2
        n.nvmlDeviceGetGpuFabricInfoV(self.parent, ctypes.byref(info))
        return int(info.state)

    def _sram(self) -> bool:
        n = self.nvml
        status = n.c_nvmlEccSramErrorStatus_v1_t()
        n.nvmlDeviceGetSramEccErrorStatus(self.parent, ctypes.byref(status))
        return bool(status.bThresholdExceeded)

    def _set_clocks(self) -> dict[str, int | None]:
        """The applications clocks, and what they are by default."""
        n, found = self.nvml, {}
        for name, kind in (("sm", n.NVML_CLOCK_SM), ("memory", n.NVML_CLOCK_MEM)):
            for what, ask in (
                (f"app_{name}_clock_mhz", "nvmlDeviceGetApplicationsClock"),
                (f"default_{name}_clock_mhz", "nvmlDeviceGetDefaultApplicationsClock"),
            ):
                found[what] = self.ask(what, partial(self._clock, ask, kind))
        return found

    def _clock(self, function: str, kind: int) -> int:
        return int(getattr(self.nvml, function)(self.parent, kind))

    def _name(self, device: Any) -> str:
        return _text(self.ask("model", lambda: self.nvml.nvmlDeviceGetName(device)))

    def _nvlinks(self) -> list[dict[str, Any]] | None:
        n, found = self.nvml, []
        for link in range(self._max_links):
            try:
                active = n.nvmlDeviceGetNvLinkState(self.parent, link) == n.NVML_FEATURE_ENABLED
            except n.NVMLError_GpuIsLost as error:
                raise Lost from error
            except n.NVMLError:
                continue
            errors = [self._link_errors(link, kind) for kind in ("CRC_FLIT", "REPLAY", "RECOVERY")]
            known = [e for e in (*errors, *self._new_link_errors(link)) if e is not None]
            found.append({"link": link, "active": active, "errors": sum(known) if known else None})
        return found or None

    @property
    def _max_links(self) -> int:
        return int(getattr(self.nvml, "NVML_NVLINK_MAX_LINKS", NVLINK_MAX))

    def _is_switched(self) -> bool:
        """Whether a link that is up leads to a switch."""
        n = self.nvml
        for link in range(self._max_links):
            try:
                up = n.nvmlDeviceGetNvLinkState(self.parent, link) == n.NVML_FEATURE_ENABLED
                if (
                    up
                    and n.nvmlDeviceGetNvLinkRemoteDeviceType(self.parent, link)
                    == n.NVML_NVLINK_DEVICE_TYPE_SWITCH
                ):
                    return True
            except n.NVMLError:
                continue
        return False

    def _links_of_siblings(self) -> int | None:
        """The most links that are up on another device of this model on this machine."""
        n = self.nvml
        try:
            name, own = n.nvmlDeviceGetName(self.parent), n.nvmlDeviceGetUUID(self.parent)
            count = n.nvmlDeviceGetCount()
        except n.NVMLError:
            return None
        found = [self._links_up(index, name, own) for index in range(count)]
        return max((each for each in found if each is not None), default=None)

    def _links_up(self, index: int, name: Any, not_this: Any) -> int | None:
        n, up = self.nvml, 0
        try:
            device = n.nvmlDeviceGetHandleByIndex(index)
            if n.nvmlDeviceGetName(device) != name or n.nvmlDeviceGetUUID(device) == not_this:
                return None
        except n.NVMLError:
            # Another device's trouble is not this one's.
            return None
        for link in range(self._max_links):
            try:
                up += n.nvmlDeviceGetNvLinkState(device, link) == n.NVML_FEATURE_ENABLED
            except n.NVMLError:
                continue
        return up

    def _link_errors(self, link: int, kind: str) -> int | None:
        n = self.nvml

        def read() -> int:
            counter = getattr(n, f"NVML_NVLINK_ERROR_DL_{kind}")
            return int(n.nvmlDeviceGetNvLinkErrorCounter(self.parent, link, counter))

        value: int | None = self.ask("nvlink_errors", read)
        return value

    def _new_link_errors(self, link: int) -> list[int]:
        """NVLink 5 counts by other names, in values by field; those that are not offered are left out."""
        n = self.nvml
        fields = [(field, link) for name in NVLINK5_ERRORS if (field := getattr(n, name, None)) is not None]
        values = self.ask("nvlink5_errors", lambda: n.nvmlDeviceGetFieldValues(self.parent, fields))
        return [int(v.value.ullVal) for v in values or () if v.nvmlReturn == 0 and v.value.ullVal != UNSET]

    # --- XID events ---
    def watch_xids(self) -> Any:
        """An event set that collects XIDs from now on; None where the driver offers none."""

        def register() -> Any:
            events = self.nvml.nvmlEventSetCreate()
            self.nvml.nvmlDeviceRegisterEvents(self.parent, self.nvml.nvmlEventTypeXidCriticalError, events)
            return events

        return self.ask("xid_events", register)

    def next_xid(self, events: Any, wait_ms: int) -> int | None:
        """The next XID within `wait_ms`, else None."""
        n = self.nvml
        try:
            event = n.nvmlEventSetWait_v2(events, wait_ms)
        except n.NVMLError_Timeout:
            return None
        except n.NVMLError_GpuIsLost as error:
            raise Lost from error
        return int(event.eventData)


def _text(value: Any) -> str:
    """NVML's strings were bytes in older wrappers."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _bus(raw: str) -> str:
    """`00000000:1B:00.0` as sysfs has it, `0000:1b:00.0`."""
    domain, _, rest = raw.lower().partition(":")
    return f"{domain[-4:]}:{rest}" if rest else ""


def _loaded(root: Path) -> str:
    """The version of NVIDIA's kernel module; empty where none is loaded."""
    try:
        return (root / "sys/module/nvidia/version").read_text().strip()[:40]
    except (OSError, UnicodeError):
        return ""


def _fix_of(nvml: Any, error: Any, root: Path) -> str:
    if isinstance(error, getattr(nvml, "NVMLError_LibRmVersionMismatch", ())):
        return "The driver was updated while loaded: reboot the node, or reload the NVIDIA kernel modules."
    if isinstance(error, getattr(nvml, "NVMLError_NoPermission", ())):
        return "Give this user access to /dev/nvidiactl and /dev/nvidia*."
    if has_nouveau(root):
        return NOUVEAU
    return "Load the kernel module (modprobe nvidia) and look at dmesg for NVRM lines."
