"""Clear the memory of a GPU or MIG instance and prove it before the next tenant.

CUDA does not guarantee zeroed memory. With no other process on the device, a scrub allocates all free memory
in chunks that halve down to 2 MiB. It counts nonzero words (never reading their contents out), clears them,
and proves the result with an OR over all words. Memory that could not be allocated is unproven, so coverage
is part of the verdict. So is memory missing against the last clean scrub.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from provisioning.gpu.check.thresholds import LEAK_MIB

MIB = 1 << 20
CHUNK_MIN = 2 * MIB
COVERAGE_PER_MILLE = 980
BASELINE_SLACK_MIB = LEAK_MIB
"""Tolerance for variations of the driver's own memory use."""
FIRST_TIME_PER_MILLE = 850
"""Without a baseline, at least this much memory must be free; a context uses the rest."""


class ScrubVerdict(StrEnum):
    """Result of a scrub. The device is only given to another workspace if it is `clean`."""

    CLEAN = "clean"
    FAILED = "failed"
    LEAK = "leak"
    BUSY = "busy"
    INCONCLUSIVE = "inconclusive"
    UNAVAILABLE = "unavailable"
    HUNG = "hung"


class OutOfMemory(Exception):
    """The device has no free chunk of this size."""


class DeviceFault(Exception):
    """A call failed because of the device."""


class ScrubCallFailed(Exception):
    """A call failed for a reason unrelated to the device."""


class Gpu(Protocol):
    """The CUDA operations that scrubbing needs. Sizes are in bytes, addresses on the device.

    Any call may raise `DeviceFault` or `ScrubCallFailed`, and `alloc` also `OutOfMemory`. The counting calls
    synchronise with the device.
    """

    def memory(self) -> tuple[int, int]:
        """Return (free, total)."""

    def alloc(self, size: int) -> int: ...

    def free(self, address: int) -> None: ...

    def clear(self, address: int, size: int) -> None: ...

    def count_nonzero(self, chunks: Sequence[tuple[int, int]]) -> int:
        """Return the number of nonzero 64-bit words in the (address, size) chunks."""

    def or_reduce(self, chunks: Sequence[tuple[int, int]]) -> int:
        """Return the OR of all their 64-bit words."""


@dataclass(frozen=True, slots=True)
class ScrubResult:
    """Result of a scrub. `text` is a sentence, with the next action if there is one.

    `residue_words` were nonzero before clearing, `left_words` after it (0 unless the memory is broken); None
    if that step was not reached. `free_mib` is the free memory of the device, which becomes the baseline if
    `ok`. A simulated scrub is never `ok`.
    """

    uuid: str
    verdict: ScrubVerdict
    text: str
    free_mib: int = 0
    total_mib: int = 0
    scrubbed_mib: int = 0
    coverage_per_mille: int = 0
    residue_words: int | None = None
    left_words: int | None = None
    baseline_mib: int | None = None
    duration_ms: int = 0
    library: str = ""
    simulated: bool = False

    @property
    def ok(self) -> bool:
        return self.verdict is ScrubVerdict.CLEAN and not self.simulated


def allocate_by_halving(free_bytes: int, take: Callable[[int], bool]) -> int:
    """Allocate chunks, the largest first, halving when `take` refuses; return the allocated bytes.

    Chunks are powers of two down to `CHUNK_MIN`. Never requests more than `free_bytes`, so it ends even if
    `take` always succeeds.
    """
    size, allocated = CHUNK_MIN, 0
    while size * 2 <= free_bytes:
        size *= 2
    while size >= CHUNK_MIN:
        if allocated + size <= free_bytes and take(size):
            allocated += size
        else:
            size //= 2
    return allocated


