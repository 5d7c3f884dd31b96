"""A sample of one device. None means not measured, never 0."""

from __future__ import annotations

from dataclasses import dataclass

METRICS = (
    "gpu_util_pct",
    "memory_util_pct",
    "memory_used_mib",
    "power_mw",
    "temperature_c",
    "memory_temperature_c",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "pcie_tx_kib_s",
    "pcie_rx_kib_s",
    "nvlink_tx_kib_s",
    "nvlink_rx_kib_s",
)
"""Metrics of a `Sample`, in the order of a ring's columns."""

THROTTLE_REASONS: tuple[tuple[int, str], ...] = (
    (0x001, "idle"),
    (0x002, "application_clocks"),
    (0x004, "sw_power_cap"),
    (0x008, "hw_slowdown"),
    (0x010, "sync_boost"),
    (0x020, "sw_thermal"),
    (0x040, "hw_thermal"),
    (0x080, "hw_power_brake"),
    (0x100, "display_clock"),
)
"""Bits of `Sample.throttle` and their names: NVML's clocks event reasons."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """Use of a device by one process."""

    pid: int
    sm_pct: int | None = None
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """A device at `at_s` (UTC seconds since the epoch). `throttle` is a bit mask.

    `processes` is None if the driver does not report them.
    """

    at_s: float
    gpu_util_pct: int | None = None
    memory_util_pct: int | None = None
    memory_used_mib: int | None = None
    power_mw: int | None = None
    temperature_c: int | None = None
    memory_temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    pcie_tx_kib_s: int | None = None
    pcie_rx_kib_s: int | None = None
    nvlink_tx_kib_s: int | None = None
    nvlink_rx_kib_s: int | None = None
    throttle: int | None = None
    processes: tuple[ProcessUse, ...] | None = None
    energy_mj: int | None = None
    """This and the counters below continue when the device's wrap or restart (`counters.Total`)."""
    pcie_replays: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    """Volatile, since the last reset of the device, like `ecc_corrected`."""
    remapped_corrected: int | None = None
    remapped_uncorrected: int | None = None
    remap_failed: int | None = None
    last_xid: int | None = None
    """From the watcher; 0 means none since it started."""


def throttle_names(mask: int) -> tuple[str, ...]:
    """Return the reasons in `mask`; bits without a name are omitted."""
    return tuple(name for bit, name in THROTTLE_REASONS if mask & bit)
