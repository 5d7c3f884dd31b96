"""Further resources of a machine: CPU features, NUMA, memory tiers, RDMA, DPUs.

Everything is read from /proc and /sys under a root folder, so tests can replace them. Unreadable values are
omitted; nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

NVIDIA = 0x10DE
_DISPLAY = 0x03
# (vendor, device) → name, from the PCI id database.
_DPUS = {
    (0x15B3, 0xA2D2): "NVIDIA BlueField",
    (0x15B3, 0xA2D6): "NVIDIA BlueField-2",
    (0x15B3, 0xA2DC): "NVIDIA BlueField-3",
    (0x15B3, 0xA2DF): "NVIDIA BlueField-4",
    (0x1DD8, 0x1002): "AMD Pensando DSC",
    (0x1DD8, 0x1003): "AMD Pensando DSC",
    (0x8086, 0x1452): "Intel IPU",
}
# Feature → flags of /proc/cpuinfo, all of which are required.
_FEATURES: tuple[tuple[str, frozenset[str]], ...] = (
    ("amx", frozenset({"amx_tile", "amx_int8", "amx_bf16"})),
    ("avx512", frozenset({"avx512f", "avx512bw", "avx512vl"})),
    ("avx512_bf16", frozenset({"avx512_bf16"})),
    ("avx2", frozenset({"avx2", "fma"})),
    ("sve", frozenset({"sve"})),
    ("sve2", frozenset({"sve2"})),
)


@dataclass(frozen=True, slots=True)
class CpuFacts:
    """`threads` are logical CPUs; `cores` are physical ones (0 if unknown)."""

    model: str
    threads: int
    cores: int
    sockets: int
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A NUMA node; without CPUs it is memory only. `tier` is the kernel's (-1: unknown; low is fast)."""

    number: int
    cpus: str
    memory_mib: int
    tier: int
    kind: str
    """`dram`, `cxl`, `pmem`, `hbm`, or `memory` for a node without CPUs of unknown kind."""


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """An RDMA port. `rate_mbit_s` is 0 if unknown."""

    device: str
    port: int
    active: bool
    state: str
    link_layer: str
    rate_mbit_s: int
    pci_bus_id: str
    numa: int


@dataclass(frozen=True, slots=True)
class PciDevice:
    bus_id: str
    vendor: int
    device: int
    kind: int
    """The upper 16 bits of the PCI class."""
    numa: int


@dataclass(frozen=True, slots=True)
class Dpu:
    """A card with its own processors, seen from the host; whether it is in DPU mode is not visible."""

    name: str
    pci_slot: str
    numa: int


@dataclass(frozen=True, slots=True)
class HostFacts:
    cpu: CpuFacts
    numa: tuple[NumaNode, ...] = ()
    rdma: tuple[RdmaPort, ...] = ()
    dpus: tuple[Dpu, ...] = ()
    nvidia_gpus_on_pci: int = 0

    @property
    def provides(self) -> tuple[str, ...]:
        """Names for placement, sorted: `rdma` (an active port), `dpu_offload`, `memory_tier:…`, `cpu:…`."""
        names = {f"cpu:{feature}" for feature in self.cpu.features}
        names |= {f"memory_tier:{node.kind}" for node in self.numa if node.kind in ("cxl", "pmem", "hbm")}
        if any(port.active for port in self.rdma):
            names.add("rdma")
        if self.dpus:
            names.add("dpu_offload")
        return tuple(sorted(names))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read_host_facts(root: Path = Path("/")) -> HostFacts:
    """Return the facts of the machine whose /proc and /sys are under `root`."""
    devices = pci_devices(root)
    return HostFacts(
        cpu=cpu(root),
        numa=numa_nodes(root),
        rdma=rdma_ports(root),
        dpus=_dpus(devices),
        nvidia_gpus_on_pci=len(_gpus(devices)),
    )


def cpu(root: Path = Path("/")) -> CpuFacts:
    model, flags, threads = "", frozenset[str](), 0
    sockets: set[str] = set()
    cores: set[tuple[str, str]] = set()
    socket = ""
    for line in _read_text(root / "proc/cpuinfo").splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "processor":
            threads += 1
        elif key == "model name":
            model = model or value
        elif key == "physical id":
            socket = value
            sockets.add(value)
        elif key == "core id":
            cores.add((socket, value))
        elif key in ("flags", "Features"):
            # Programs can rely only on features that every CPU has.
            names = frozenset(value.split())
            flags = flags & names if flags else names
    features = tuple(name for name, needed in _FEATURES if needed <= flags)
    return CpuFacts(model, threads, len(cores), len(sockets) or (1 if threads else 0), features)


