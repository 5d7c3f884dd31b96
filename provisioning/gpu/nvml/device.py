"""One device of NVML: a GPU or a MIG instance."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_uint
from typing import Any

import pynvml

from provisioning.gpu.nvml.calls import ask, bus_id, field, must, number, text
from provisioning.gpu.nvml.mig import GpuInstance, profile_name
from provisioning.gpu.problems import UNAVAILABLE, NvmlProblem, problem_of

ALL_LINKS = 0xFFFFFFFF


class Device:
    """A GPU or a MIG instance. Readers return None for what is not offered here."""

    __slots__ = ("handle",)

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    # -- who it is --------------------------------------------------------------------------

    def uuid(self) -> str:
        return text(must("nvmlDeviceGetUUID", self.handle))

    def name(self) -> str:
        return text(must("nvmlDeviceGetName", self.handle))

    def minor(self) -> int | None:
        """The N of /dev/nvidiaN."""
        return number(ask("nvmlDeviceGetMinorNumber", self.handle))

    def pci_bus_id(self) -> str | None:
        """Such as `0000:1b:00.0`, as sysfs writes it."""
        info = ask("nvmlDeviceGetPciInfo", self.handle)
        return None if info is None else bus_id(info.busId)

    def memory(self) -> tuple[int, int]:
        """(total, used) in bytes; `used` without what the driver reserves, where it tells them apart."""
        info = ask("nvmlDeviceGetMemoryInfo", self.handle, pynvml.nvmlMemory_v2)
        if info is None:
            info = must("nvmlDeviceGetMemoryInfo", self.handle)
        return int(info.total), int(info.used)

    def compute_capability(self) -> tuple[int, int] | None:
        value = ask("nvmlDeviceGetCudaComputeCapability", self.handle)
        return None if value is None else (int(value[0]), int(value[1]))

    def is_virtual(self) -> bool | None:
        """Whether this is a vGPU inside a virtual machine."""
        value = ask("nvmlDeviceGetVirtualizationMode", self.handle)
        return None if value is None else value == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU

    def inforom_version(self) -> str | None:
        """Of the board's own memory."""
        value = ask("nvmlDeviceGetInforomImageVersion", self.handle)
        return None if value is None else text(value)

    def inforom_valid(self) -> bool | None:
        """Whether the checksums of the board's own memory are right, as the driver computes them."""
        try:
            must("nvmlDeviceValidateInforom", self.handle)
        except NvmlProblem as problem:
            if problem.code == pynvml.NVML_ERROR_CORRUPTED_INFOROM:
                return False
            if problem.code in UNAVAILABLE:
                return None
            raise
        return True

    # -- MIG --------------------------------------------------------------------------------

    def is_mig(self) -> bool:
        """Whether this is a MIG instance."""
        return bool(must("nvmlDeviceIsMigDeviceHandle", self.handle))

    def whole_gpu(self) -> Device:
        """The GPU that this MIG instance is on."""
        return Device(must("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", self.handle))

    def mig_mode(self) -> tuple[bool, bool] | None:
        """(now, after the next reset); None where the model knows no MIG."""
        value = ask("nvmlDeviceGetMigMode", self.handle)
        return None if value is None else (bool(value[0]), bool(value[1]))

    def mig_devices(self) -> list[Device]:
        found = []
        for slot in range(ask("nvmlDeviceGetMaxMigDeviceCount", self.handle) or 0):
            handle = ask("nvmlDeviceGetMigDeviceHandleByIndex", self.handle, slot)
            if handle is not None:
                found.append(Device(handle))
        return found

    def gpu_instance_id(self) -> int | None:
        return number(ask("nvmlDeviceGetGpuInstanceId", self.handle))

    def compute_instance_id(self) -> int | None:
        return number(ask("nvmlDeviceGetComputeInstanceId", self.handle))

    def attributes(self) -> Any:
        """`c_nvmlDeviceAttributes` of a MIG instance: SMs, slices, memory."""
        return ask("nvmlDeviceGetAttributes", self.handle)

    def gpu_instance_placement(self, instance_id: int) -> tuple[int, int, int] | None:
        """(profile id, start, size) of a GPU instance of this GPU."""
        handle = ask("nvmlDeviceGetGpuInstanceById", self.handle, instance_id)
        info = None if handle is None else ask("nvmlGpuInstanceGetInfo", handle)
        if info is None:
            return None
        return int(info.profileId), int(info.placement.start), int(info.placement.size)

    def mig_profile(self, place: int) -> tuple[Any, str] | None:
        """The profile at `place` of NVML's list (information and its name), or None where there is none."""
        info = ask("nvmlDeviceGetGpuInstanceProfileInfo", self.handle, place)
        if info is not None:
            return info, text(info.name).removeprefix("MIG ")
        info = ask("nvmlDeviceGetGpuInstanceProfileInfo", self.handle, place, 1)
        return None if info is None else (info, "")

    def mig_placements(self, profile_id: int) -> tuple[tuple[int, int], ...]:
        """(start, size) of every place where the profile may stand; empty where that is not told."""
        count = c_uint(0)
        name = "nvmlDeviceGetGpuInstancePossiblePlacements"
        if ask(name, self.handle, profile_id, None, byref(count)) is None or not count.value:
            return ()
        places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        if ask(name, self.handle, profile_id, places, byref(count)) is None:
            return ()
        return tuple((int(place.start), int(place.size)) for place in places[: count.value])

    def profile_info(self, name: str) -> Any:
        """NVML's information on the profile of that name. Raises `NvmlProblem` where there is none."""
        for place in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            known = self.mig_profile(place)
            if known is not None and profile_name(*known) == name:
                return known[0]
        raise NvmlProblem(f"This GPU has no MIG profile {name}.")

    def profile_name(self, profile_id: int) -> str:
        """The name of the profile with this id; empty where the GPU has none such."""
        for place in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            known = self.mig_profile(place)
            if known is not None and int(known[0].id) == profile_id:
                return profile_name(*known)
        return ""

    def gpu_instances(self) -> list[GpuInstance]:
        """All GPU instances, those without a compute instance too. Needs an administrator's rights."""
        found = []
        for place in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            known = self.mig_profile(place)
            if known is None:
                continue
            info = known[0]
            count = c_uint(0)
            handles = (pynvml.c_nvmlGpuInstance_t * int(info.instanceCount))()
            must("nvmlDeviceGetGpuInstances", self.handle, int(info.id), handles, byref(count))
            found += [GpuInstance(handle) for handle in handles[: count.value]]
        return sorted(found, key=lambda each: each.start)

    def create_gpu_instance(self, profile: str, start: int) -> GpuInstance:
        """A GPU instance of the profile at this place. Raises `NvmlProblem` where the driver refuses it."""
        info = self.profile_info(profile)
        size = next((size for at, size in self.mig_placements(int(info.id)) if at == start), None)
        if size is None:
            raise NvmlProblem(f"The profile {profile} cannot stand at slice {start} of this GPU.")
        place = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
        name = "nvmlDeviceCreateGpuInstanceWithPlacement"
        return GpuInstance(must(name, self.handle, int(info.id), byref(place)))

    # -- where it stands --------------------------------------------------------------------

    def pcie(self) -> tuple[int | None, int | None, int | None, int | None]:
        """Generation and width now, and at most. A sleeping device shows a low generation."""
        return self.pcie_gen(), self.pcie_width(), self.pcie_max_gen(), self.pcie_max_width()

    def pcie_gen(self) -> int | None:
        return number(ask("nvmlDeviceGetCurrPcieLinkGeneration", self.handle))

    def pcie_width(self) -> int | None:
        return number(ask("nvmlDeviceGetCurrPcieLinkWidth", self.handle))

    def pcie_max_gen(self) -> int | None:
        return number(ask("nvmlDeviceGetMaxPcieLinkGeneration", self.handle))

    def pcie_max_width(self) -> int | None:
        return number(ask("nvmlDeviceGetMaxPcieLinkWidth", self.handle))

    def memory_affinity(self) -> int | None:
        """The lowest NUMA node that is close to this device."""
        words = 4
        sets = ask("nvmlDeviceGetMemoryAffinity", self.handle, words, pynvml.NVML_AFFINITY_SCOPE_NODE)
        if sets is None:
            return None
        bits = sum(int(word) << (64 * place) for place, word in enumerate(sets))
        return (bits & -bits).bit_length() - 1 if bits else None

    def link_active(self, link: int) -> bool | None:
        """None where there is no such NVLink."""
        value = ask("nvmlDeviceGetNvLinkState", self.handle, link)
        return None if value is None else value == pynvml.NVML_FEATURE_ENABLED

    def link_peer(self, link: int) -> tuple[bool, str | None]:
        """(whether a switch is at the other end, its PCI bus id)."""
        kind = ask("nvmlDeviceGetNvLinkRemoteDeviceType", self.handle, link)
        info = ask("nvmlDeviceGetNvLinkRemotePciInfo", self.handle, link)
        switch = kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
        return switch, None if info is None or not info.busId else bus_id(info.busId)

    def link_errors(self, link: int, counter: int) -> int | None:
        """`counter`: `pynvml.NVML_NVLINK_ERROR_DL_REPLAY` …; NVLink 5 has fields instead."""
        return number(ask("nvmlDeviceGetNvLinkErrorCounter", self.handle, link, counter))

    def fabric_state(self) -> int | None:
        """How far the fabric manager is with this GPU, as `nvmlGpuFabricState_t` counts."""
        info = pynvml.c_nvmlGpuFabricInfo_v2_t()
        info.version = pynvml.nvmlGpuFabricInfo_v2
        if ask("nvmlDeviceGetGpuFabricInfoV", self.handle, byref(info)) is None:
            return None
        return int(info.state)

    # -- how it is --------------------------------------------------------------------------

    def ecc_mode(self) -> tuple[bool, bool] | None:
        """(now, after the next reset)"""
        value = ask("nvmlDeviceGetEccMode", self.handle)
        return None if value is None else (bool(value[0]), bool(value[1]))

    def ecc_errors(self, *, uncorrected: bool, aggregate: bool) -> int | None:
        return number(ask("nvmlDeviceGetTotalEccErrors", self.handle, int(uncorrected), int(aggregate)))

    def sram_threshold_exceeded(self) -> bool | None:
        """Whether the SRAM has had so many uncorrected errors that the device should be replaced."""
        status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
        if ask("nvmlDeviceGetSramEccErrorStatus", self.handle, byref(status)) is None:
            return None
        return bool(status.bThresholdExceeded)

    def remapped_rows(self) -> tuple[int, int, bool, bool] | None:
        """(corrected, uncorrected, pending, failed)"""
        value = ask("nvmlDeviceGetRemappedRows", self.handle)
        return None if value is None else (int(value[0]), int(value[1]), bool(value[2]), bool(value[3]))

    def retired_pages(self) -> int | None:
        """How many pages have been retired, for single-bit and double-bit errors together."""
        counts = [ask("nvmlDeviceGetRetiredPages", self.handle, cause) for cause in (0, 1)]
        known = [len(pages) for pages in counts if pages is not None]
        return sum(known) if known else None

    def retired_pending(self) -> bool | None:
        value = ask("nvmlDeviceGetRetiredPagesPendingStatus", self.handle)
        return None if value is None else bool(value)

    def persistence_mode(self) -> bool | None:
        value = ask("nvmlDeviceGetPersistenceMode", self.handle)
        return None if value is None else bool(value)

    def compute_mode(self) -> int | None:
        """Who may compute here, as `nvmlComputeMode_t` counts."""
        return number(ask("nvmlDeviceGetComputeMode", self.handle))

    def clock_mhz(self, kind: int) -> int | None:
        """`kind`: `pynvml.NVML_CLOCK_SM`, `NVML_CLOCK_MEM` …"""
        return number(ask("nvmlDeviceGetClockInfo", self.handle, kind))

    def max_clock_mhz(self, kind: int) -> int | None:
        return number(ask("nvmlDeviceGetMaxClockInfo", self.handle, kind))

    def app_clock_mhz(self, kind: int) -> int | None:
        """The clock that an administrator has set for applications."""
        return number(ask("nvmlDeviceGetApplicationsClock", self.handle, kind))

    def default_app_clock_mhz(self, kind: int) -> int | None:
        return number(ask("nvmlDeviceGetDefaultApplicationsClock", self.handle, kind))

    def power_mw(self) -> int | None:
        return number(ask("nvmlDeviceGetPowerUsage", self.handle))

    def power_limit_mw(self) -> int | None:
        """The limit that holds now."""
        return number(ask("nvmlDeviceGetEnforcedPowerLimit", self.handle))

    def power_limit_set_mw(self) -> int | None:
        """The limit that an administrator has set."""
        return number(ask("nvmlDeviceGetPowerManagementLimit", self.handle))

    def power_limit_default_mw(self) -> int | None:
        return number(ask("nvmlDeviceGetPowerManagementDefaultLimit", self.handle))

    def power_range_mw(self) -> tuple[int, int] | None:
        value = ask("nvmlDeviceGetPowerManagementLimitConstraints", self.handle)
        return None if value is None else (int(value[0]), int(value[1]))

    def temperature_c(self) -> int | None:
        return number(ask("nvmlDeviceGetTemperature", self.handle, pynvml.NVML_TEMPERATURE_GPU))

    def temperature_limit_c(self, threshold: int) -> int | None:
        """`threshold`: `pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN` …"""
        return number(ask("nvmlDeviceGetTemperatureThreshold", self.handle, threshold))

    def throttle_reasons(self) -> int | None:
        """A bit mask, `pynvml.nvmlClocksEventReason…`."""
        value = ask("nvmlDeviceGetCurrentClocksEventReasons", self.handle)
        if value is None:
            value = ask("nvmlDeviceGetCurrentClocksThrottleReasons", self.handle)
        return None if value is None else int(value)

    def pcie_replays(self) -> int | None:
        """How often the PCIe link had to say something again: a counter of 32 bits."""
        return number(ask("nvmlDeviceGetPcieReplayCounter", self.handle))

    def utilisation_pct(self) -> tuple[int, int] | None:
        """(GPU, memory controller)"""
        value = ask("nvmlDeviceGetUtilizationRates", self.handle)
        return None if value is None else (int(value.gpu), int(value.memory))

    def pcie_kib_s(self) -> tuple[int | None, int | None]:
        """(sent, received) as measured now. Each takes the driver 20 ms."""
        kinds = (pynvml.NVML_PCIE_UTIL_TX_BYTES, pynvml.NVML_PCIE_UTIL_RX_BYTES)
        sent, received = (number(ask("nvmlDeviceGetPcieThroughput", self.handle, kind)) for kind in kinds)
        return sent, received

    def processes(self) -> tuple[tuple[int, int | None], ...] | None:
        """(pid, memory in bytes or None) of everything that computes or draws here."""
        found = [self.computing(), self.drawing()]
        merged = {pid: used for processes in found for pid, used in processes or ()}
        return None if found == [None, None] else tuple(sorted(merged.items()))

    def computing(self) -> tuple[tuple[int, int | None], ...] | None:
        """(pid, memory in bytes or None) of everything that computes here."""
        return self._running("nvmlDeviceGetComputeRunningProcesses")

    def drawing(self) -> tuple[tuple[int, int | None], ...] | None:
        """(pid, memory in bytes or None) of everything that draws here: a display's server, as a rule."""
        return self._running("nvmlDeviceGetGraphicsRunningProcesses")

    def _running(self, name: str) -> tuple[tuple[int, int | None], ...] | None:
        # The unversioned name raises something that is no NVMLError where the driver is older.
        found = ask(f"{name}_v3", self.handle)
        if found is None:
            found = ask(f"{name}_v2", self.handle)
        if found is None:
            return None
        return tuple(
            (int(process.pid), None if process.usedGpuMemory is None else int(process.usedGpuMemory))
            for process in found
        )

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
        values = ask("nvmlDeviceGetFieldValues", self.handle, list(wanted))
        if values is None:
            return [None] * len(wanted)
        return [field(value) for value in values]
