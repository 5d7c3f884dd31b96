"""GPU instances of a GPU in MIG mode, and names of profiles."""

from __future__ import annotations

from ctypes import byref, c_uint
from typing import Any

import pynvml

from provisioning.gpu.nvml.calls import query_optional, query_required


class GpuInstance:
    """A GPU instance: its profile and start, with or without compute instances."""

    __slots__ = ("handle", "profile_id", "start")

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        info = query_required("nvmlGpuInstanceGetInfo", handle)
        self.profile_id, self.start = int(info.profileId), int(info.placement.start)

    def destroy(self) -> None:
        """Destroy the instance. Raises `NvmlProblem` while it has compute instances."""
        query_required("nvmlGpuInstanceDestroy", self.handle)

    def compute_instances(self) -> list[Any]:
        """Return the handles of its compute instances."""
        instances = []
        for info in self._compute_profiles():
            count = c_uint(0)
            handles = (pynvml.c_nvmlComputeInstance_t * int(info.instanceCount))()
            query_required(
                "nvmlGpuInstanceGetComputeInstances", self.handle, int(info.id), handles, byref(count)
            )
            instances += [handles[place] for place in range(count.value)]
        return instances

    def create_compute_instance(self) -> None:
        """Create one compute instance that spans the whole GPU instance."""
        largest = max(self._compute_profiles(), key=lambda info: int(info.sliceCount))
        query_required("nvmlGpuInstanceCreateComputeInstance", self.handle, int(largest.id))

    def _compute_profiles(self) -> list[Any]:
        shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        name = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
        profiles = (
            query_optional(name, self.handle, number, shared)
            for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
        )
        return [info for info in profiles if info is not None]


def destroy_compute_instance(handle: Any) -> None:
    """Destroy a compute instance. Raises `NvmlProblem` while it is in use."""
    query_required("nvmlComputeInstanceDestroy", handle)


def profile_name(info: Any, name: str) -> str:
    """Return the driver's name of a profile, or one derived from its size with old drivers."""
    return name or f"{int(info.sliceCount)}g.{round(int(info.memorySizeMB) / 1024)}gb"
