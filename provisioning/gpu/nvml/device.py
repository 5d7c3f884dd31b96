"""An NVML device: a GPU or a MIG instance."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_uint
from typing import Any

import pynvml

from provisioning.gpu.nvml.calls import bus_id, field, number, query_optional, query_required, text
from provisioning.gpu.nvml.mig import GpuInstance, profile_name
from provisioning.gpu.problems import UNAVAILABLE, NvmlProblem, problem_of

ALL_LINKS = 0xFFFFFFFF


class Device:
    """A GPU or a MIG instance. Readers return None for values that the device or driver does not offer."""

    __slots__ = ("handle",)

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    # -- identity ---------------------------------------------------------------------------

    def uuid(self) -> str:
        return text(query_required("nvmlDeviceGetUUID", self.handle))

    def name(self) -> str:
        return text(query_required("nvmlDeviceGetName", self.handle))

    def minor(self) -> int | None:
        """Return the N of /dev/nvidiaN."""
        return number(query_optional("nvmlDeviceGetMinorNumber", self.handle))

    def pci_bus_id(self) -> str | None:
        """Return the PCI bus id as sysfs writes it, such as `0000:1b:00.0`."""
        info = query_optional("nvmlDeviceGetPciInfo", self.handle)
        return None if info is None else bus_id(info.busId)

    def memory(self) -> tuple[int, int]:
        """Return (total, used) in bytes; `used` excludes driver-reserved memory if reported separately."""
        info = query_optional("nvmlDeviceGetMemoryInfo", self.handle, pynvml.nvmlMemory_v2)
        if info is None:
            info = query_required("nvmlDeviceGetMemoryInfo", self.handle)
        return int(info.total), int(info.used)

    def compute_capability(self) -> tuple[int, int] | None:
        value = query_optional("nvmlDeviceGetCudaComputeCapability", self.handle)
        return None if value is None else (int(value[0]), int(value[1]))

    def is_virtual(self) -> bool | None:
        """Return whether this is a vGPU inside a virtual machine."""
        value = query_optional("nvmlDeviceGetVirtualizationMode", self.handle)
        return None if value is None else value == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU

    def inforom_version(self) -> str | None:
        """Return the version of the board's inforom image."""
        value = query_optional("nvmlDeviceGetInforomImageVersion", self.handle)
        return None if value is None else text(value)

    def inforom_valid(self) -> bool | None:
        """Return whether the checksums of the InfoROM are valid, as computed by the driver."""
        try:
            query_required("nvmlDeviceValidateInforom", self.handle)
        except NvmlProblem as problem:
            if problem.code == pynvml.NVML_ERROR_CORRUPTED_INFOROM:
                return False
            if problem.code in UNAVAILABLE:
                return None
            raise
        return True

    # -- MIG --------------------------------------------------------------------------------

    def is_mig(self) -> bool:
        """Return whether this is a MIG instance."""
        return bool(query_required("nvmlDeviceIsMigDeviceHandle", self.handle))

    def whole_gpu(self) -> Device:
        """Return the GPU of this MIG instance."""
        return Device(query_required("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", self.handle))

    def mig_mode(self) -> tuple[bool, bool] | None:
        """Return (current, pending) MIG mode; None if the model does not support MIG."""
        value = query_optional("nvmlDeviceGetMigMode", self.handle)
        return None if value is None else (bool(value[0]), bool(value[1]))

    def mig_devices(self) -> list[Device]:
        devices = []
        for slot in range(query_optional("nvmlDeviceGetMaxMigDeviceCount", self.handle) or 0):
            handle = query_optional("nvmlDeviceGetMigDeviceHandleByIndex", self.handle, slot)
            if handle is not None:
                devices.append(Device(handle))
        return devices

    def gpu_instance_id(self) -> int | None:
        return number(query_optional("nvmlDeviceGetGpuInstanceId", self.handle))

    def compute_instance_id(self) -> int | None:
        return number(query_optional("nvmlDeviceGetComputeInstanceId", self.handle))

    def attributes(self) -> Any:
        """Return `c_nvmlDeviceAttributes` of a MIG instance: SMs, slices, memory."""
        return query_optional("nvmlDeviceGetAttributes", self.handle)

    def gpu_instance_placement(self, instance_id: int) -> tuple[int, int, int] | None:
        """Return (profile id, start, size) of a GPU instance of this GPU."""
        handle = query_optional("nvmlDeviceGetGpuInstanceById", self.handle, instance_id)
        info = None if handle is None else query_optional("nvmlGpuInstanceGetInfo", handle)
        if info is None:
            return None
        return int(info.profileId), int(info.placement.start), int(info.placement.size)

    def mig_profile(self, place: int) -> tuple[Any, str] | None:
        """Return the information and name of the profile at index `place` of NVML's list, or None."""
        info = query_optional("nvmlDeviceGetGpuInstanceProfileInfo", self.handle, place)
        if info is not None:
            return info, text(info.name).removeprefix("MIG ")
        info = query_optional("nvmlDeviceGetGpuInstanceProfileInfo", self.handle, place, 1)
        return None if info is None else (info, "")

    def mig_placements(self, profile_id: int) -> tuple[tuple[int, int], ...]:
        """Return (start, size) of all possible placements of the profile; empty if unknown."""
        count = c_uint(0)
        name = "nvmlDeviceGetGpuInstancePossiblePlacements"
        if query_optional(name, self.handle, profile_id, None, byref(count)) is None or not count.value:
            return ()
        places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        if query_optional(name, self.handle, profile_id, places, byref(count)) is None:
            return ()
        return tuple((int(place.start), int(place.size)) for place in places[: count.value])

    def profile_info(self, name: str) -> Any:
        """Return NVML's information on the profile of that name. Raises `NvmlProblem` if there is none."""
        for place in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            profile = self.mig_profile(place)
            if profile is not None and profile_name(*profile) == name:
                return profile[0]
        raise NvmlProblem(f"This GPU does not support MIG profile {name}.")

    def profile_name(self, profile_id: int) -> str:
        """Return the name of the profile with this id; empty if there is none."""
        for place in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            profile = self.mig_profile(place)
            if profile is not None and int(profile[0].id) == profile_id:
                return profile_name(*profile)
        return ""

    def gpu_instances(self) -> list[GpuInstance]:
        """Return all GPU instances, including those without compute instances. Needs administrator rights."""
        instances = []
        for place in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            profile = self.mig_profile(place)
            if profile is None:
                continue
            info = profile[0]
            count = c_uint(0)
            handles = (pynvml.c_nvmlGpuInstance_t * int(info.instanceCount))()
            query_required("nvmlDeviceGetGpuInstances", self.handle, int(info.id), handles, byref(count))
            instances += [GpuInstance(handle) for handle in handles[: count.value]]
        return sorted(instances, key=lambda instance: instance.start)

    def create_gpu_instance(self, profile: str, start: int) -> GpuInstance:
        """Create a GPU instance of the profile at slice `start`. Raises `NvmlProblem` on failure."""
        info = self.profile_info(profile)
        size = next((size for at, size in self.mig_placements(int(info.id)) if at == start), None)
        if size is None:
            raise NvmlProblem(f"MIG profile {profile} does not fit at slice {start} of this GPU.")
        place = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
        name = "nvmlDeviceCreateGpuInstanceWithPlacement"
        return GpuInstance(query_required(name, self.handle, int(info.id), byref(place)))

    # -- topology ---------------------------------------------------------------------------

    def pcie(self) -> tuple[int | None, int | None, int | None, int | None]:
        """Return (generation, width, maximum of each). Idle devices lower the generation."""
        return self.pcie_gen(), self.pcie_width(), self.pcie_max_gen(), self.pcie_max_width()

    def pcie_gen(self) -> int | None:
        return number(query_optional("nvmlDeviceGetCurrPcieLinkGeneration", self.handle))

    def pcie_width(self) -> int | None:
        return number(query_optional("nvmlDeviceGetCurrPcieLinkWidth", self.handle))

    def pcie_max_gen(self) -> int | None:
        return number(query_optional("nvmlDeviceGetMaxPcieLinkGeneration", self.handle))

    def pcie_max_width(self) -> int | None:
        return number(query_optional("nvmlDeviceGetMaxPcieLinkWidth", self.handle))

    def memory_affinity(self) -> int | None:
        """Return the lowest NUMA node close to this device."""
        size = 4
        sets = query_optional(
            "nvmlDeviceGetMemoryAffinity", self.handle, size, pynvml.NVML_AFFINITY_SCOPE_NODE
        )
        if sets is None:
            return None
        bits = sum(int(mask) << (64 * place) for place, mask in enumerate(sets))
        return (bits & -bits).bit_length() - 1 if bits else None

    def link_active(self, link: int) -> bool | None:
        """Return whether the NVLink is active; None if it does not exist."""
        value = query_optional("nvmlDeviceGetNvLinkState", self.handle, link)
        return None if value is None else value == pynvml.NVML_FEATURE_ENABLED

    def link_peer(self, link: int) -> tuple[bool, str | None]:
        """Return whether the remote end is a switch, and its PCI bus id."""
        kind = query_optional("nvmlDeviceGetNvLinkRemoteDeviceType", self.handle, link)
        info = query_optional("nvmlDeviceGetNvLinkRemotePciInfo", self.handle, link)
        switch = kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
        return switch, None if info is None or not info.busId else bus_id(info.busId)

    def link_errors(self, link: int, counter: int) -> int | None:
        """Return an NVLink error counter; None with NVLink 5, which has fields instead.

        `counter`: `pynvml.NVML_NVLINK_ERROR_DL_REPLAY` …
        """
        return number(query_optional("nvmlDeviceGetNvLinkErrorCounter", self.handle, link, counter))

    def fabric_state(self) -> int | None:
        """Return the fabric registration state, a value of `nvmlGpuFabricState_t`."""
        info = pynvml.c_nvmlGpuFabricInfo_v2_t()
        info.version = pynvml.nvmlGpuFabricInfo_v2
        if query_optional("nvmlDeviceGetGpuFabricInfoV", self.handle, byref(info)) is None:
            return None
        return int(info.state)

    # -- health -----------------------------------------------------------------------------

    def ecc_mode(self) -> tuple[bool, bool] | None:
        """Return (current, pending) ECC mode."""
        value = query_optional("nvmlDeviceGetEccMode", self.handle)
        return None if value is None else (bool(value[0]), bool(value[1]))

    def ecc_default(self) -> bool | None:
        """Return whether ECC is on by default; None without ECC."""
        # pynvml returns a list here.
        value = query_optional("nvmlDeviceGetDefaultEccMode", self.handle)
        return None if value is None else bool(value[0])

    def ecc_errors(self, *, uncorrected: bool, aggregate: bool) -> int | None:
        return number(
            query_optional("nvmlDeviceGetTotalEccErrors", self.handle, int(uncorrected), int(aggregate))
        )

    def sram_threshold_exceeded(self) -> bool | None:
        """Return whether SRAM exceeded its uncorrected-error threshold, so the device should be replaced."""
        status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
        if query_optional("nvmlDeviceGetSramEccErrorStatus", self.handle, byref(status)) is None:
            return None
        return bool(status.bThresholdExceeded)

    def remapped_rows(self) -> tuple[int, int, bool, bool] | None:
        """Return (corrected, uncorrected, pending, failed)."""
        value = query_optional("nvmlDeviceGetRemappedRows", self.handle)
        return None if value is None else (int(value[0]), int(value[1]), bool(value[2]), bool(value[3]))

    def retired_pages(self) -> int | None:
        """Return the number of retired pages, for single-bit and double-bit errors together."""
        counts = [query_optional("nvmlDeviceGetRetiredPages", self.handle, cause) for cause in (0, 1)]
        lengths = [len(pages) for pages in counts if pages is not None]
        return sum(lengths) if lengths else None

    def retired_pending(self) -> bool | None:
        value = query_optional("nvmlDeviceGetRetiredPagesPendingStatus", self.handle)
        return None if value is None else bool(value)

    def persistence_mode(self) -> bool | None:
        value = query_optional("nvmlDeviceGetPersistenceMode", self.handle)
        return None if value is None else bool(value)

    def compute_mode(self) -> int | None:
        """Return the compute mode, a value of `nvmlComputeMode_t`."""
        return number(query_optional("nvmlDeviceGetComputeMode", self.handle))

    def clock_mhz(self, kind: int) -> int | None:
        """Return a current clock. `kind`: `pynvml.NVML_CLOCK_SM`, `NVML_CLOCK_MEM` …"""
        return number(query_optional("nvmlDeviceGetClockInfo", self.handle, kind))

    def max_clock_mhz(self, kind: int) -> int | None:
        return number(query_optional("nvmlDeviceGetMaxClockInfo", self.handle, kind))

    def app_clock_mhz(self, kind: int) -> int | None:
        """Return the application clock set by an administrator."""
        return number(query_optional("nvmlDeviceGetApplicationsClock", self.handle, kind))

    def default_app_clock_mhz(self, kind: int) -> int | None:
        return number(query_optional("nvmlDeviceGetDefaultApplicationsClock", self.handle, kind))

    def power_mw(self) -> int | None:
        return number(query_optional("nvmlDeviceGetPowerUsage", self.handle))

    def power_limit_mw(self) -> int | None:
        """Return the enforced limit."""
        return number(query_optional("nvmlDeviceGetEnforcedPowerLimit", self.handle))

    def power_limit_set_mw(self) -> int | None:
        """Return the limit set by an administrator."""
        return number(query_optional("nvmlDeviceGetPowerManagementLimit", self.handle))

    def power_limit_default_mw(self) -> int | None:
        return number(query_optional("nvmlDeviceGetPowerManagementDefaultLimit", self.handle))

    def power_range_mw(self) -> tuple[int, int] | None:
        value = query_optional("nvmlDeviceGetPowerManagementLimitConstraints", self.handle)
        return None if value is None else (int(value[0]), int(value[1]))

    def temperature_c(self) -> int | None:
        return number(query_optional("nvmlDeviceGetTemperature", self.handle, pynvml.NVML_TEMPERATURE_GPU))

    def temperature_limit_c(self, threshold: int) -> int | None:
        """Return a temperature limit. `threshold`: `pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN` …"""
        return number(query_optional("nvmlDeviceGetTemperatureThreshold", self.handle, threshold))

    def throttle_reasons(self) -> int | None:
        """Return a bit mask of `pynvml.nvmlClocksEventReason…`."""
        value = query_optional("nvmlDeviceGetCurrentClocksEventReasons", self.handle)
        if value is None:
            value = query_optional("nvmlDeviceGetCurrentClocksThrottleReasons", self.handle)
        return None if value is None else int(value)

    def pcie_replays(self) -> int | None:
        """Return the 32-bit counter of PCIe replays."""
        return number(query_optional("nvmlDeviceGetPcieReplayCounter", self.handle))

    def utilisation_pct(self) -> tuple[int, int] | None:
        """Return (GPU, memory controller) utilisation."""
        value = query_optional("nvmlDeviceGetUtilizationRates", self.handle)
        return None if value is None else (int(value.gpu), int(value.memory))

    def pcie_kib_s(self) -> tuple[int | None, int | None]:
        """Return (sent, received) PCIe throughput. Each measurement takes the driver 20 ms."""
        kinds = (pynvml.NVML_PCIE_UTIL_TX_BYTES, pynvml.NVML_PCIE_UTIL_RX_BYTES)
        sent, received = (
            number(query_optional("nvmlDeviceGetPcieThroughput", self.handle, kind)) for kind in kinds
        )
        return sent, received

    def processes(self) -> tuple[tuple[int, int | None], ...] | None:
        """Return (pid, memory in bytes or None) of all compute and graphics processes."""
        lists = [self.computing(), self.graphics_processes()]
        merged = {pid: used for processes in lists for pid, used in processes or ()}
        return None if lists == [None, None] else tuple(sorted(merged.items()))

    def computing(self) -> tuple[tuple[int, int | None], ...] | None:
        """Return (pid, memory in bytes or None) of all compute processes."""
        return self._running("nvmlDeviceGetComputeRunningProcesses")

    def graphics_processes(self) -> tuple[tuple[int, int | None], ...] | None:
        """Return (pid, memory in bytes or None) of all graphics processes, usually a display server."""
        return self._running("nvmlDeviceGetGraphicsRunningProcesses")

    def _running(self, name: str) -> tuple[tuple[int, int | None], ...] | None:
        # The unversioned name raises an error other than NVMLError on older drivers.
        processes = query_optional(f"{name}_v3", self.handle)
        if processes is None:
            processes = query_optional(f"{name}_v2", self.handle)
        if processes is None:
            return None
        return tuple(
            (int(process.pid), None if process.usedGpuMemory is None else int(process.usedGpuMemory))
            for process in processes
        )

    def display_active(self) -> bool | None:
        """Return whether a display or console is initialised on the device, which uses its memory."""
        value = query_optional("nvmlDeviceGetDisplayActive", self.handle)
        return None if value is None else bool(value)

    def process_utilisation(self, since_us: int) -> list[Any] | None:
        """Return samples later than `since_us` (the driver's clock); empty if no process ran."""
        try:
            return list(pynvml.nvmlDeviceGetProcessUtilization(self.handle, since_us))
        except pynvml.NVMLError as error:
            if error.value in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NO_DATA):
                return []
            if error.value in UNAVAILABLE:
                return None
            raise problem_of(error) from error

    def fields(self, field_ids: Sequence[int | tuple[int, int]]) -> list[int | None]:
        """Return the values of NVML fields in the requested order, with one call."""
        values = query_optional("nvmlDeviceGetFieldValues", self.handle, list(field_ids))
        if values is None:
            return [None] * len(field_ids)
        return [field(value) for value in values]
