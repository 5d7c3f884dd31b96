"""All-reduce over this device and its peers with NCCL: every word is checked, then speed is measured.

A wrong sum is detected, but not always which of the ranks caused it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from provisioning.gpu.check.device import MIB, CudaError, Device, u64, uuid_text
from provisioning.gpu.check.device import ptr as p
from provisioning.gpu.check.nccl import Nccl, NcclError
from provisioning.gpu.check.probes.base import (
    Bench,
    NotApplicable,
    Outcome,
    Skip,
    Tally,
    rate_of,
    unreachable,
)

# Test values add up exactly for at most this many.
MAX_RANKS = 16
BYTES = 256 * MIB
TIMINGS = 10
SUMS = 4
"""Per timing."""
INSTALL = "NCCL is not installed on this node. Install the `gpu-nccl` extra: pip install 'berth[gpu-nccl]'."


class PeerFailed(Exception):
    """A call failed on a peer, which says nothing about the device under test."""


@dataclass(slots=True)
class Rank:
    """One device with its input (`operand`) and its result (`sum`), `size` bytes each."""

    device: Device
    operand: int = 0
    sum: int = 0
    comm: int = 0

    @property
    def name(self) -> str:
        return f"GPU-{self.device.uuid}"


@dataclass(frozen=True, slots=True)
class Kind:
    """`pair` is a kernel parameter. Whole words cover every bit; FP32 is summed as in training."""

    dtype: str
    size: int
    pair: int


KINDS = (Kind("uint64", 8, 0), Kind("fp32", 4, 1))


def all_reduce(bench: Bench) -> Outcome:
    """Check the all-reduce of all ranks in whole words and FP32; measure its bus bandwidth in GB/s.

    The bandwidth is that of nccl-tests: 2 (n - 1) / n times bytes over time. The metric's name includes the
    number of ranks and the library's version, since it is comparable only with the same.
    """
    device = bench.device
    if device.count < 2:
        raise Skip("No peer GPU is visible.")
    if device.count > MAX_RANKS:
        raise Skip(f"The test supports up to {MAX_RANKS} devices.")
    if (ends := unreachable(device)) is not None:
        raise NotApplicable(f"{ends[0]} has no peer access to {ends[1]}.")
    library = bench.nccl()
    if library is None:
        raise NotApplicable(INSTALL)
    nccl = Nccl(library)
    size = min(BYTES, bench.sizes.copy_bytes // 2)
    with ExitStack() as stack:
        ranks = [Rank(device), *(stack.enter_context(_peer(bench, n)) for n in range(1, device.count))]
        for rank in ranks:
            stack.enter_context(_buffers(ranks[0], rank, size))
        try:
            stack.enter_context(_communicators(nccl, ranks))
            outcome = _measured(bench, nccl, ranks, size)
        except NcclError:
            # If the device itself is the cause, this raises its error.
            device.sync()
            raise
    return outcome


def _measured(bench: Bench, nccl: Nccl, ranks: Sequence[Rank], size: int) -> Outcome:
    tally, wrong, n = Tally(), dict.fromkeys((rank.name for rank in ranks), 0), len(ranks)
    values: list[float] = []
    for kind in KINDS:
        for place, rank in enumerate(ranks):
            with _on(ranks[0], rank):
                _fill(bench, rank, size, place, kind)
        _sync(nccl, ranks)
        _queue(nccl, ranks, size, kind, 1)
        _sync(nccl, ranks)
        if kind is KINDS[-1]:
            values = _speed(bench, nccl, ranks, size, kind)
        for rank in ranks:
            with _on(ranks[0], rank):
                before = tally.errors
                _compare(bench, rank, size, n, kind, tally)
                wrong[rank.name] += tally.errors - before
    version = nccl.version.removeprefix("nccl ")
    return Outcome(
        errors=tally.errors,
        measures={
            f"all_reduce_bus_gb_s:{n}:{version}": rate_of("x", values)["x"],
            "ranks": n,
            "buffer_mib": size / MIB,
        },
        detail=tally.detail() | {"nccl": nccl.version, "wrong_words_by_rank": wrong},
    )


def _fill(bench: Bench, rank: Rank, size: int, place: int, kind: Kind) -> None:
    device, words = rank.device, u64(size // 8)
    device.launch("memory", "fill_part", p(rank.operand), words, u64(bench.seed), u64(place), u64(kind.pair))


def _compare(bench: Bench, rank: Rank, size: int, n: int, kind: Kind, tally: Tally) -> None:
    device, log = rank.device, rank.device.fresh_log()
    device.launch(
        "memory", "check_sum", p(rank.sum), u64(size // 8), u64(bench.seed), u64(n), u64(kind.pair), log
    )  # fmt: skip
    tally.add_log(device.log(), f"{kind.dtype} on {rank.name}")


def _queue(nccl: Nccl, ranks: Sequence[Rank], size: int, kind: Kind, times: int) -> None:
    for _ in range(times):
        with nccl.group():
            for rank in ranks:
                count, stream = size // kind.size, int(rank.device.stream)
                nccl.all_reduce(rank.comm, rank.operand, rank.sum, count, kind.dtype, stream)
    _back(ranks[0])


def _sync(nccl: Nccl, ranks: Sequence[Rank]) -> None:
    """Wait for all ranks. Raises asynchronous errors of the library."""
    for rank in ranks:
        with _on(ranks[0], rank):
            rank.device.sync()
        nccl.check(rank.comm)


def _speed(bench: Bench, nccl: Nccl, ranks: Sequence[Rank], size: int, kind: Kind) -> list[float]:
    """Return bus bandwidths in GB/s, timed by the device under test."""
    n = len(ranks)
    moved = 2 * (n - 1) / n * size * SUMS

    def work() -> None:
        _queue(nccl, ranks, size, kind, SUMS)

    work()
    _sync(nccl, ranks)
    values = []
    for done in range(TIMINGS):
        values.append(moved / _timed(bench.device, work) / 1e6)
        _sync(nccl, ranks)
        bench.beat(done + 1, TIMINGS)
    return values


def _timed(device: Device, work: Callable[[], None]) -> float:
    """Return the time in ms including queueing; a gate would block one rank that others wait for."""
    start, end = device.call("cuEventCreate", 0), device.call("cuEventCreate", 0)
    try:
        device.call("cuEventRecord", start, device.stream)
        work()
        device.call("cuEventRecord", end, device.stream)
        device.call("cuEventSynchronize", end)
        return float(device.call("cuEventElapsedTime", start, end))
    finally:
        device.call("cuEventDestroy", start)
        device.call("cuEventDestroy", end)


# --- devices ---
def _back(first: Rank) -> None:
    """Restore the context of the first rank, which the library may have changed."""
    first.device.make_current()


@contextmanager
def _on(first: Rank, rank: Rank) -> Iterator[None]:
    """Make calls in the block for `rank`. Raises `PeerFailed` for errors of another device."""
    try:
        rank.device.make_current()
        yield
    except CudaError as error:
        if rank.device is first.device:
            raise
        raise PeerFailed(f"{rank.name}: {error}") from error
    finally:
        _back(first)


@contextmanager
def _peer(bench: Bench, ordinal: int) -> Iterator[Rank]:
    """Yield another visible device with its kernels loaded; everything on it is released at the end."""
    device = bench.device
    handle = device.call("cuDeviceGet", ordinal)
    try:
        try:
            other = device.peer(ordinal)
        except CudaError as error:
            name = uuid_text(device.call("cuDeviceGetUuid", handle).bytes)
            raise PeerFailed(f"GPU-{name}: {error}") from error
        finally:
            device.make_current()
        try:
            with _on(Rank(device), Rank(other)):
                other.load(("memory",))
            yield Rank(other)
        finally:
            other.close()
    finally:
        # The library's runtime also holds the context, for the process's lifetime.
        with suppress(CudaError):
            device.call("cuDevicePrimaryCtxReset", handle)
        device.make_current()


@contextmanager
def _buffers(first: Rank, rank: Rank, size: int) -> Iterator[None]:
    with ExitStack() as stack:
        with _on(first, rank):
            rank.operand, rank.sum = stack.enter_context(rank.device.buffers(size, size))
        yield


@contextmanager
def _communicators(nccl: Nccl, ranks: Sequence[Rank]) -> Iterator[None]:
    """Create all ranks in this process. They are freed together, since each may wait for the others."""
    try:
        for rank, comm in zip(ranks, nccl.ranks(range(len(ranks))), strict=True):
            rank.comm = comm
        _back(ranks[0])
        yield
    except BaseException:
        with suppress(NcclError), nccl.group():
            for rank in ranks:
                if rank.comm:
                    nccl.abort(rank.comm)
        raise
    finally:
        _back(ranks[0])
    with nccl.group():
        for rank in ranks:
            nccl.close(rank.comm)
    _back(ranks[0])
