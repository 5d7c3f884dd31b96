"""NVML with typed states: what a device does not offer is None, never 0, and every failure has a name.

`session()` opens the library; `Nvml` and `Device` are thin, typed readers over `pynvml`. A reader returns
None where the device, the driver or the user's rights do not offer the value, and raises an `NvmlProblem`
only where the driver or the device itself is in trouble. NVML has no time-outs of its own: wrap work that
must end in `Bounded`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from ctypes import byref, c_uint
from typing import Any

import pynvml

from provisioning.gpu import forks
from provisioning.gpu.problems import (
    LIBRARY,
    UNAVAILABLE,
    Bounded,
    DeviceGone,
    DriverMismatch,
    GpuLost,
    NoDriver,
    NoPermission,
    NvmlProblem,
    ResetRequired,
    TimedOut,
    problem_of,
)

__all__ = [
    "LIBRARY",
    "UNAVAILABLE",
    "Bounded",
    "Device",
    "DeviceGone",
    "DriverMismatch",
    "GpuLost",
    "NoDriver",
    "NoPermission",
    "Nvml",
    "NvmlProblem",
    "ResetRequired",
    "TimedOut",
    "bus_id",
    "problem_of",
    "session",
    "text",
]

ALL_LINKS = 0xFFFFFFFF
# A driver repeats "not available" as all ones in a few unsigned values instead of an error.
_UNSET = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})


def text(value: str | bytes) -> str:
    """What NVML gave as text, whichever way the binding hands it over."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _ask(name: str, *args: Any) -> Any:
    """One call; None where the value is not offered. Raises `NvmlProblem`."""
    function = getattr(pynvml, name, None)
    if function is None:
        return None
    try:
        return function(*args)
    except pynvml.NVMLError as error:
        if error.value in UNAVAILABLE:
            return None
        raise problem_of(error) from error
    except UnicodeDecodeError:
        return None


def _must(name: str, *args: Any) -> Any:
    """One call whose value a working device always has. Raises `NvmlProblem`."""
    try:
        return getattr(pynvml, name)(*args)
    except pynvml.NVMLError as error:
        raise problem_of(error) from error
    except UnicodeDecodeError as error:
        raise NvmlProblem("The NVIDIA driver answers with broken text.") from error


def _number(value: Any) -> int | None:
    return None if value is None or int(value) in _UNSET else int(value)


@contextmanager
def session() -> Iterator[Nvml]:
    """Open NVML for the length of the block. Raises `NvmlProblem` where that is not possible.

    Sessions may be open in several threads: the library counts them. One that is opened while this process
    is about to fork waits for that.
    """
    with forks.session():
        _must("nvmlInit")
        try:
            yield Nvml()
        finally:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()


class Nvml:
    """The driver of this machine. Good only inside its `session`."""

    __slots__ = ()

    def driver_version(self) -> str | None:
        value = _ask("nvmlSystemGetDriverVersion")
        return None if value is None else text(value)

    def cuda_version(self) -> str | None:
        """The newest CUDA version that the driver runs, such as `12.8`."""
        value = _ask("nvmlSystemGetCudaDriverVersion_v2")
        return None if value is None else f"{value // 1000}.{value % 1000 // 10}"

    def count(self) -> int:
        return int(_must("nvmlDeviceGetCount"))

    def device(self, index: int) -> Device:
        return Device(_must("nvmlDeviceGetHandleByIndex", index))

    def by_uuid(self, uuid: str) -> Device:
        """A GPU or a MIG instance. Raises `DeviceGone` where there is none of this UUID."""
        # pynvml hands the value to C as it is, and C wants bytes.
        return Device(_must("nvmlDeviceGetHandleByUUID", uuid.encode()))

    def process_name(self, pid: int) -> str | None:
        value = _ask("nvmlSystemGetProcessName", pid)
        return None if value is None else text(value)


