"""GPUs for the fake library, with values seen on real devices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pynvml

OK = pynvml.NVML_SUCCESS
UNSUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Err:
    """The NVML error code that a call returns."""

    code: int


LOST = Err(pynvml.NVML_ERROR_GPU_IS_LOST)


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    memory: int | None = None
    sm: int = 0
    at_us: int = 0


@dataclass(frozen=True, slots=True)
class Profile:
    """A MIG profile. `number` is its index in NVML's list, `id` is that of instances."""

    number: int
    id: int
    name: str
    slices: int
    most: int
    memory_mib: int
    sms: int
    places: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Instance:
    uuid: str
    name: str
    memory: int
    instance_id: int
    compute_id: int
    profile_id: int
    start: int
    size: int
    sms: int
    used: int = 0
    busy_ms: int = 0
    processes: list[Process] = field(default_factory=list)


@dataclass(slots=True)
class Link:
    """An NVLink: `peer` is the PCI bus id at the other end."""

    peer: str = ""
    switch: bool = False
    active: bool = True


@dataclass(slots=True)
class FakeGpu:
    uuid: str
    name: str
    memory: int
    bus: str
    minor: int = 0
    capability: tuple[int, int] = (9, 0)
    used: Any = 0
    mig: tuple[int, int] | None = None
    profiles: tuple[Profile, ...] = ()
    instances: list[Instance] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    drawing: list[int] = field(default_factory=list)
    """PIDs of processes with a graphics context."""
    fields: dict[int, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    broken: Any = None
    """An `Err` (or a function that returns one) that every call about this GPU returns."""


def _common(**more: Any) -> dict[str, Any]:
    return {
        "nvmlDeviceGetCurrPcieLinkGeneration": 1,
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetPcieReplayCounter": 0,
        "nvmlDeviceGetPersistenceMode": 1,
        "nvmlDeviceGetInforomImageVersion": "G520.0200.00.05",
        "nvmlDeviceValidateInforom": True,
        "nvmlDeviceGetEccMode": (1, 1),
        "nvmlDeviceGetTotalEccErrors": 0,
        "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
        "nvmlDeviceGetClockInfo": {0: 345, 1: 345, 2: 3201},
        "nvmlDeviceGetMaxClockInfo": {0: 1980, 1: 1980, 2: 3201},
        "nvmlDeviceGetPowerUsage": 76_541,
        "nvmlDeviceGetEnforcedPowerLimit": 700_000,
        "nvmlDeviceGetPowerManagementLimitConstraints": (200_000, 700_000),
        "nvmlDeviceGetTemperature": 28,
        "nvmlDeviceGetTemperatureThreshold": {0: 92, 1: 89, 2: 95, 3: 87},
        "nvmlDeviceGetCurrentClocksEventReasons": 1,
        "nvmlDeviceGetUtilizationRates": (0, 0),
        "nvmlDeviceGetVirtualizationMode": 0,
        "nvmlDeviceGetMemoryAffinity": 1,
        **more,
    }


_PLACES = tuple((start, 1) for start in range(7))
H100_PROFILES = (
    Profile(0, 19, "1g.10gb", 1, 7, 9856, 16, _PLACES),
    Profile(9, 15, "1g.20gb", 1, 4, 19968, 26, ((0, 2), (2, 2), (4, 2), (6, 2))),
    Profile(1, 14, "2g.20gb", 2, 3, 19968, 32, ((0, 2), (2, 2), (4, 2))),
    Profile(2, 9, "3g.40gb", 3, 2, 40192, 60, ((0, 4), (4, 4))),
    Profile(3, 5, "4g.40gb", 4, 1, 40192, 64, ((0, 4),)),
    Profile(4, 0, "7g.80gb", 7, 1, 81152, 132, ((0, 8),)),
)


def uuid_of(number: int, kind: str = "GPU") -> str:
    return f"{kind}-{number:08x}-1111-2222-3333-444444444444"


def h200(number: int = 0, **more: Any) -> FakeGpu:
    gpu = FakeGpu(
        uuid=uuid_of(number),
        name="NVIDIA H200",
        memory=143_771 << 20,
        bus=f"00000000:{0x1B + 16 * number:02X}:00.0",
        minor=number,
        mig=(0, 0),
        used=1 << 20,
        values=_common(),
        fields={
            pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: 0,
            pynvml.NVML_FI_DEV_MEMORY_TEMP: 34,
            pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: 0,
            pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX: 0,
            pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES: 0,
            pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES: 0,
        },
        links=[Link("00000000:07:00.0", switch=True) for _ in range(18)],
    )
    return _with(gpu, more)


def h100_mig(number: int = 0, **more: Any) -> FakeGpu:
    """An H100 in MIG mode with a 3g.40gb at 4 and a 1g.10gb at 0."""
    gpu = FakeGpu(
        uuid=uuid_of(number),
        name="NVIDIA H100 80GB HBM3",
        memory=81_559 << 20,
        bus=f"00000000:{0x1B + 16 * number:02X}:00.0",
        minor=number,
        mig=(1, 1),
        profiles=H100_PROFILES,
        instances=[
            Instance(
                uuid_of(100 + number, "MIG"),
                "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
                40_192 << 20,
                1,
                0,
                9,
                4,
                4,
                60,
            ),
            Instance(
                uuid_of(200 + number, "MIG"),
                "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
                9_856 << 20,
                7,
                0,
                19,
                0,
                1,
                16,
            ),
        ],
        # A GPU with active instances reports neither utilization nor row remapping.
        values=_common(
            nvmlDeviceGetUtilizationRates=Err(UNSUPPORTED), nvmlDeviceGetRemappedRows=Err(UNSUPPORTED)
        ),
        fields={pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: 0},
    )
    return _with(gpu, more)


def a100(number: int = 0, **more: Any) -> FakeGpu:
    """An A100: no recovery action (its driver is older), NVLinks to switches."""
    gpu = FakeGpu(
        uuid=uuid_of(number),
        name="NVIDIA A100-SXM4-80GB",
        memory=81_920 << 20,
        bus=f"00000000:{0x07 + 16 * number:02X}:00.0",
        minor=number,
        capability=(8, 0),
        mig=(0, 0),
        values=_common(nvmlDeviceGetMaxPcieLinkGeneration=4),
        fields={pynvml.NVML_FI_DEV_MEMORY_TEMP: 40},
        links=[Link("00000000:C4:00.0", switch=True) for _ in range(12)],
    )
    return _with(gpu, more)


def t4(number: int = 0, **more: Any) -> FakeGpu:
    """A T4: no MIG, no NVLink, no row remapping, but retired pages."""
    gpu = FakeGpu(
        uuid=uuid_of(number),
        name="Tesla T4",
        memory=15_360 << 20,
        bus=f"00000000:{0x3B + 16 * number:02X}:00.0",
        minor=number,
        capability=(7, 5),
        values=_common(
            nvmlDeviceGetMaxPcieLinkGeneration=3,
            nvmlDeviceGetRemappedRows=Err(UNSUPPORTED),
            nvmlDeviceGetRetiredPages={0: [0xDEAD], 1: [0xBEEF, 0xF00D]},
            nvmlDeviceGetRetiredPagesPendingStatus=0,
            nvmlDeviceGetPcieThroughput={0: 1200, 1: 3400},
            nvmlDeviceGetEnforcedPowerLimit=70_000,
            nvmlDeviceGetPowerManagementLimitConstraints=(60_000, 70_000),
        ),
    )
    return _with(gpu, more)


def _with(gpu: FakeGpu, more: dict[str, Any]) -> FakeGpu:
    values = {name: value for name, value in more.items() if name.startswith("nvml")}
    gpu.values.update(values)
    for name, value in more.items():
        if name not in values:
            setattr(gpu, name, value)
    return gpu
