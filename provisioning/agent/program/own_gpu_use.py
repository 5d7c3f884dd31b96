"""GPU use of this workspace's processes, for GPUs that have other users or report no utilisation.

- A share of a GPU: the driver samples each process. It returns PIDs of the caller's namespace.
- A MIG instance: GPM counters, from Hopper on.
- No process of this workspace has CUDA open: 0, whatever else runs on the GPU.

Everything else is unknown (None), which the portal counts as work.
"""

# ruff: noqa: PTH115, PTH208, UP031

from __future__ import annotations

import os

from .processes import descendants, process_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctypes import c_void_p
    from typing import Any

CUDA_FILE = "/dev/nvidia-uvm"
"""Device file that a process opens when it initialises CUDA, and that NVML does not open."""
GPU_FILE = "/dev/nvidia"
"""Start of the names of GPUs' device files. NVML and graphics open these."""
SUCCESS, NOT_FOUND = 0, 6
MAX_PROCESSES = 256
MAX_SAMPLES = 4096
GRAPHICS_UTIL = 1
"""NVML's number of the GPM metric “time with work”, in percent."""


class Holders:
    """Processes of this workspace with open device files.

    `cuda`: PIDs that have initialised CUDA. `others`: PIDs that have only a GPU's file open, for graphics or
    to read figures, and those whose files are unreadable, such as `ssh-agent`.
    """

    __slots__ = ("cuda", "others")

    def __init__(self, cuda: set[int], others: set[int]) -> None:
        self.cuda = cuda
        self.others = others


