"""A fake libnvidia-ml below the real `pynvml` wrappers, structures and exceptions.

    with installed(FakeLibrary([h200(), t4(1)])) as library: ...

A value of a `FakeGpu` is what the C function writes; `Err(code)` makes it return that code. Functions are
called each time (they may sleep, count, or return `Err`). Missing values are NOT_SUPPORTED.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pynvml

from tests.gpu.fake_gpus import (
    GIB,
    H100_PROFILES,
    LOST,
    OK,
    UNSUPPORTED,
    Err,
    FakeGpu,
    Instance,
    Link,
    Process,
    Profile,
    a100,
    h100_mig,
    h200,
    t4,
    uuid_of,
)

__all__ = [
    "GIB",
    "H100_PROFILES",
    "LOST",
    "OK",
    "UNSUPPORTED",
    "Err",
    "FakeGpu",
    "FakeLibrary",
    "Instance",
    "Link",
    "Process",
    "Profile",
    "a100",
    "h100_mig",
    "h200",
    "installed",
    "t4",
    "uuid_of",
]


def _out(argument: Any) -> Any:
    """The object behind `byref(...)`."""
    return argument._obj


def _handle_number(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _set_handle(target: Any, number: int) -> int:
    source = ctypes.c_void_p(number)
    ctypes.memmove(ctypes.addressof(_out(target)), ctypes.addressof(source), ctypes.sizeof(source))
    return OK


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)


# Functions that write one number for a device (or a table of numbers by their second argument).
_ONE = frozenset(
    {
        "nvmlDeviceGetCurrPcieLinkGeneration",
        "nvmlDeviceGetCurrPcieLinkWidth",
        "nvmlDeviceGetMaxPcieLinkGeneration",
        "nvmlDeviceGetMaxPcieLinkWidth",
        "nvmlDeviceGetPersistenceMode",
        "nvmlDeviceGetDisplayActive",
        "nvmlDeviceGetDefaultEccMode",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetPcieReplayCounter",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetVirtualizationMode",
        "nvmlDeviceGetRetiredPagesPendingStatus",
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetMaxClockInfo",
        "nvmlDeviceGetApplicationsClock",
        "nvmlDeviceGetDefaultApplicationsClock",
        "nvmlDeviceGetPowerManagementLimit",
        "nvmlDeviceGetPowerManagementDefaultLimit",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetTemperatureThreshold",
        "nvmlDeviceGetPcieThroughput",
        "nvmlDeviceGetTotalEccErrors",
    }
)
# Functions that write several numbers for a device.
_MANY = ["nvmlDeviceGetEccMode", "nvmlDeviceGetPowerManagementLimitConstraints", "nvmlDeviceGetRemappedRows"]


class FakeLibrary:
    """`gpus` may be changed while installed: devices then appear, disappear or change UUIDs."""

    def __init__(
        self,
        gpus: Sequence[FakeGpu] = (),
        *,
        init: Any = OK,
        driver: str = "570.124.06",
        cuda: int = 12080,
        names: dict[int, str] | None = None,
        without: Sequence[str] = (),
    ) -> None:
        self.gpus = list(gpus)
        self.init = init
        self.driver = driver
        self.cuda = cuda
        self.names = names or {}
        self.without = frozenset(without)
        self.open = 0
        self.calls: list[str] = []
        self.gpm_samples: dict[int, int] = {}
        self.made = 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name.startswith("_") or name in self.without:
            raise AttributeError(name)
        method: Callable[..., int] | None = getattr(type(self), f"do_{name}", None)
        if method is None and name not in _ONE and name not in _MANY:
            raise AttributeError(name)

        def call(*args: Any) -> int:
            self.calls.append(name)
            if name.startswith(("nvmlErrorString", "nvmlSystem", "nvmlInit")):
                return method(self, *args)  # type: ignore[misc]
            if not self.open:
                return int(pynvml.NVML_ERROR_UNINITIALIZED)
            if method is not None:
                return method(self, *args)
            return self._numbers(name, *args)

        return call

    # -- finding things ---------------------------------------------------------------------

    def _find(self, handle: Any) -> tuple[FakeGpu | None, Instance | None, int]:
        number = _handle_number(handle)
        index, slot = number // 1000 - 1, number % 1000 - 1
        if not 0 <= index < len(self.gpus):
            return None, None, int(pynvml.NVML_ERROR_GPU_NOT_FOUND)
        gpu = self.gpus[index]
        broken = gpu.broken() if callable(gpu.broken) else gpu.broken
        if isinstance(broken, Err):
            return gpu, None, broken.code
        if slot < 0:
            return gpu, None, OK
        if slot >= len(gpu.instances):
            return gpu, None, int(pynvml.NVML_ERROR_NOT_FOUND)
        return gpu, gpu.instances[slot], OK

    def _value(self, gpu: FakeGpu, name: str) -> Any:
        value = gpu.values.get(name, Err(UNSUPPORTED))
        return value() if callable(value) else value

    def _numbers(self, name: str, handle: Any, *args: Any) -> int:
        gpu, instance, code = self._find(handle)
        if gpu is None or code != OK:
            return code
        if instance is not None:
            return UNSUPPORTED
        value = self._value(gpu, name)
        if isinstance(value, dict):
            value = value.get(_plain(args[0]), Err(pynvml.NVML_ERROR_INVALID_ARGUMENT))
        if isinstance(value, Err):
            return value.code
        if name in _MANY:
            for target, item in zip(args, value, strict=True):
                _out(target).value = item
        else:
            _out(args[-1]).value = value
        return OK

    # -- the library ------------------------------------------------------------------------

    def do_nvmlInitWithFlags(self, flags: int) -> int:
        code = self.init() if callable(self.init) else self.init
        if isinstance(code, Err):
            return code.code
        self.open += 1
        return OK

    def do_nvmlShutdown(self) -> int:
        self.open -= 1
        return OK

    def do_nvmlErrorString(self, code: Any) -> Any:
        return b"an error of the fake library"

    def do_nvmlSystemGetDriverVersion(self, buffer: Any, size: Any) -> int:
        buffer.value = self.driver.encode()
        return OK

    def do_nvmlSystemGetCudaDriverVersion_v2(self, target: Any) -> int:
        _out(target).value = self.cuda
        return OK

    def do_nvmlSystemGetProcessName(self, pid: Any, buffer: Any, size: Any) -> int:
        name = self.names.get(_plain(pid))
        if name is None:
            return int(pynvml.NVML_ERROR_NOT_FOUND)
        buffer.value = name.encode()
        return OK

    def do_nvmlDeviceGetCount_v2(self, target: Any) -> int:
        _out(target).value = len(self.gpus)
        return OK

    def do_nvmlDeviceGetHandleByIndex_v2(self, index: Any, target: Any) -> int:
        number = _plain(index)
        if number >= len(self.gpus):
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return _set_handle(target, (number + 1) * 1000)

    def do_nvmlDeviceGetHandleByUUID(self, uuid: Any, target: Any) -> int:
        uuid_text = _plain(uuid).decode()
        for index, gpu in enumerate(self.gpus):
            if gpu.uuid == uuid_text:
                return _set_handle(target, (index + 1) * 1000)
            for slot, instance in enumerate(gpu.instances):
                if instance.uuid == uuid_text:
                    return _set_handle(target, (index + 1) * 1000 + slot + 1)
        return int(pynvml.NVML_ERROR_NOT_FOUND)

    # -- a device ---------------------------------------------------------------------------

    def do_nvmlDeviceGetUUID(self, handle: Any, buffer: Any, size: Any) -> int:
        gpu, instance, code = self._find(handle)
        if gpu is not None and code == OK:
            buffer.value = (instance or gpu).uuid.encode()
        return code

    def do_nvmlDeviceGetName(self, handle: Any, buffer: Any, size: Any) -> int:
        gpu, instance, code = self._find(handle)
        if gpu is not None and code == OK:
            buffer.value = (instance or gpu).name.encode()
        return code

    def do_nvmlDeviceGetMinorNumber(self, handle: Any, target: Any) -> int:
        gpu, instance, code = self._find(handle)
        if gpu is None or code != OK or instance is not None:
            return code or UNSUPPORTED
        _out(target).value = gpu.minor
        return OK

    def do_nvmlDeviceGetPciInfo_v3(self, handle: Any, target: Any) -> int:
        gpu, _, code = self._find(handle)
        if gpu is not None and code == OK:
            _out(target).busId = gpu.bus.encode()
        return code

    def do_nvmlDeviceGetMemoryInfo_v2(self, handle: Any, target: Any) -> int:
        return self.do_nvmlDeviceGetMemoryInfo(handle, target)

    def do_nvmlDeviceGetMemoryInfo(self, handle: Any, target: Any) -> int:
        gpu, instance, code = self._find(handle)
        if gpu is None or code != OK:
            return code
        device = instance or gpu
        used = device.used() if callable(device.used) else device.used
        if isinstance(used, Err):
            return used.code
        info = _out(target)
        info.total, info.used, info.free = device.memory, used, device.memory - used
        return OK

    def do_nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        gpu, _, code = self._find(handle)
        if gpu is not None and code == OK:
            _out(major).value, _out(minor).value = gpu.capability
        return code

    def do_nvmlDeviceGetMemoryAffinity(self, handle: Any, size: int, target: Any, scope: Any) -> int:
        gpu, _, code = self._find(handle)
        if gpu is None or code != OK:
            return code
        value = self._value(gpu, "nvmlDeviceGetMemoryAffinity")
        if isinstance(value, Err):
            return value.code
        _out(target)[0] = value
        return OK

    def do_nvmlDeviceValidateInforom(self, handle: Any) -> int:
        gpu, instance, code = self._find(handle)
        if gpu is None or code != OK or instance is not None:
            return code or UNSUPPORTED
        value = self._value(gpu, "nvmlDeviceValidateInforom")
        return value.code if isinstance(value, Err) else OK

    def do_nvmlDeviceGetInforomImageVersion(self, handle: Any, buffer: Any, size: Any) -> int:
        gpu, instance, code = self._find(handle)
        if gpu is None or code != OK or instance is not None:
            return code or UNSUPPORTED
        value = self._value(gpu, "nvmlDeviceGetInforomImageVersion")
        if isinstance(value, Err):
            return value.code
        buffer.value = value.encode()
        return OK

    def do_nvmlDeviceGetUtilizationRates(self, handle: Any, target: Any) -> int:
        gpu, instance, code = self._find(handle)
        if gpu is None or code != OK:
            return code
        value = Err(UNSUPPORTED) if instance else self._value(gpu, "nvmlDeviceGetUtilizationRates")
        if isinstance(value, Err):
            return value.code
        _out(target).gpu, _out(target).memory = value
        return OK

    def do_nvmlDeviceGetRetiredPages(self, handle: Any, cause: Any, count: Any, pages: Any) -> int:
        gpu, _, code = self._find(handle)
        if gpu is None or code != OK:
            return code
        value = self._value(gpu, "nvmlDeviceGetRetiredPages")
        if isinstance(value, Err):
            return value.code
        addresses = value[_plain(cause)]
        size = _out(count).value
        _out(count).value = len(addresses)
        if pages is None or size < len(addresses):
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE) if addresses else OK
        for place, page in enumerate(addresses):
            pages[place] = page
        return OK

    def do_nvmlDeviceGetFieldValues(self, handle: Any, count: Any, target: Any) -> int:
        gpu, _, code = self._find(handle)
        if gpu is None or code != OK:
            return code
        for item in _out(target):
            value = gpu.fields.get(item.fieldId, Err(UNSUPPORTED))
            value = value() if callable(value) else value
            if isinstance(value, Err):
                item.nvmlReturn = value.code
                continue
            item.nvmlReturn = OK
            item.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            item.value.ullVal = value
        return OK

    # -- processes --------------------------------------------------------------------------

    def do_nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, array: Any) -> int:
        gpu, instance, code = self._find(handle)
        if gpu is None or code != OK:
            return code
        if instance is not None:
            processes = instance.processes
        else:
            processes = [*gpu.processes, *(process for piece in gpu.instances for process in piece.processes)]
        size = _out(count).value
        _out(count).value = len(processes)
        if not processes:
            return OK
        if array is None or size < len(processes):
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        for place, process in enumerate(processes):
            array[place].pid = process.pid
            array[place].usedGpuMemory = 2**64 - 1 if process.memory is None else process.memory
        return OK

    def do_nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: Any, count: Any, array: Any) -> int:
        gpu, _, code = self._find(handle)
        if gpu is None or code != OK:
            return code
        size, processes = _out(count).value, gpu.drawing
        _out(count).value = len(processes)
        if not processes:
            return OK
        if array is None or size < len(processes):
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        for place, pid in enumerate(processes):
            array[place].pid = pid
        return OK

    def do_nvmlDeviceGetProcessUtilization(self, handle: Any, array: Any, count: Any, since: Any) -> int:
        gpu, _, code = self._find(handle)
        if gpu is None or code != OK:
            return code
        if gpu.mig and gpu.mig[0]:
            return UNSUPPORTED
        processes = [process for process in gpu.processes if process.at_us > _plain(since)]
        if not processes:
            return int(pynvml.NVML_ERROR_NOT_FOUND)
        if array is None:
            _out(count).value = len(processes)
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        for place, process in enumerate(processes):
            array[place].pid = process.pid
            array[place].smUtil = process.sm
            array[place].timeStamp = process.at_us
        return OK

    # -- NVLink -----------------------------------------------------------------------------

    def _link(self, handle: Any, link: int) -> tuple[Link | None, int]:
        gpu, _, code = self._find(handle)
        if gpu is None or code != OK:
            return None, code
        if not gpu.links:
            return None, UNSUPPORTED
        if link >= len(gpu.links):
            return None, int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return gpu.links[link], OK

    def do_nvmlDeviceGetNvLinkState(self, handle: Any, link: int, target: Any) -> int:
        nvlink, code = self._link(handle, link)
        if nvlink is not None:
            _out(target).value = int(nvlink.active)
        return code

    def do_nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Any, link: int, target: Any) -> int:
        nvlink, code = self._link(handle, link)
        if nvlink is not None:
            _out(target).value = 2 if nvlink.switch else 0
        return code

    def do_nvmlDeviceGetNvLinkRemotePciInfo_v2(self, handle: Any, link: int, target: Any) -> int:
        nvlink, code = self._link(handle, link)
        if nvlink is None:
            return code
        if not nvlink.peer:
            return UNSUPPORTED
        _out(target).busId = nvlink.peer.encode()
        return OK

    # -- counters of instances ----------------------------------------------------------------

    def do_nvmlGpmQueryDeviceSupport(self, handle: Any, target: Any) -> int:
        gpu, _, code = self._find(handle)
        if gpu is not None and code == OK:
            _out(target).isSupportedDevice = int(gpu.capability >= (9, 0))
        return code

    def do_nvmlGpmSampleAlloc(self, target: Any) -> int:
        self.gpm_samples[number := max(self.gpm_samples, default=0) + 1] = 0
        return _set_handle(target, number)

    def do_nvmlGpmSampleFree(self, sample: Any) -> int:
        del self.gpm_samples[_handle_number(sample)]
        return OK

    def do_nvmlGpmMigSampleGet(self, handle: Any, instance_id: Any, sample: Any) -> int:
        gpu, _, code = self._find(handle)
        if gpu is None or code != OK:
            return code
        for instance in gpu.instances:
            if instance.instance_id == _plain(instance_id):
                self.gpm_samples[_handle_number(sample)] = instance.busy_ms
                return OK
        return int(pynvml.NVML_ERROR_NOT_FOUND)

    def do_nvmlGpmMetricsGet(self, target: Any) -> int:
        question = _out(target)
        first, second = (
            self.gpm_samples[_handle_number(sample)] for sample in (question.sample1, question.sample2)
        )
        question.metrics[0].nvmlReturn = OK
        question.metrics[0].value = (second - first) / 10  # as if one second had passed
        return OK

    # -- MIG --------------------------------------------------------------------------------

    def do_nvmlDeviceGetMigMode(self, handle: Any, now: Any, later: Any) -> int:
        gpu, instance, code = self._find(handle)
        if gpu is None or code != OK:
            return code
        if gpu.mig is None or instance is not None:
            return UNSUPPORTED
        _out(now).value, _out(later).value = gpu.mig
        return OK

    def do_nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, target: Any) -> int:
        gpu, _, code = self._find(handle)
        if gpu is not None and code == OK:
            _out(target).value = 7 if gpu.mig else 0
        return code

    def do_nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: Any, target: Any) -> int:
        gpu, _, code = self._find(handle)
        if gpu is None or code != OK:
            return code
        # A GPU instance without a compute instance is not a device.
        if _plain(index) >= len(gpu.instances) or gpu.instances[_plain(index)].compute_id < 0:
            return int(pynvml.NVML_ERROR_NOT_FOUND)
        return _set_handle(target, _handle_number(handle) + _plain(index) + 1)

    def do_nvmlDeviceIsMigDeviceHandle(self, handle: Any, target: Any) -> int:
        _, instance, code = self._find(handle)
        if code == OK:
            _out(target).value = int(instance is not None)
        return code

    def do_nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Any, target: Any) -> int:
        _, instance, code = self._find(handle)
        if code == OK and instance is not None:
            return _set_handle(target, _handle_number(handle) // 1000 * 1000)
        return code or int(pynvml.NVML_ERROR_INVALID_ARGUMENT)

    def do_nvmlDeviceGetGpuInstanceId(self, handle: Any, target: Any) -> int:
        _, instance, code = self._find(handle)
        if code == OK and instance is not None:
            _out(target).value = instance.instance_id
        return code or (OK if instance else UNSUPPORTED)

    def do_nvmlDeviceGetComputeInstanceId(self, handle: Any, target: Any) -> int:
        _, instance, code = self._find(handle)
        if code == OK and instance is not None:
            _out(target).value = instance.compute_id
        return code or (OK if instance else UNSUPPORTED)

    def do_nvmlDeviceGetAttributes_v2(self, handle: Any, target: Any) -> int:
        _, instance, code = self._find(handle)
        if code != OK or instance is None:
            return code or UNSUPPORTED
        _out(target).multiprocessorCount = instance.sms
        _out(target).memorySizeMB = instance.memory >> 20
        return OK

    def do_nvmlDeviceGetGpuInstanceById(self, handle: Any, number: Any, target: Any) -> int:
        gpu, _, code = self._find(handle)
        if gpu is None or code != OK:
            return code
        value = gpu.values.get("nvmlDeviceGetGpuInstanceById")
        if isinstance(value, Err):
            return value.code
        for slot, instance in enumerate(gpu.instances):
            if instance.instance_id == _plain(number):
                return _set_handle(target, _handle_number(handle) + slot + 1)
        return int(pynvml.NVML_ERROR_NOT_FOUND)

    def do_nvmlGpuInstanceGetInfo(self, handle: Any, target: Any) -> int:
        _, instance, code = self._find(handle)
        if code != OK or instance is None:
            return code or int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        info = _out(target)
        info.id, info.profileId = instance.instance_id, instance.profile_id
        info.placement.start, info.placement.size = instance.start, instance.size
        return OK

    def do_nvmlDeviceGetGpuInstanceProfileInfoV(self, handle: Any, number: Any, target: Any) -> int:
        code = self.do_nvmlDeviceGetGpuInstanceProfileInfo(handle, number, target)
        if code == OK:
            gpu, _, _ = self._find(handle)
            assert gpu is not None
            name = next(profile.name for profile in gpu.profiles if profile.number == _plain(number))
            _out(target).name = f"MIG {name}".encode()
        return code

    def do_nvmlDeviceGetGpuInstanceProfileInfo(self, handle: Any, number: Any, target: Any) -> int:
        gpu, _, code = self._find(handle)
        if gpu is None or code != OK:
            return code
        for profile in gpu.profiles:
            if profile.number == _plain(number):
                info = _out(target)
                info.id, info.sliceCount, info.instanceCount = profile.id, profile.slices, profile.most
                info.multiprocessorCount, info.memorySizeMB = profile.sms, profile.memory_mib
                return OK
        return UNSUPPORTED

    def do_nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        self, handle: Any, profile_id: Any, places: Any, count: Any
    ) -> int:
        gpu, _, code = self._find(handle)
        if gpu is None or code != OK:
            return code
        placements = next((p.places for p in gpu.profiles if p.id == _plain(profile_id)), ())
        _out(count).value = len(placements)
        if places is not None:
            for place, (start, size) in zip(places, placements, strict=False):
                place.start, place.size = start, size
        return OK

    # -- another layout: handles of GPU and compute instances are those of the device ----------------------

    def do_nvmlDeviceGetGpuInstances(self, handle: Any, profile_id: Any, handles: Any, count: Any) -> int:
        gpu, _, code = self._find(handle)
        if gpu is None or code != OK:
            return code
        slots = [n for n, instance in enumerate(gpu.instances) if instance.profile_id == _plain(profile_id)]
        for place, slot in enumerate(slots):
            self._put_handle(handles, place, _handle_number(handle) + slot + 1)
        _out(count).value = len(slots)
        return OK

    def do_nvmlDeviceCreateGpuInstanceWithPlacement(
        self, handle: Any, profile_id: Any, placement: Any, target: Any
    ) -> int:
        gpu, _, code = self._find(handle)
        if gpu is None or code != OK:
            return code
        if isinstance(refusal := gpu.values.get("nvmlDeviceCreateGpuInstanceWithPlacement"), Err):
            return refusal.code
        place = _out(placement)
        profile = next((candidate for candidate in gpu.profiles if candidate.id == _plain(profile_id)), None)
        if profile is None or (place.start, place.size) not in profile.places:
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        taken = {
            slot
            for instance in gpu.instances
            for slot in range(instance.start, instance.start + instance.size)
        }
        if taken & set(range(place.start, place.start + place.size)):
            return int(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
        self.made += 1
        number = max((instance.instance_id for instance in gpu.instances), default=0) + 1
        gpu.instances.append(
            Instance(
                uuid_of(9000 + self.made, "MIG"),
                f"{gpu.name} MIG {profile.name}",
                profile.memory_mib << 20,
                number,
                -1,
                profile.id,
                place.start,
                place.size,
                profile.sms,
            )
        )
        return _set_handle(target, _handle_number(handle) + len(gpu.instances))

    def do_nvmlGpuInstanceDestroy(self, handle: Any) -> int:
        gpu, instance, code = self._find(handle)
        if gpu is None or instance is None or code != OK:
            return code or int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        if instance.compute_id >= 0:
            return int(pynvml.NVML_ERROR_IN_USE)
        gpu.instances.remove(instance)
        return OK

    def do_nvmlGpuInstanceGetComputeInstanceProfileInfoV(
        self, handle: Any, number: Any, engines: Any, target: Any
    ) -> int:
        gpu, instance, code = self._find(handle)
        if gpu is None or instance is None or code != OK:
            return code or int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        profile = next(candidate for candidate in gpu.profiles if candidate.id == instance.profile_id)
        if _plain(number) != {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[profile.slices]:
            return UNSUPPORTED
        _out(target).id, _out(target).sliceCount, _out(target).instanceCount = (
            _plain(number),
            profile.slices,
            1,
        )
        return OK

    def do_nvmlGpuInstanceGetComputeInstances(
        self, handle: Any, profile_id: Any, handles: Any, count: Any
    ) -> int:
        _, instance, code = self._find(handle)
        if instance is None or code != OK:
            return code or int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        _out(count).value = int(instance.compute_id >= 0)
        if instance.compute_id >= 0:
            self._put_handle(handles, 0, _handle_number(handle))
        return OK

    def do_nvmlGpuInstanceCreateComputeInstance(self, handle: Any, profile_id: Any, target: Any) -> int:
        _, instance, code = self._find(handle)
        if instance is None or code != OK:
            return code or int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        if instance.compute_id >= 0:
            return int(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
        instance.compute_id = 0
        return _set_handle(target, _handle_number(handle))

    def do_nvmlComputeInstanceDestroy(self, handle: Any) -> int:
        _, instance, code = self._find(handle)
        if instance is None or code != OK:
            return code or int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        if instance.processes:
            return int(pynvml.NVML_ERROR_IN_USE)
        instance.compute_id = -1
        return OK

    @staticmethod
    def _put_handle(array: Any, place: int, number: int) -> None:
        source = ctypes.c_void_p(number)
        size = ctypes.sizeof(source)
        ctypes.memmove(ctypes.addressof(array) + place * size, ctypes.addressof(source), size)


@contextmanager
def installed(library: FakeLibrary | None) -> Iterator[FakeLibrary]:
    """Make `pynvml` use `library`; None: loading fails, as on a machine without a driver."""
    before = (pynvml.nvmlLib, dict(pynvml._nvmlGetFunctionPointer_cache), pynvml._nvmlLib_refcount)
    loader = pynvml.CDLL

    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml._nvmlLib_refcount = 0
    if library is None:
        pynvml.CDLL = missing
    try:
        yield library if library is not None else FakeLibrary()
    finally:
        pynvml.CDLL = loader
        pynvml.nvmlLib = before[0]
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml._nvmlGetFunctionPointer_cache.update(before[1])
        pynvml._nvmlLib_refcount = before[2]