def numa_nodes(root: Path = Path("/")) -> tuple[NumaNode, ...]:
    tiers = _tiers(root)
    origins = _dax_origins(root)
    entries: list[tuple[int, str, int]] = []
    for folder in _children(root / "sys/devices/system/node", re.compile(r"node\d+")):
        number = int(folder.name[4:])
        entries.append((number, _read_text(folder / "cpulist").strip(), _memory_mib(folder)))
    entries.sort()
    ordinary = [tiers[number] for number, cpus, _ in entries if cpus and number in tiers]
    dram_tier = min(ordinary, default=-1)
    nodes = []
    for number, cpus, memory_mib in entries:
        tier = tiers.get(number, -1)
        if cpus:
            kind = "dram"
        elif number in origins:
            kind = origins[number]
        elif 0 <= tier < dram_tier:
            kind = "hbm"
        else:
            kind = "memory"
        nodes.append(NumaNode(number, cpus, memory_mib, tier, kind))
    return tuple(node for node in nodes if node.memory_mib or node.cpus)


def _memory_mib(folder: Path) -> int:
    match = re.search(r"MemTotal:\s+(\d+) kB", _read_text(folder / "meminfo"))
    return int(match.group(1)) >> 10 if match else 0


def _tiers(root: Path) -> dict[int, int]:
    """Return the kernel's tier by NUMA node."""
    tiers: dict[int, int] = {}
    pattern = re.compile(r"memory_tier\d+")
    for folder in _children(root / "sys/devices/virtual/memory_tiering", pattern):
        for number in cpu_list(_read_text(folder / "nodelist")):
            tiers[number] = int(folder.name[11:])
    return tiers


def _dax_origins(root: Path) -> dict[int, str]:
    """Return the kind of memory by NUMA node, for memory from DAX devices."""
    origins: dict[int, str] = {}
    for folder in _children(root / "sys/bus/dax/devices", re.compile(r"dax\d+\.\d+")):
        target = _parse_int(_read_text(folder / "target_node"), -1)
        try:
            path = str(folder.resolve())
        except OSError:
            continue
        if target >= 0:
            if "/cxl" in path or re.search(r"/region\d+/dax_region", path):
                origins[target] = "cxl"
            elif "/ndbus" in path:
                origins[target] = "pmem"
    return origins


def rdma_ports(root: Path = Path("/")) -> tuple[RdmaPort, ...]:
    ports = []
    for device in _children(root / "sys/class/infiniband", re.compile(r".+")):
        try:
            bus = (device / "device").resolve().name if (device / "device").exists() else ""
        except OSError:
            bus = ""
        numa = _parse_int(_read_text(device / "device/numa_node"), -1)
        for port in _children(device / "ports", re.compile(r"\d+")):
            state = _read_text(port / "state").partition(":")[2].strip()
            rate = re.match(r"\s*([\d.]+)\s*Gb/sec", _read_text(port / "rate"))
            ports.append(
                RdmaPort(
                    device=device.name,
                    port=int(port.name),
                    active=state == "ACTIVE",
                    state=state.lower(),
                    link_layer=_read_text(port / "link_layer").strip(),
                    rate_mbit_s=round(float(rate.group(1)) * 1000) if rate else 0,
                    pci_bus_id=bus,
                    numa=numa,
                )
            )
    return tuple(ports)


def slowest_port_gb_s(ports: Iterable[RdmaPort]) -> float:
    """Return the bandwidth of the slowest active port in GB/s; 0 if there is none or one is unknown."""
    rates = [port.rate_mbit_s for port in ports if port.active]
    return min(rates, default=0) / 8000


def pci_devices(root: Path = Path("/")) -> tuple[PciDevice, ...]:
    devices = []
    for folder in _children(root / "sys/bus/pci/devices", re.compile(r"[0-9a-f:.]+")):
        vendor, device = (_parse_int(_read_text(folder / name), -1, 16) for name in ("vendor", "device"))
        kind = _parse_int(_read_text(folder / "class"), 0, 16) >> 8
        if vendor >= 0:
            numa = _parse_int(_read_text(folder / "numa_node"), -1)
            devices.append(PciDevice(folder.name, vendor, device, kind, numa))
    return tuple(devices)


def nvidia_gpus(root: Path = Path("/")) -> tuple[str, ...]:
    """Return PCI addresses of NVIDIA's display controllers, regardless of driver."""
    return _gpus(pci_devices(root))


def _gpus(devices: tuple[PciDevice, ...]) -> tuple[str, ...]:
    return tuple(item.bus_id for item in devices if item.vendor == NVIDIA and item.kind >> 8 == _DISPLAY)


def _dpus(devices: tuple[PciDevice, ...]) -> tuple[Dpu, ...]:
    """Return one entry per card, although each function is a PCI device."""
    cards: dict[str, Dpu] = {}
    for item in devices:
        name = _DPUS.get((item.vendor, item.device))
        slot = item.bus_id.rpartition(".")[0]
        if name and slot not in cards:
            cards[slot] = Dpu(name, slot, item.numa)
    return tuple(cards.values())


def cpu_list(text: str) -> list[int]:
    """Parse the kernel's CPU list: `0-2,5` → 0, 1, 2, 5. Invalid parts are ignored."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        if first.isdecimal() and (last.isdecimal() if dash else True):
            numbers += range(int(first), int(last if dash else first) + 1)
    return numbers


def _children(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    try:
        return sorted(item for item in folder.iterdir() if pattern.fullmatch(item.name))
    except OSError:
        return []


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _parse_int(text: str, otherwise: int, base: int = 10) -> int:
    try:
        return int(text.strip(), base)
    except ValueError:
        return otherwise