class Device:
    """A GPU or a MIG instance. Readers return None for what is not offered here."""

    __slots__ = ("handle",)

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    # -- who it is --------------------------------------------------------------------------

    def uuid(self) -> str:
        return text(_must("nvmlDeviceGetUUID", self.handle))

    def name(self) -> str:
        return text(_must("nvmlDeviceGetName", self.handle))

    def minor(self) -> int | None:
        """The N of /dev/nvidiaN."""
        return _number(_ask("nvmlDeviceGetMinorNumber", self.handle))

    def pci_bus_id(self) -> str | None:
        """Such as `0000:1b:00.0`, as sysfs writes it."""
        info = _ask("nvmlDeviceGetPciInfo", self.handle)
        return None if info is None else bus_id(info.busId)

    def memory(self) -> tuple[int, int]:
        """(total, used) in bytes; `used` without what the driver reserves, where it tells them apart."""
        info = _ask("nvmlDeviceGetMemoryInfo", self.handle, pynvml.nvmlMemory_v2)
        if info is None:
            info = _must("nvmlDeviceGetMemoryInfo", self.handle)
        return int(info.total), int(info.used)

    def compute_capability(self) -> tuple[int, int] | None:
        value = _ask("nvmlDeviceGetCudaComputeCapability", self.handle)
        return None if value is None else (int(value[0]), int(value[1]))

    def is_virtual(self) -> bool | None:
        """Whether this is a vGPU inside a virtual machine."""
        value = _ask("nvmlDeviceGetVirtualizationMode", self.handle)
        return None if value is None else value == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU

    # -- MIG --------------------------------------------------------------------------------

    def mig_mode(self) -> tuple[bool, bool] | None:
        """(now, after the next reset); None where the model knows no MIG."""
        value = _ask("nvmlDeviceGetMigMode", self.handle)
        return None if value is None else (bool(value[0]), bool(value[1]))

    def mig_devices(self) -> list[Device]:
        found = []
        for slot in range(_ask("nvmlDeviceGetMaxMigDeviceCount", self.handle) or 0):
            handle = _ask("nvmlDeviceGetMigDeviceHandleByIndex", self.handle, slot)
            if handle is not None:
                found.append(Device(handle))
        return found

    def gpu_instance_id(self) -> int | None:
        return _number(_ask("nvmlDeviceGetGpuInstanceId", self.handle))

    def compute_instance_id(self) -> int | None:
        return _number(_ask("nvmlDeviceGetComputeInstanceId", self.handle))

    def attributes(self) -> Any:
        """`c_nvmlDeviceAttributes` of a MIG instance: SMs, slices, memory."""
        return _ask("nvmlDeviceGetAttributes", self.handle)

    def gpu_instance_placement(self, instance_id: int) -> tuple[int, int, int] | None:
        """(profile id, start, size) of a GPU instance of this GPU."""
        handle = _ask("nvmlDeviceGetGpuInstanceById", self.handle, instance_id)
        info = None if handle is None else _ask("nvmlGpuInstanceGetInfo", handle)
        if info is None:
            return None
        return int(info.profileId), int(info.placement.start), int(info.placement.size)

    def mig_profile(self, number: int) -> tuple[Any, str] | None:
        """Profile `number` of NVML's list (information and its name), or None where there is no such."""
        info = _ask("nvmlDeviceGetGpuInstanceProfileInfo", self.handle, number)
        if info is not None:
            return info, text(info.name).removeprefix("MIG ")
        info = _ask("nvmlDeviceGetGpuInstanceProfileInfo", self.handle, number, 1)
        return None if info is None else (info, "")

    def mig_placements(self, profile_id: int) -> tuple[tuple[int, int], ...]:
        """(start, size) of every place where the profile may stand; empty where that is not told."""
        count = c_uint(0)
        name = "nvmlDeviceGetGpuInstancePossiblePlacements"
        if _ask(name, self.handle, profile_id, None, byref(count)) is None or not count.value:
            return ()
        places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        if _ask(name, self.handle, profile_id, places, byref(count)) is None:
            return ()
        return tuple((int(place.start), int(place.size)) for place in places[: count.value])

    def profile_info(self, name: str) -> Any:
        """NVML's information on the profile of that name. Raises `NvmlProblem` where there is none."""
        for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            known = self.mig_profile(number)
            if known is not None and _profile_name(*known) == name:
                return known[0]
        raise NvmlProblem(f"This GPU has no MIG profile {name}.")

    def profile_name(self, profile_id: int) -> str:
        """The name of the profile with this id; empty where the GPU has none such."""
        for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            known = self.mig_profile(number)
            if known is not None and int(known[0].id) == profile_id:
                return _profile_name(*known)
        return ""

    def gpu_instances(self) -> list[GpuInstance]:
        """All GPU instances, those without a compute instance too. Needs an administrator's rights."""
        found = []
        for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            known = self.mig_profile(number)
            if known is None:
                continue
            info = known[0]
            count = c_uint(0)
            handles = (pynvml.c_nvmlGpuInstance_t * int(info.instanceCount))()
            _must("nvmlDeviceGetGpuInstances", self.handle, int(info.id), handles, byref(count))
            found += [GpuInstance(handles[place]) for place in range(count.value)]
        return sorted(found, key=lambda each: each.start)

    def create_gpu_instance(self, profile: str, start: int) -> GpuInstance:
        """A GPU instance of the profile at this place. Raises `NvmlProblem` where the driver refuses it."""
        info = self.profile_info(profile)
        size = next((size for at, size in self.mig_placements(int(info.id)) if at == start), None)
        if size is None:
            raise NvmlProblem(f"The profile {profile} cannot stand at slice {start} of this GPU.")
        place = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
        name = "nvmlDeviceCreateGpuInstanceWithPlacement"
        return GpuInstance(_must(name, self.handle, int(info.id), byref(place)))

    # -- where it stands --------------------------------------------------------------------

    def pcie(self) -> tuple[int | None, int | None, int | None, int | None]:
        """Generation and width now, and at most. A sleeping device shows a low generation."""
        names = (
            "nvmlDeviceGetCurrPcieLinkGeneration",
            "nvmlDeviceGetCurrPcieLinkWidth",
            "nvmlDeviceGetMaxPcieLinkGeneration",
            "nvmlDeviceGetMaxPcieLinkWidth",
        )
        now_gen, now_width, max_gen, max_width = (_number(_ask(name, self.handle)) for name in names)
        return now_gen, now_width, max_gen, max_width

    def memory_affinity(self) -> int | None:
        """The lowest NUMA node that is close to this device."""
        words = 4
        sets = _ask("nvmlDeviceGetMemoryAffinity", self.handle, words, pynvml.NVML_AFFINITY_SCOPE_NODE)
        if sets is None:
            return None
        bits = sum(int(word) << (64 * place) for place, word in enumerate(sets))
        return (bits & -bits).bit_length() - 1 if bits else None

    def link_active(self, link: int) -> bool | None:
        """None where there is no such NVLink."""
        value = _ask("nvmlDeviceGetNvLinkState", self.handle, link)
        return None if value is None else value == pynvml.NVML_FEATURE_ENABLED

    def link_peer(self, link: int) -> tuple[bool, str | None]:
        """(whether a switch is at the other end, its PCI bus id)."""
        kind = _ask("nvmlDeviceGetNvLinkRemoteDeviceType", self.handle, link)
        info = _ask("nvmlDeviceGetNvLinkRemotePciInfo", self.handle, link)
        switch = kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
        return switch, None if info is None or not info.busId else bus_id(info.busId)

    # -- how it is --------------------------------------------------------------------------

    def ecc_mode(self) -> tuple[bool, bool] | None:
        """(now, after the next reset)"""
        value = _ask("nvmlDeviceGetEccMode", self.handle)
        return None if value is None else (bool(value[0]), bool(value[1]))

    def ecc_errors(self, *, uncorrected: bool, aggregate: bool) -> int | None:
        return _number(_ask("nvmlDeviceGetTotalEccErrors", self.handle, int(uncorrected), int(aggregate)))

    def remapped_rows(self) -> tuple[int, int, bool, bool] | None:
        """(corrected, uncorrected, pending, failed)"""
        value = _ask("nvmlDeviceGetRemappedRows", self.handle)
        return None if value is None else (int(value[0]), int(value[1]), bool(value[2]), bool(value[3]))

    def retired_pages(self) -> int | None:
        """How many pages have been retired, for single-bit and double-bit errors together."""
        counts = [_ask("nvmlDeviceGetRetiredPages", self.handle, cause) for cause in (0, 1)]
        known = [len(pages) for pages in counts if pages is not None]
        return sum(known) if known else None

    def retired_pending(self) -> bool | None:
        value = _ask("nvmlDeviceGetRetiredPagesPendingStatus", self.handle)
        return None if value is None else bool(value)

    def persistence_mode(self) -> bool | None:
        value = _ask("nvmlDeviceGetPersistenceMode", self.handle)
        return None if value is None else bool(value)

    def clock_mhz(self, kind: int) -> int | None:
        """`kind`: `pynvml.NVML_CLOCK_SM`, `NVML_CLOCK_MEM` …"""
        return _number(_ask("nvmlDeviceGetClockInfo", self.handle, kind))

    def max_clock_mhz(self, kind: int) -> int | None:
        return _number(_ask("nvmlDeviceGetMaxClockInfo", self.handle, kind))

    def power_mw(self) -> int | None:
        return _number(_ask("nvmlDeviceGetPowerUsage", self.handle))

    def power_limit_mw(self) -> int | None:
        """The limit that holds now."""
        return _number(_ask("nvmlDeviceGetEnforcedPowerLimit", self.handle))

    def power_range_mw(self) -> tuple[int, int] | None:
        value = _ask("nvmlDeviceGetPowerManagementLimitConstraints", self.handle)
        return None if value is None else (int(value[0]), int(value[1]))

    def temperature_c(self) -> int | None:
        return _number(_ask("nvmlDeviceGetTemperature", self.handle, pynvml.NVML_TEMPERATURE_GPU))

    def temperature_limit_c(self, threshold: int) -> int | None:
        """`threshold`: `pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN` …"""
        return _number(_ask("nvmlDeviceGetTemperatureThreshold", self.handle, threshold))

    def throttle_reasons(self) -> int | None:
        """A bit mask, `pynvml.nvmlClocksEventReason…`."""
        value = _ask("nvmlDeviceGetCurrentClocksEventReasons", self.handle)
        if value is None:
            value = _ask("nvmlDeviceGetCurrentClocksThrottleReasons", self.handle)
        return None if value is None else int(value)

    def pcie_replays(self) -> int | None:
        """How often the PCIe link had to say something again: a counter of 32 bits."""
        return _number(_ask("nvmlDeviceGetPcieReplayCounter", self.handle))

    def utilisation_pct(self) -> tuple[int, int] | None:
        """(GPU, memory controller)"""
        value = _ask("nvmlDeviceGetUtilizationRates", self.handle)
        return None if value is None else (int(value.gpu), int(value.memory))

    def pcie_kib_s(self) -> tuple[int | None, int | None]:
        """(sent, received) as measured now. Each takes the driver 20 ms."""
        kinds = (pynvml.NVML_PCIE_UTIL_TX_BYTES, pynvml.NVML_PCIE_UTIL_RX_BYTES)
        sent, received = (_number(_ask("nvmlDeviceGetPcieThroughput", self.handle, kind)) for kind in kinds)
        return sent, received

    def processes(self) -> tuple[tuple[int, int | None], ...] | None:
        """(pid, memory in bytes or None) of everything that computes or draws here."""
        merged: dict[int, int | None] = {}
        known = False
        for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            # The unversioned name raises something that is no NVMLError where the driver is older.
            found = _ask(f"{name}_v3", self.handle)
            if found is None:
                found = _ask(f"{name}_v2", self.handle)
            known = known or found is not None
            for process in found or ():
                used = process.usedGpuMemory
                merged[int(process.pid)] = None if used is None else int(used)
        return tuple(sorted(merged.items())) if known else None

    def process_utilisation(self, since_us: int) -> list[Any] | None:
        """Samples later than `since_us` (the driver's own clock); empty where nothing has run."""
        try:
            return list(pynvml.nvmlDeviceGetProcessUtilization(self.handle, since_us))
        except pynvml.NVMLError as error:
            if error.value in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NO_DATA):
                return []
            if error.value in UNAVAILABLE:
                return None
            raise problem_of(error) from error

    def fields(self, wanted: Sequence[int | tuple[int, int]]) -> list[int | None]:
        """Values of NVML fields, in the order asked for; one call for all."""
        values = _ask("nvmlDeviceGetFieldValues", self.handle, list(wanted))
        if values is None:
            return [None] * len(wanted)
        return [_field(value) for value in values]