def holders() -> Holders:
    """Return the processes that have device files open. Raises `OSError` if there is no process table."""
    cuda: set[int] = set()
    others: set[int] = set()
    for pid in descendants(os.getpid(), process_table()):
        try:
            files = open_files(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
        except OSError:
            others.add(pid)
            continue
        if CUDA_FILE in files:
            cuda.add(pid)
        elif any(name.startswith(GPU_FILE) and name[len(GPU_FILE) :].isdigit() for name in files):
            others.add(pid)
    return Holders(cuda, others)


def open_files(pid: int) -> set[str]:
    """Return the paths of a process's open files. Raises `OSError`."""
    folder = "/proc/%d/fd" % pid
    names = set()
    for entry in os.listdir(folder):
        try:
            names.add(os.readlink(folder + "/" + entry))
        except FileNotFoundError:
            continue  # closed meanwhile
    return names


class OwnUse:
    """Reads the use of devices by this workspace's processes through NVML, in one thread.

    `shared`: UUIDs of GPUs of which the workspace has a share.
    """

    def __init__(self, library: Any, shared: list[str]) -> None:
        self.library = library
        self.shared = frozenset(shared)
        self.seen_us: dict[str, int] = {}
        self.gpm_samples: dict[str, c_void_p] = {}

    def percents(self, handles: dict[str, c_void_p]) -> dict[str, int | None]:
        """Return the use in percent of those devices in `handles` that are shared or MIG instances."""
        uuids = [uuid for uuid in handles if uuid in self.shared or uuid.startswith("MIG-")]
        if not uuids:
            return {}
        present = holders()
        listed = {uuid: self._listed(handle) for uuid, handle in handles.items()}
        return {uuid: self._percent(uuid, handles[uuid], present, listed) for uuid in uuids}

    def _percent(
        self,
        uuid: str,
        handle: c_void_p,
        present: Holders,
        listed: dict[str, set[int] | None],
    ) -> int | None:
        busy = self._instance_percent(uuid, handle) if uuid not in self.shared else None
        if not present.cuda and not present.others:
            return 0
        on_device = listed[uuid]
        if on_device is None:
            return busy
        known_pids = set().union(*(pids for pids in listed.values() if pids is not None))
        own = on_device & (present.cuda | present.others)
        if present.cuda and not known_pids & present.cuda:
            # The list hides this workspace's processes, or has other numbers for them.
            return busy
        if not own:
            return 0
        return self._processes_percent(uuid, handle, own) if uuid in self.shared else busy

    def _listed(self, handle: c_void_p) -> set[int] | None:
        """Return the PIDs of compute and graphics processes on a device; None if not reported."""
        import ctypes

        class Process(ctypes.Structure):
            _fields_ = (
                ("pid", ctypes.c_uint),
                ("memory", ctypes.c_ulonglong),
                ("gpu_instance", ctypes.c_uint),
                ("compute_instance", ctypes.c_uint),
            )

        pids: set[int] = set()
        for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"):
            count = ctypes.c_uint(MAX_PROCESSES)
            processes = (Process * MAX_PROCESSES)()
            if self._call(name, handle, ctypes.byref(count), processes) != SUCCESS:
                return None
            pids.update(process.pid for process in processes[: count.value])
        return pids

    def _processes_percent(self, uuid: str, handle: c_void_p, own: set[int]) -> int | None:
        """Return the highest use by these processes since the last call, in percent."""
        import ctypes

        class Sample(ctypes.Structure):
            _fields_ = (
                ("pid", ctypes.c_uint),
                ("at_us", ctypes.c_ulonglong),
                ("sm", ctypes.c_uint),
                ("memory", ctypes.c_uint),
                ("encoder", ctypes.c_uint),
                ("decoder", ctypes.c_uint),
            )

        count = ctypes.c_uint(MAX_SAMPLES)
        samples = (Sample * MAX_SAMPLES)()
        since = ctypes.c_ulonglong(self.seen_us.get(uuid, 0))
        code = self._call("nvmlDeviceGetProcessUtilization", handle, samples, ctypes.byref(count), since)
        if code == NOT_FOUND:
            return 0  # no process has used the device
        if code != SUCCESS:
            return None
        busy = 0
        for sample in samples[: count.value]:
            self.seen_us[uuid] = max(self.seen_us.get(uuid, 0), sample.at_us)
            if sample.pid in own:
                # Values above 100 are noise of the driver.
                busy = max(
                    [busy, *(use for use in (sample.sm, sample.encoder, sample.decoder) if use <= 100)]
                )
        return busy

    def _instance_percent(self, uuid: str, handle: c_void_p) -> int | None:
        """Return the share of time with work on a MIG instance since the last call, in percent.

        None on the first call, and before Hopper.
        """
        import ctypes

        class Metric(ctypes.Structure):
            _fields_ = (
                ("number", ctypes.c_uint),
                ("code", ctypes.c_int),
                ("value", ctypes.c_double),
                ("texts", ctypes.c_void_p * 3),
            )

        class Question(ctypes.Structure):
            # Newer drivers have more metrics, of which only the first is used.
            _fields_ = (
                ("version", ctypes.c_uint),
                ("count", ctypes.c_uint),
                ("before", ctypes.c_void_p),
                ("after", ctypes.c_void_p),
                ("metrics", Metric * 512),
            )

        gpu, number, sample = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_void_p()
        if self._call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle, ctypes.byref(gpu)) != SUCCESS:
            return None
        if self._call("nvmlDeviceGetGpuInstanceId", handle, ctypes.byref(number)) != SUCCESS:
            return None
        if self._call("nvmlGpmSampleAlloc", ctypes.byref(sample)) != SUCCESS:
            return None
        if self._call("nvmlGpmMigSampleGet", gpu, number, sample) != SUCCESS:
            self._call("nvmlGpmSampleFree", sample)
            return None
        before = self.gpm_samples.get(uuid)
        self.gpm_samples[uuid] = sample
        if before is None:
            return None
        question = Question(version=1, count=1, before=before, after=sample)
        question.metrics[0].number = GRAPHICS_UTIL
        code = self._call("nvmlGpmMetricsGet", ctypes.byref(question))
        self._call("nvmlGpmSampleFree", before)
        metric = question.metrics[0]
        if code != SUCCESS or metric.code != SUCCESS or not 0.0 <= metric.value <= 100.5:
            return None
        # Rounded up: any work counts.
        return min(100, -int(-metric.value // 1))

    def _call(self, name: str, *arguments: Any) -> int:
        """Call NVML; return its code, or -1 if the driver has no such function."""
        function = getattr(self.library, name, None)
        return -1 if function is None else int(function(*arguments))
