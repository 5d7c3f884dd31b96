"""What every probe is given, and what it gives back."""

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


class Absent(Skip):
    """Nothing is wrong, and nobody could have run it here: what it needs is not there. The text says what."""


def unreachable(device: Device) -> tuple[str, str] | None:
    """The first two visible devices of which one cannot reach the other's memory, by UUID; None: all can."""
    handles = [device.call("cuDeviceGet", ordinal) for ordinal in range(device.count)]
    for pair in permutations(handles, 2):
        if not device.call("cuDeviceCanAccessPeer", *pair):
            here, there = (f"GPU-{uuid_text(device.call('cuDeviceGetUuid', each).bytes)}" for each in pair)
            return here, there
    return None


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much a probe works on. Bytes for one buffer; matrix sides in elements."""

    copy_bytes: int
    pcie_bytes: int
    exact_side: int
    exact_depth: int
    rate_side: int
    rate_side_wide: int
    """For fp32 and fp64, whose products take longer."""
    copies: int = 8
    """Passes in one timing; even, so that the XOR of all that was read is nothing."""
    launches: int = 64
    """Most products in one timing."""
    burn_side: int = 128
    burn_depth: int = 64
    """Of exact products under full load; the depth is as far as sums stay exact."""
    queued: int = 1
    """Most products between two looks at the error log."""


def sizes_for(device: Device, level: str) -> Sizes:
    """The working set is at least four times the L2 cache; products cover all multiprocessors twice."""
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
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """`errors` counts wrong words; None where nothing is compared."""

    errors: int | None = None
    measures: Mapping[str, float] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Bench:
    """A device under test. `beat(done, of)` tells that work goes on; `params` come from the plan.

    `nccl()` gives that library, or None.
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
    """Adds up what several error logs say."""

    def __init__(self) -> None:
        self.errors = 0
        self.bits = 0
        self.first: int | None = None
        self.samples: list[dict[str, str]] = []
        self.sms: Counter[int] = Counter()

    def take(self, log: ErrorLog, what: str, sm_of: Callable[[int], int] | None = None) -> None:
        """`sm_of`: which multiprocessor has made the word of an index, where that was written down."""
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
                self.samples.append({"in": what, "index": str(log.index[i]), "got": got, "want": want})

    def add(self, count: int, index: int, what: str, got: str, want: str) -> None:
        """Errors that were found on the host."""
        self.errors += count
        self.first = index if self.first is None else min(self.first, index)
        if len(self.samples) < 16:
            self.samples.append({"in": what, "index": str(index), "got": got, "want": want})

    def join(self, other: Tally) -> None:
        """What another one has found is of this one, too."""
        self.errors += other.errors
        self.bits |= other.bits
        if other.first is not None:
            self.first = other.first if self.first is None else min(self.first, other.first)
        self.samples += other.samples[: 16 - len(self.samples)]
        self.sms += other.sms

    def detail(self) -> dict[str, Any]:
        """For the report. The patterns are the check's own, so they may be shown."""
        if not self.errors:
            return {}
        found = {
            "first_index": str(self.first),
            "wrong_bits": f"{self.bits:016x}",
            "mismatches": self.samples,
        }
        return found | ({"sms": {str(sm): count for sm, count in self.sms.most_common()}} if self.sms else {})


def rate_of(name: str, values: list[float]) -> dict[str, float]:
    """Median and median absolute deviation."""
    middle = statistics.median(values)
    spread = statistics.median(abs(v - middle) for v in values)
    return {name: round(middle, 3), f"{name}_mad": round(spread, 3)}


def until(seconds: float) -> Callable[[], bool]:
    """True as long as there is time left."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end