class GpuInstance:
    """A GPU instance of a GPU in MIG mode: its profile and its place, with or without compute instances."""

    __slots__ = ("handle", "profile_id", "start")

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        info = _must("nvmlGpuInstanceGetInfo", handle)
        self.profile_id, self.start = int(info.profileId), int(info.placement.start)

    def destroy(self) -> None:
        """Destroy it. Raises `NvmlProblem` while it has compute instances."""
        _must("nvmlGpuInstanceDestroy", self.handle)

    def compute_instances(self) -> list[Any]:
        """The handles of its compute instances."""
        found = []
        for info in self._compute_profiles():
            count = c_uint(0)
            handles = (pynvml.c_nvmlComputeInstance_t * int(info.instanceCount))()
            _must("nvmlGpuInstanceGetComputeInstances", self.handle, int(info.id), handles, byref(count))
            found += [handles[place] for place in range(count.value)]
        return found

    def create_compute_instance(self) -> None:
        """One compute instance that has all of it."""
        whole = max(self._compute_profiles(), key=lambda info: int(info.sliceCount))
        _must("nvmlGpuInstanceCreateComputeInstance", self.handle, int(whole.id))

    def _compute_profiles(self) -> list[Any]:
        shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        name = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
        asked = (
            _ask(name, self.handle, number, shared)
            for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
        )
        return [info for info in asked if info is not None]


def destroy_compute_instance(handle: Any) -> None:
    """Raises `NvmlProblem` while something runs in it."""
    _must("nvmlComputeInstanceDestroy", handle)


def _profile_name(info: Any, name: str) -> str:
    """The driver's name of a profile; an old one tells none, so that it follows from the amounts."""
    return name or f"{int(info.sliceCount)}g.{round(int(info.memorySizeMB) / 1024)}gb"


_UNION = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}


def _field(value: Any) -> int | None:
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        if value.nvmlReturn in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED):
            raise problem_of(pynvml.NVMLError(value.nvmlReturn))
        return None
    member = _UNION.get(value.valueType)
    return None if member is None else int(getattr(value.value, member))


def bus_id(raw: str | bytes) -> str:
    """NVML's `00000000:1B:00.0` in the form of sysfs, `0000:1b:00.0`."""
    whole = text(raw).lower()
    domain, _, rest = whole.partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest}" if rest else whole
    except ValueError:
        return whole
