"""The words of a GPU check. Everything here is plain data that becomes JSON without help."""

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
    """How one test ended. `MEASURED`: a figure without a floor to hold it against."""

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
    """What brings a device back, weakest first."""

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
class Meeting:
    """Where the two ends of a check of the link between two nodes find each other, as both are told.

    Rank 0 listens at `address` and `port`, rank 1 comes there. `partner` is what the other node is called.
    `transport`: `rdma`, or `socket`, which never stands in for the former by itself. `port_gb_s`: what the
    slowest of the ports in question carries, GB/s; 0 where nobody knows.
    """

    rank: int
    address: str
    port: int
    partner: str = ""
    transport: str = "rdma"
    port_gb_s: float = 0.0

    @property
    def place(self) -> str:
        """`address:port`, as NCCL takes it."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something the check holds against a device, or wants known. `action` is for `severity` above info."""

    code: str
    severity: Severity
    text: str
    action: Action = Action.NONE


@dataclass(frozen=True, slots=True)
class Facts:
    """What NVML says about the device under test; None: not told."""

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
    links: Mapping[str, int] = field(default_factory=dict)
    """Active NVLinks to each peer named for the check, by its UUID."""


@dataclass(frozen=True, slots=True)
class Raw:
    """What the child says about one test. It measures; it never judges.

    `state`: `done`, `skipped` (with `reason`), `absent` (likewise; it is then required of nobody), `error` (a
    CUDA call failed: `error` names it), `hung`.
    `errors` counts wrong words; None where the test compares nothing.
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
    """One measured value against its floor. `against`: datasheet, baseline, node_median, link, none.

    `advisory`: nothing can be held against this value here (a shared link, a vGPU), so that it is not judged
    takes nothing from the test. Otherwise an unjudged value leaves its test undecided.
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


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test of the plan, judged."""

    __test__ = False  # not a test class for pytest

    name: str
    status: Status
    required: bool
    text: str
    duration_ms: int = 0
    errors: int | None = None
    judgements: tuple[Judgement, ...] = ()
    measures: Mapping[str, float] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of a running check, for whoever watches it. `phase`: prepare, start, beat, result, end."""

    phase: str
    test: str = ""
    done: int = 0
    total: int = 0
    elapsed_ms: int = 0
    text: str = ""
