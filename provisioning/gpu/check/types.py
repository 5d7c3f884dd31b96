"""Types of a GPU check. All are plain data that serialises to JSON directly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    QUICK = "quick"
    STANDARD = "standard"
    EXTENDED = "extended"


class Verdict(StrEnum):
    PASS = "pass"  # noqa: S105
    DEGRADED = "degraded"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    HUNG = "hung"


class Status(StrEnum):
    """Result of one test or judgement. `MEASURED`, of judgements: a value without a floor."""

    PASSED = "passed"
    WARNED = "warned"
    FAILED = "failed"
    MEASURED = "measured"
    SKIPPED = "skipped"
    HUNG = "hung"


class Severity(StrEnum):
    INFO = "info"
    DEGRADED = "degraded"
    INCONCLUSIVE = "inconclusive"
    FAIL = "fail"
    HUNG = "hung"


class Action(StrEnum):
    """Remedies for a device, weakest first."""

    NONE = "none"
    RETRY = "retry"
    INSPECT = "inspect"
    RESET = "reset"
    DRAIN_AND_RESET = "drain_and_reset"
    REBOOT = "reboot"
    REPLACE = "replace"


EXIT_CODES: Mapping[Verdict, int] = {
    Verdict.PASS: 0,
    Verdict.DEGRADED: 1,
    Verdict.FAIL: 2,
    Verdict.INCONCLUSIVE: 3,
    Verdict.HUNG: 5,
}
EXIT_UNAVAILABLE = 4
EXIT_USAGE = 64


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Rendezvous of the two ends of a link check, passed to both.

    Rank 0 listens at `address` and `port`, rank 1 connects. `partner` is the other node's name. `transport`
    is `rdma` or `socket`, without automatic fallback. `port_gb_s` is the bandwidth of the slowest port in
    GB/s; 0 if unknown.
    """

    rank: int
    address: str
    port: int
    partner: str = ""
    transport: str = "rdma"
    port_gb_s: float = 0.0

    @property
    def address_text(self) -> str:
        """`address:port` in NCCL's format."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a device or a note. `action` applies to `severity` above info."""

    code: str
    severity: Severity
    text: str
    action: Action = Action.NONE


@dataclass(frozen=True, slots=True)
class Facts:
    """NVML's facts about the device under test; None if unavailable."""

    uuid: str
    name: str = ""
    sms: int | None = None
    memory_mib: int | None = None
    memory_slices: int | None = None
    mig: bool = False
    vgpu: bool = False
    parent_uuid: str = ""
    driver_version: str = ""
    cuda_version: str = ""
    pcie_max_gen: int | None = None
    pcie_max_width: int | None = None
    compute_capability: tuple[int, int] | None = None
    ecc: bool | None = None
    confidential: bool = False
    """Confidential computing is on: transfers are encrypted."""
    numa_hidden: bool = False
    """This is a virtual machine that does not show the NUMA node of the device."""
    links: Mapping[str, int] = field(default_factory=dict)
    """Active NVLinks to each peer of the check, by UUID."""


@dataclass(frozen=True, slots=True)
class Raw:
    """Raw result of one test from the child, which measures but never judges.

    `state`: `done`, `skipped` (with `reason`), `absent` (with `reason`; never required), `error` (a CUDA call
    failed, named in `error`) or `hung`. `errors` counts wrong words; None if the test compares nothing.
    """

    test: str
    state: str
    errors: int | None = None
    measures: Mapping[str, float] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    error: str = ""
    device_fault: bool = False
    duration_ms: int = 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """A measured value compared with its floor. `against`: datasheet, baseline, node_median, link, alone,
    none.

    `advisory`: the value cannot be judged here (a shared link, a vGPU), which does not affect the test. Any
    other unjudged value is a warning.
    """

    metric: str
    value: float
    unit: str
    status: Status
    fail_below: float | None = None
    warn_below: float | None = None
    against: str = "none"
    text: str = ""
    advisory: bool = False

    @property
    def open(self) -> bool:
        """Whether the value should have been judged, but has no floor."""
        return self.status == Status.MEASURED and not self.advisory


@dataclass(frozen=True, slots=True)
class TestResult:
    """One judged test of the plan."""

    __test__ = False  # not a pytest class

    name: str
    status: Status
    required: bool
    text: str
    duration_ms: int = 0
    errors: int | None = None
    judgements: tuple[Judgement, ...] = ()
    measures: Mapping[str, float] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def unjudged(self) -> bool:
        """Whether only values without a floor keep this test from a pass."""
        low = any(j.status in (Status.WARNED, Status.FAILED) for j in self.judgements)
        return self.status == Status.WARNED and not low and any(j.open for j in self.judgements)


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress event of a running check. `phase`: prepare, start, beat, result, end."""

    phase: str
    test: str = ""
    done: int = 0
    total: int = 0
    elapsed_ms: int = 0
    text: str = ""