def scrub(
    gpu: Gpu,
    *,
    uuid: str,
    others: Callable[[], int | None],
    baseline_mib: int | None = None,
    progress: Callable[[str], object] = str,
) -> ScrubResult:
    """Scrub the device. Never raises errors of `Gpu`, and frees all its memory.

    `others` returns the number of other processes on the device, None if unknown. `baseline_mib` is
    `free_mib` of the last clean scrub with the same driver. `progress` is called with each stage.
    """
    if count := others():
        return _busy_result(uuid, count)
    chunks: list[tuple[int, int]] = []
    free = total = 0
    residue: int | None = None
    left: int | None = None
    error: Exception | None = None
    try:
        free, total = gpu.memory()

        def take(size: int) -> bool:
            try:
                chunks.append((gpu.alloc(size), size))
            except OutOfMemory:
                return False
            return True

        progress("take")
        allocate_by_halving(free, take)
        progress("count")
        residue = gpu.count_nonzero(chunks)
        progress("clear")
        for address, size in chunks:
            gpu.clear(address, size)
        progress("verify")
        left = gpu.count_nonzero(chunks) if gpu.or_reduce(chunks) else 0
    except (DeviceFault, ScrubCallFailed, OutOfMemory) as problem:
        error = problem
    present = others()
    for address, _ in chunks:
        try:
            gpu.free(address)
        except (DeviceFault, ScrubCallFailed) as problem:
            error = error or problem
    scrubbed = sum(size for _, size in chunks)
    verdict, text = judge(
        free=free,
        total=total,
        scrubbed=scrubbed,
        left=left,
        others=present,
        baseline_mib=baseline_mib,
        error=error,
    )
    return ScrubResult(
        uuid=uuid,
        verdict=verdict,
        text=text,
        free_mib=free // MIB,
        total_mib=total // MIB,
        scrubbed_mib=scrubbed // MIB,
        coverage_per_mille=scrubbed * 1000 // free if free else 0,
        residue_words=residue,
        left_words=left,
        baseline_mib=baseline_mib,
    )


def judge(
    *,
    free: int,
    total: int,
    scrubbed: int,
    left: int | None,
    others: int | None,
    baseline_mib: int | None,
    error: Exception | None,
) -> tuple[ScrubVerdict, str]:
    """Return the verdict and a sentence from observations in bytes. Unproven is never `clean`.

    A baseline above the total was measured in another ECC mode, which reserves memory, and does not apply.
    """
    if baseline_mib is not None and baseline_mib > total // MIB:
        baseline_mib = None
    if left:
        return ScrubVerdict.FAILED, (
            f"{left} memory words are not zero after clearing. Cordon this GPU, then check it."
        )
    if isinstance(error, DeviceFault):
        return ScrubVerdict.FAILED, f"The GPU failed ({error}). Cordon this GPU, then check it."
    if error is not None or left is None:
        reason = f" ({error})" if error is not None else ""
        return ScrubVerdict.INCONCLUSIVE, f"The scrub did not complete{reason}. Scrub this GPU again."
    if others is None:
        return ScrubVerdict.INCONCLUSIVE, (
            "The driver does not list the processes on the GPU. Allow the node worker to see processes."
        )
    if others:
        return ScrubVerdict.INCONCLUSIVE, (
            f"{others} other {'process' if others == 1 else 'processes'} used this GPU during the scrub. "
            "Stop all work on this GPU, then scrub it again."
        )
    if baseline_mib is not None and free // MIB + BASELINE_SLACK_MIB < baseline_mib:
        return ScrubVerdict.LEAK, (
            f"{baseline_mib - free // MIB} MiB of memory are missing although no process uses this GPU. "
            "Reset this GPU."
        )
    if not free or scrubbed * 1000 < free * COVERAGE_PER_MILLE:
        return ScrubVerdict.INCONCLUSIVE, (
            f"Only {scrubbed // MIB} of {free // MIB} MiB were scrubbed. "
            "Check whether another program uses memory, then scrub this GPU again."
        )
    if baseline_mib is None and free * 1000 < total * FIRST_TIME_PER_MILLE:
        return ScrubVerdict.INCONCLUSIVE, (
            f"Only {free // MIB} of {total // MIB} MiB are free, and there is no earlier figure to compare. "
            "Reset this GPU, then scrub it again."
        )
    return ScrubVerdict.CLEAN, "All free memory was cleared and verified."


def _busy_result(uuid: str, count: int) -> ScrubResult:
    return ScrubResult(
        uuid,
        ScrubVerdict.BUSY,
        f"{count} {'process uses' if count == 1 else 'processes use'} this GPU, so it was not scrubbed. "
        "Stop all work on this GPU, then scrub it again.",
    )
