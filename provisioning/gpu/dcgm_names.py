"""Samples with the metric names of NVIDIA's DCGM exporter, so that its dashboards work."""

from __future__ import annotations

from collections.abc import Mapping

from provisioning.gpu.samples import Sample
from provisioning.types import DeviceInfo

Reading = tuple[str, dict[str, str], float]

# Metric of a sample → name, factor to the exporter's unit, help text.
_NAMES: Mapping[str, tuple[str, float, str]] = {
    "gpu_util_pct": ("DCGM_FI_DEV_GPU_UTIL", 1, "GPU utilization (in %)."),
    "memory_util_pct": ("DCGM_FI_DEV_MEM_COPY_UTIL", 1, "Memory utilization (in %)."),
    "memory_used_mib": ("DCGM_FI_DEV_FB_USED", 1, "Framebuffer memory used (in MiB)."),
    "power_mw": ("DCGM_FI_DEV_POWER_USAGE", 0.001, "Power draw (in W)."),
    "temperature_c": ("DCGM_FI_DEV_GPU_TEMP", 1, "GPU temperature (in C)."),
    "memory_temperature_c": ("DCGM_FI_DEV_MEMORY_TEMP", 1, "Memory temperature (in C)."),
    "sm_clock_mhz": ("DCGM_FI_DEV_SM_CLOCK", 1, "SM clock frequency (in MHz)."),
    "memory_clock_mhz": ("DCGM_FI_DEV_MEM_CLOCK", 1, "Memory clock frequency (in MHz)."),
    "pcie_tx_kib_s": ("DCGM_FI_PROF_PCIE_TX_BYTES", 1024, "Rate of data sent over PCIe (in B/s)."),
    "pcie_rx_kib_s": ("DCGM_FI_PROF_PCIE_RX_BYTES", 1024, "Rate of data received over PCIe (in B/s)."),
    "nvlink_tx_kib_s": ("DCGM_FI_PROF_NVLINK_TX_BYTES", 1024, "Rate of data sent over NVLink (in B/s)."),
    "nvlink_rx_kib_s": ("DCGM_FI_PROF_NVLINK_RX_BYTES", 1024, "Rate of data received over NVLink (in B/s)."),
    "energy_mj": ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1, "Total energy consumption since boot (in mJ)."),
    "pcie_replays": ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 1, "Total number of PCIe retries."),
    "ecc_corrected": ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", 1, "Total number of single-bit volatile ECC errors."),
    "ecc_uncorrected": (
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 1, "Total number of double-bit volatile ECC errors.",
    ),
    "remapped_corrected": (
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", 1, "Number of remapped rows for correctable errors",
    ),
    "remapped_uncorrected": (
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", 1, "Number of remapped rows for uncorrectable errors",
    ),
    "remap_failed": ("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1, "Whether remapping of rows has failed"),
    "last_xid": ("DCGM_FI_DEV_XID_ERRORS", 1, "Value of the last XID error encountered."),
}  # fmt: skip
# Counters according to etc/default-counters.csv of https://github.com/NVIDIA/dcgm-exporter.
COUNTERS: frozenset[str] = frozenset(
    _NAMES[metric][0]
    for metric in (
        "energy_mj", "pcie_replays", "ecc_corrected", "ecc_uncorrected", "remapped_corrected",
        "remapped_uncorrected",
    )
)  # fmt: skip
_FREE = ("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).")
# The older name and DCGM's current one.
_THROTTLE = (
    ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "Current clock throttle reasons (bitmask)."),
    ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "Current clock event reasons (bitmask)."),
)


def readings(sample: Sample, device: DeviceInfo, *, hostname: str = "") -> list[Reading]:
    """Return (name, labels, value) of all measured values."""
    labels = labels_of(device, hostname=hostname)
    values: list[Reading] = []
    for metric, (name, factor, _) in _NAMES.items():
        value = getattr(sample, metric)
        if value is not None:
            values.append((name, labels, value * factor))
    if sample.memory_used_mib is not None:
        values.append((_FREE[0], labels, float(max(0, device.memory_mib - sample.memory_used_mib))))
    if sample.throttle is not None:
        values += [(name, labels, float(sample.throttle)) for name, _ in _THROTTLE]
    return values


def labels_of(device: DeviceInfo, *, hostname: str = "") -> dict[str, str]:
    """Return the exporter's labels. A MIG instance has its GPU's UUID and its own profile."""
    facts = device.facts
    labels = {
        "gpu": str(device.index),
        "UUID": device.parent_uuid or device.uuid,
        "device": f"nvidia{device.index}",
        "modelName": device.model,
    }
    if bus := facts.get("pci_bus_id"):
        labels["pci_bus_id"] = _bus_id(str(bus))
    if hostname:
        labels["Hostname"] = hostname
    if device.parent_uuid:
        labels["GPU_I_PROFILE"] = device.mig_profile
        if isinstance(number := facts.get("gpu_instance"), int) and number >= 0:
            labels["GPU_I_ID"] = str(number)
        # Instance numbers are reused after a change of the layout; the UUID is unique.
        labels["GPU_I_UUID"] = device.uuid
    return labels


def _bus_id(bus: str) -> str:
    """Convert sysfs's `0000:3b:00.0` to the exporter's `00000000:3B:00.0`."""
    domain, _, slot = bus.partition(":")
    return f"{domain:0>8}:{slot}".upper() if slot else bus


def help_texts() -> dict[str, str]:
    """Return help texts by metric name."""
    texts = {name: text for name, _, text in _NAMES.values()}
    return texts | dict((_FREE, *_THROTTLE))
