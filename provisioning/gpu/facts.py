"""Facts about a GPU from inventory. None means unavailable, unlike 0 or False."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from provisioning.gpu.topology import NvlinkFacts, PciLocation


class MachineState(StrEnum):
    """Overall state of a machine's accelerators."""

    OK = "ok"
    NO_DRIVER = "no_driver"
    NO_GPU = "no_gpu"
    DRIVER_MISMATCH = "driver_mismatch"
    GPU_LOST = "gpu_lost"
    RESET_REQUIRED = "reset_required"
    NO_PERMISSION = "no_permission"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A profile that this GPU supports; `placements` are (start, size) in memory slices."""

    name: str
    profile_id: int
    memory_mib: int
    sms: int
    slices: int
    most: int
    placements: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU. `memory_mib` is None if not reported; `name` is empty if unreadable."""

    pid: int
    memory_mib: int | None
    name: str = ""


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A MIG instance. `start` and `size` are -1 if unknown, since some driver versions need more rights."""

    uuid: str
    name: str
    profile: str
    start: int
    size: int
    memory_mib: int
    sms: int | None
    gpu_instance: int
    compute_instance: int
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class Pcie:
    gen: int | None
    width: int | None
    max_gen: int | None
    max_width: int | None


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory health: remapped rows (A100 and later) or retired pages (earlier models)."""

    remapped_corrected: int | None = None
    remapped_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_pages: int | None = None
    retired_pending: bool | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None


RECOVERY_ACTIONS = {
    0: "none",
    1: "gpu_reset",
    2: "node_reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "recover_imex_domain",
    6: "bus_reset",
    7: "system_reboot",
}
_WHAT_TO_DO = {
    "gpu_reset": "Stop all work on this GPU, then reset it.",
    "bus_reset": "Stop all work on this GPU, then reset it.",
    "drain_and_reset": "Drain this GPU, then reset it.",
    "drain_p2p": "Stop work that uses this GPU together with other GPUs.",
    "node_reboot": "Drain this machine, then reboot it.",
    "system_reboot": "Drain this machine, then reboot it.",
    "recover_imex_domain": "Recover the IMEX domain.",
}


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU with its MIG instances. `minor` is the N of /dev/nvidiaN; memory is in MiB, power in mW."""

    uuid: str
    index: int
    minor: int | None
    pci_bus_id: str
    model: str
    memory_mib: int
    compute_capability: str
    virtual: bool | None
    mig_mode: bool | None
    mig_pending: bool | None
    instances: tuple[MigInstance, ...]
    profiles: tuple[MigProfile, ...]
    links: NvlinkFacts
    island: str
    place: PciLocation
    pcie: Pcie
    numa: int
    ecc: bool | None
    ecc_pending: bool | None
    clocks_mhz: dict[str, int | None]
    max_clocks_mhz: dict[str, int | None]
    power_limit_mw: int | None
    power_range_mw: tuple[int, int] | None
    temperature_c: int | None
    temperature_limits_c: dict[str, int | None]
    processes: tuple[GpuProcess, ...] | None
    persistence: bool | None
    recovery_action: str | None
    memory: Memory

    @property
    def unusable_reason(self) -> str:
        """Reason why no new work may be placed here, with the next action; empty if there is none."""
        if self.recovery_action not in (None, "none"):
            action = str(self.recovery_action)
            todo = _WHAT_TO_DO.get(action, "Search dmesg for Xid lines.")
            return f"The driver requests a recovery action ({action.replace('_', ' ')}). {todo}"
        if self.memory.remap_failed:
            return "A memory row could not be remapped. Replace this GPU."
        if self.memory.remap_pending or self.memory.retired_pending:
            return "A reset is needed to retire faulty memory. Drain this GPU, then reset it."
        return ""

    def as_json(self) -> dict[str, Any]:
        """Return the facts that change only with the device, for its page."""
        links = {"active": self.links.active, "total": self.links.total, "switched": self.links.switched}
        return {
            "pci_bus_id": self.pci_bus_id,
            "pci_switch": self.place.switch,
            "virtual": self.virtual,
            "mig_pending": self.mig_pending,
            "profiles": [
                {
                    "name": item.name,
                    "memory_mib": item.memory_mib,
                    "sms": item.sms,
                    "most": item.most,
                    "placements": [list(place) for place in item.placements],
                }
                for item in self.profiles
            ],
            "nvlink": links if self.links.total else None,
            "pcie_max_gen": self.pcie.max_gen,
            "pcie_max_width": self.pcie.max_width,
            "ecc": self.ecc,
            "ecc_pending": self.ecc_pending,
            "max_clocks_mhz": self.max_clocks_mhz,
            "power_limit_mw": self.power_limit_mw,
            "power_range_mw": list(self.power_range_mw) if self.power_range_mw else None,
            "temperature_limits_c": self.temperature_limits_c,
            "persistence": self.persistence,
            "recovery_action": self.recovery_action,
            "remapped_rows": self.memory.remapped_uncorrected,
            "remap_pending": self.memory.remap_pending,
            "remap_failed": self.memory.remap_failed,
            "retired_pages": self.memory.retired_pages,
        }


@dataclass(frozen=True, slots=True)
class BrokenGpu:
    """A GPU that the driver counts but that does not answer. `uuid` is empty if unknown."""

    index: int
    state: str
    sentence: str
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class Scan:
    """GPUs of a machine. `sentence` explains any `state` but `ok`, with one next action."""

    state: MachineState
    sentence: str = ""
    gpus: tuple[GpuFacts, ...] = ()
    broken: tuple[BrokenGpu, ...] = ()
    driver_version: str = ""
    cuda_version: str = ""
    missing: tuple[str, ...] = ()
    """PCI addresses of GPUs that the driver does not show, or shows without an address."""
