"""Inputs and results shared by all probes."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from provisioning.gpu.check import nccl
from provisioning.gpu.check.blas import Blas
from provisioning.gpu.check.device import MIB, Device, ErrorLog, uuid_text

MASK = 0xFFFFFFFFFFFFFFFF


class Skip(Exception):
    """The test cannot run here; the text says why. A skipped test is not a pass."""


class NotApplicable(Skip):
    """The test is not applicable here, since something it needs is missing. The text names it."""


def unreachable(device: Device) -> tuple[str, str] | None:
    """Return UUIDs of the first two visible devices without peer access, or None."""
    handles = [device.call("cuDeviceGet", ordinal) for ordinal in range(device.count)]
    for pair in permutations(handles, 2):
        if not device.call("cuDeviceCanAccessPeer", *pair):
            first, second = (
                f"GPU-{uuid_text(device.call('cuDeviceGetUuid', handle).bytes)}" for handle in pair
            )
            return first, second
    return None


@dataclass(frozen=True, slots=True)
class Sizes:
    """Working sizes of probes: buffers in bytes, matrix sides in elements."""

    copy_bytes: int
    pcie_bytes: int
    exact_side: int
    exact_depth: int
    rate_side: int
    rate_side_wide: int
    """For fp32 and fp64, whose products take longer."""
    copies: int = 8
    """Passes per timing; even, so that the XOR of all reads is zero."""
    launches: int = 64
    """Maximum products per timing."""
    burn_side: int = 128
    burn_depth: int = 64
    """Size of exact products under full load; the depth is limited by exact sums."""
    queued: int = 1
    """Maximum products between two reads of the error log."""
    function_words: int = 512
    """Arguments of each special function."""
    blocks: int = 0
    """Blocks of tests that run on each SM; 0: 8 for each SM."""
    atomic_operations: int = 4096
    atomic_cells: int = 64
    """Words in global memory that the atomic operations share."""
    joint_products: int = 4
    """Products per timing when all devices are busy; two such chunks are queued ahead."""
    shared_rounds: int = 1
    """Passes over shared memory in one timing."""


def sizes_for(device: Device, level: str) -> Sizes:
    """Return sizes with a working set of at least four L2 caches and products that cover all SMs twice."""
    free, _ = device.memory()
    copy = 256 * MIB
    while copy < 4 * device.l2_bytes or (copy < 2048 * MIB and copy * 8 <= free):
        copy *= 2
    while copy * 3 > free and copy > MIB:
        copy //= 2
    tiles = 1
    while tiles * tiles < 2 * device.sms:
        tiles += 1
    return Sizes(
        copy_bytes=copy,
        pcie_bytes=(256 if level == "quick" else 1024) * MIB,
        exact_side=128 * tiles,
        exact_depth=2048,
        rate_side=8192 if free > 2048 * MIB else 2048,
        rate_side_wide=4096 if free > 2048 * MIB else 2048,
        burn_side=4096 if free > 4096 * MIB else 128 * tiles,
        burn_depth=8192 if free > 4096 * MIB else 2048,
        queued=1 << 20,
        function_words=1 << 16,
        atomic_operations=1 << 22,
        atomic_cells=1 << 12,
        joint_products=64,
        shared_rounds=64,
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """`errors` counts wrong words; None if nothing is compared."""

    errors: int | None = None
    measures: Mapping[str, float] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Bench:
    """A device under test. `beat(done, of)` reports progress; `params` come from the plan.

    `nccl()` returns that library, or None.
    """

    device: Device
    sizes: Sizes
    seed: int
    beat: Callable[[int, int], None]
    blas: Blas | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    nccl: Callable[[], Any | None] = nccl.find

    def seconds(self, default: float) -> float:
        return float(self.params.get("seconds", default))


class Tally:
    """Accumulates error logs."""

    def __init__(self) -> None:
        self.errors = 0
        self.bits = 0
        self.first: int | None = None
        self.samples: list[dict[str, str]] = []
        self.sms: Counter[int] = Counter()

    def add_log(self, log: ErrorLog, name: str, sm_of: Callable[[int], int] | None = None) -> None:
        """Add a log. `sm_of` returns the SM that computed the word at an index, if recorded."""
        if not log.count:
            return
        if sm_of is not None:
            self.sms.update(sm_of(log.index[i]) for i in range(min(log.kept, 16)))
        self.errors += log.count
        self.bits |= log.bits
        self.first = log.first if self.first is None else min(self.first, log.first)
        for i in range(min(log.kept, 16)):
            if len(self.samples) < 16:
                got, want = f"{log.got[i]:016x}", f"{log.want[i]:016x}"
                self.samples.append({"in": name, "index": str(log.index[i]), "got": got, "want": want})

    def add(self, count: int, index: int, name: str, got: str, want: str) -> None:
        """Add errors found on the host."""
        self.errors += count
        self.first = index if self.first is None else min(self.first, index)
        if len(self.samples) < 16:
            self.samples.append({"in": name, "index": str(index), "got": got, "want": want})

    def join(self, other: Tally) -> None:
        """Add the errors of another tally."""
        self.errors += other.errors
        self.bits |= other.bits
        if other.first is not None:
            self.first = other.first if self.first is None else min(self.first, other.first)
        self.samples += other.samples[: 16 - len(self.samples)]
        self.sms += other.sms

    def detail(self) -> dict[str, Any]:
        """Return details for the report. Patterns are the check's own, so they are not confidential."""
        if not self.errors:
            return {}
        details = {
            "first_index": str(self.first),
            "wrong_bits": f"{self.bits:016x}",
            "mismatches": self.samples,
        }
        return details | (
            {"sms": {str(sm): count for sm, count in self.sms.most_common()}} if self.sms else {}
        )


def rate_of(name: str, values: list[float]) -> dict[str, float]:
    """Return the median and median absolute deviation."""
    middle = statistics.median(values)
    spread = statistics.median(abs(v - middle) for v in values)
    return {name: round(middle, 3), f"{name}_mad": round(spread, 3)}


def until(seconds: float) -> Callable[[], bool]:
    """Return a function that is true while time is left."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end
