"""Test the link between GPUs of two nodes: all-reduce with NCCL, compared bit by bit, and its speed.

One link does not show which of its ends is faulty. So failures here do not count against this device, unless
the driver reports them for it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from provisioning.gpu.check import nccl
from provisioning.gpu.check.device import MIB, CudaError, u64
from provisioning.gpu.check.device import ptr as p
from provisioning.gpu.check.probes.base import Bench, Outcome, Skip, Tally, rate_of

T = TypeVar("T")

RANKS = 2
POLL_INTERVAL_S = 1.0
LEAVE_S = 10.0
BYTES = 256 * MIB
"""The same at both ends, regardless of the devices."""
BATCHES, IN_A_BATCH = 5, 8
ROUNDS = 3 + 1 + BATCHES
SEED = 0x2545F4914F6CDD1D
ONES = 0xFFFFFFFFFFFFFFFF
DEVICE_ERRORS = frozenset({
    "CUDA_ERROR_ECC_UNCORRECTABLE", "CUDA_ERROR_NVLINK_UNCORRECTABLE", "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_CONTAINED",
})  # fmt: skip
"""Errors that data from the other end cannot have caused."""


class _CallTimedOut(Exception):
    """A call did not return in time."""


class _CallThread:
    """A thread for calls that wait for the other end, possibly forever. It ends with the process."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._run_calls, name="two-nodes", daemon=True).start()

    def _run_calls(self) -> None:
        while True:
            work = self._work.get()
            try:
                self._done.put((True, work()))
            except BaseException as error:  # passed to the caller
                self._done.put((False, error))

    def call(self, work: Callable[[], T], seconds: float, check: Callable[[], None] | None = None) -> T:
        """Return or raise the result of `work`. Raises `_CallTimedOut` after `seconds`.

        `check` is called while waiting; its errors are raised too. After an exception no further calls are
        possible.
        """
        self._work.put(work)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                fine, value = self._done.get(timeout=min(left, POLL_INTERVAL_S))
            except queue.Empty:
                if check is not None:
                    check()
                continue
            if not fine:
                raise value
            if check is not None:
                # A broken connection may have left an invalid sum.
                check()
            result: T = value
            return result
        raise _CallTimedOut


@dataclass(frozen=True, slots=True)
class _WatchedCalls:
    """Calls that wait for the other end; `check` raises errors of the connection."""

    watched: _CallThread
    check: Callable[[], None]
    seconds: float

    def call(self, work: Callable[[], T]) -> T:
        """Call as `_CallThread.call` does, and raise errors of `check`."""
        return self.watched.call(work, self.seconds, self.check)

    def leave(self, work: Callable[[], None]) -> None:
        """Let the library finish communication that the other end waits for; the last call.

        All results are known by then, so errors are ignored.
        """
        with suppress(_CallTimedOut, nccl.NcclError, CudaError):
            self.watched.call(work, LEAVE_S)


def two_nodes(bench: Bench) -> Outcome:
    """Run three all-reduces, each compared on both nodes, and measure their speed.

    First only rank 0 contributes, then only rank 1: all words differ and must cross the link to the right
    place. Then both contribute, so that every bit is set by exactly one node.
    """
    partner = str(bench.params.get("partner") or "the other node")
    meet_s, silent_s = float(bench.params["meet_s"]), float(bench.params["silent_s"])
    watched = _CallThread()
    try:
        group, comm = watched.call(lambda: _connect(bench, meet_s), meet_s)
    except _CallTimedOut:
        raise Skip(
            f"Could not connect to {partner} at {_meeting_address(bench)} within {meet_s:.0f} s."
        ) from None
    except nccl.NcclError as error:
        raise Skip(f"Could not connect to {partner} at {_meeting_address(bench)}: {error}.") from error
    bench.beat(0, ROUNDS)
    try:
        return _run_sums(bench, group, comm, _WatchedCalls(watched, lambda: group.check(comm), silent_s))
    except _CallTimedOut:
        raise Skip(f"Lost contact with {partner}: no sum completed within {silent_s:.0f} s.") from None
    except nccl.NcclError as error:
        raise Skip(f"Lost the connection to {partner}: {error}.") from error
    except CudaError as error:
        if error.name in DEVICE_ERRORS:
            raise
        raise Skip(f"A sum with {partner} failed: {error}.") from error


