"""Typed access to NVML: unavailable values are None, never 0, and every failure has a type.

`session()` opens the library; `Nvml` and `Device` are thin, typed readers over `pynvml`. A reader returns
None if the device, the driver or the user's rights do not offer the value. It raises an `NvmlProblem` only if
the driver or the device has a problem. NVML has no timeouts: wrap work that must end in `DeadlineThread`.

No other module calls `pynvml`; some use its constants.
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
    DeadlineThread,
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
    "DeadlineThread",
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
