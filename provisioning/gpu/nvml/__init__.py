"""NVML with typed states: what a device does not offer is None, never 0, and every failure has a name.

`session()` opens the library; `Nvml` and `Device` are thin, typed readers over `pynvml`. A reader returns
None where the device, the driver or the user's rights do not offer the value, and raises an `NvmlProblem`
only where the driver or the device itself is in trouble. NVML has no time-outs of its own: wrap work that
must end in `Bounded`.

Nothing else of the product calls `pynvml`; others take its constants at most.
"""

from __future__ import annotations

from provisioning.gpu.nvml.calls import bus_id, text
from provisioning.gpu.nvml.device import ALL_LINKS, Device
from provisioning.gpu.nvml.events import XidEvents
from provisioning.gpu.nvml.library import Nvml, open_library, session
from provisioning.gpu.nvml.meter import InstanceMeter
from provisioning.gpu.nvml.mig import GpuInstance, destroy_compute_instance
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
    "ALL_LINKS",
    "LIBRARY",
    "UNAVAILABLE",
    "Bounded",
    "Device",
    "DeviceGone",
    "DriverMismatch",
    "GpuInstance",
    "GpuLost",
    "InstanceMeter",
    "NoDriver",
    "NoPermission",
    "Nvml",
    "NvmlProblem",
    "ResetRequired",
    "TimedOut",
    "XidEvents",
    "bus_id",
    "destroy_compute_instance",
    "open_library",
    "problem_of",
    "session",
    "text",
]