def _meeting_address(bench: Bench) -> str:
    return f"{bench.params['address']}, port {bench.params['port']}"


def _connect(bench: Bench, seconds: float) -> tuple[nccl.Nccl, int]:
    """Connect to the other node. Rank 1 retries until rank 0 listens."""
    library, device = bench.nccl(), bench.device
    if library is None:
        raise Skip("NCCL (libnccl.so.2) is not installed on this node. Install the `gpu-nccl` extra.")
    rank = int(bench.params["rank"])
    device.call("cuCtxSetCurrent", device.context)
    until = time.monotonic() + seconds
    while True:
        try:
            group = nccl.Nccl(library)
            return group, group.rank(RANKS, rank, group.unique_id())
        except nccl.NcclError:
            if rank == 0 or time.monotonic() >= until:
                raise
            time.sleep(1.0)


def _run_sums(bench: Bench, group: nccl.Nccl, comm: int, watched: _WatchedCalls) -> Outcome:
    device, rank, tally = bench.device, int(bench.params["rank"]), Tally()
    size = min(BYTES, bench.sizes.copy_bytes)
    words = size // 8
    # Never freed, since that could wait for the other end; the process ends anyway.
    source, target = device.alloc(size), device.alloc(size)

    def total() -> None:
        group.all_reduce(comm, source, target, words, "uint64", int(device.stream))

    def fill(contributor: int | None) -> None:
        """Fill the buffers: only rank `contributor` contributes words; None: both do, and they add up."""
        if contributor is None:
            flip = 0 if rank == 0 else ONES
            device.launch("memory", "fill_mix", p(source), u64(words), u64(0), u64(SEED), u64(flip))
        elif rank == contributor:
            device.launch(
                "memory", "fill_mix", p(source), u64(words), u64(0), u64(SEED + contributor), u64(0)
            )
        else:
            device.clear(source, size)

    def compare(contributor: int | None, label: str) -> None:
        log = device.fresh_log()
        if contributor is None:
            device.launch("memory", "check_word", p(target), u64(words), u64(0), u64(ONES), log)
        else:
            device.launch(
                "memory", "check_mix", p(target), u64(words), u64(0), u64(SEED + contributor), u64(0), log
            )
        tally.add_log(device.log(), label)

    def one_sum(contributor: int | None, label: str) -> None:
        fill(contributor)
        device.clear(target, size)
        total()
        compare(contributor, label)

    def batch() -> float:
        begun = time.perf_counter()
        for _ in range(IN_A_BATCH):
            total()
        device.sync()
        # With two ranks, 2 (n - 1) / n is one, so each direction of the link carries the data once.
        return size * IN_A_BATCH / (time.perf_counter() - begun) / 1e9

    for done, (of, label) in enumerate(((0, "words of rank 0"), (1, "words of rank 1"), (None, "the sum"))):
        watched.call(lambda of=of, label=label: one_sum(of, label))  # type: ignore[misc]
        bench.beat(done + 1, ROUNDS)
    watched.call(batch)
    values = []
    for done in range(BATCHES):
        values.append(watched.call(batch))
        bench.beat(5 + done, ROUNDS)
    watched.call(lambda: compare(None, "repeated sums"))
    watched.leave(lambda: group.close(comm))
    return Outcome(
        errors=tally.errors,
        measures={**rate_of("between_nodes_gb_s", values), "buffer_mib": size / MIB},
        detail={
            **tally.detail(),
            "transport": str(bench.params["transport"]),
            "nccl": group.version,
            "rank": str(rank),
        },
    )
