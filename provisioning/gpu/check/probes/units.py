"""Units beside the matrix products: special functions, atomic operations, shared memory and caches.

Every result is known to the bit or within a bound, and each test ends with a canary: one flipped bit must be
reported at its index. Values that differ between multiprocessors name them in `detail.sms`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from provisioning.gpu.check.device import ErrorLog, u32, u64
from provisioning.gpu.check.device import ptr as p
from provisioning.gpu.check.probes.base import MASK, Bench, Outcome, Tally, rate_of
from provisioning.gpu.check.probes.exact_functions import FUNCTIONS, outside

# As in atomics.cu, in its order.
OPERATIONS = (
    "add 64", "add 32", "min 64", "max 64", "min 32", "max 32", "and 64", "or 64", "xor 64", "cas 64",
    "cas 32", "add fp32", "add fp64",
)  # fmt: skip
# Threads in a row on one cell: each on its own, and a whole warp on one.
GROUPS = (1, 32)
SHARED_CELLS = 256
SHARED_WORDS = 6144
"""Words of shared memory of a block, as in cache.cu: 48 KiB."""
ORDERS = 8
L1_WINDOW = 2048
"""Words of L1 that a block reads: 16 KiB, so that those of several blocks fit."""
TIMES = 5


class _Blocks:
    """Words in which the blocks of a launch record their SM."""

    def __init__(self, bench: Bench, where: int, blocks: int) -> None:
        self.bench, self.where, self.blocks = bench, where, blocks

    def sm_of(self, per_block: int) -> Callable[[int], int]:
        """Return a function from an index, of `per_block` values of each block, to the SM."""
        counts = (ctypes.c_uint32 * self.blocks)()
        self.bench.device.read(counts, self.where)
        return lambda index: int(counts[min(index // per_block, self.blocks - 1)])

    def take(self, tally: Tally, label: str, per_block: int) -> ErrorLog:
        log = self.bench.device.log()
        tally.add_log(log, label, self.sm_of(per_block) if log.count else None)
        return log


def _planted(bench: Bench, words: int) -> tuple[int, int]:
    """Return the index and bit of a canary."""
    return bench.seed % words, bench.seed // words % 64


def _found(log: ErrorLog, index: int, bit: int) -> bool:
    return (log.count, log.first, log.bits) == (1, index, 1 << bit)


def _flip(bench: Bench, address: int, index: int, bit: int) -> None:
    bench.device.launch("memory", "flip_bit", p(address), u64(index), u64(bit), grid=(1, 1), threads=1)


def _outcome(tally: Tally, missed: list[str], measures: dict[str, float]) -> Outcome:
    detail = {**tally.detail(), "canary_found": not missed, **({"missed": missed} if missed else {})}
    return Outcome(errors=tally.errors + len(missed), measures=measures, detail=detail)


def functions(bench: Bench) -> Outcome:
    """Compute special functions on every multiprocessor and compare the results with each other, bit by bit.

    The CPU checks one set of them: those that IEEE 754 rounds correctly to the bit, approximations within
    their bound.
    """
    device, tally, missed = bench.device, Tally(), []
    n, blocks = bench.sizes.function_words, bench.sizes.blocks or device.sms * 8
    rates = []
    turns = int(bench.params.get("turns", 1))
    with device.buffers(n * 8, blocks * 4) as (values, where):
        on_blocks = _Blocks(bench, where, blocks)
        for turn in range(turns):
            seed = bench.seed ^ turn << 50
            for code, function in enumerate(FUNCTIONS):
                device.launch("functions", "fill_function", p(values), u64(n), u64(seed), u32(code))
                buffer = (ctypes.c_uint64 * n)()
                device.read(buffer, values)
                host = np.frombuffer(bytes(buffer), np.uint64).copy()
                wrong = outside(function, host, seed)
                for index, got, want in wrong.samples:
                    tally.add(0, index, f"{function.name} on the CPU", got, want)
                tally.errors += wrong.count
                check = _check_function(bench, values, n, seed, code, where)
                log = device.fresh_log()
                took = device.timed(partial(check, blocks, log))
                rates.append(blocks * n / max(took, 0.001) / 1e6)
                on_blocks.take(tally, function.name, n)
                if turn == 0 and not tally.errors:
                    missed += _function_canary(bench, function.name, values, host, seed, check, code)
                bench.beat(turn * len(FUNCTIONS) + code + 1, turns * len(FUNCTIONS))
    measures = {**rate_of("functions_gop_s", rates), "functions": float(len(FUNCTIONS)), "values": float(n)}
    return _outcome(tally, missed, measures)


def _check_function(
    bench: Bench, values: int, n: int, seed: int, code: int, where: int
) -> Callable[[int, ctypes.c_void_p], None]:
    def check(blocks: int, log: ctypes.c_void_p) -> None:
        bench.device.launch(
            "functions", "check_function", p(values), u32(n), u64(seed), u32(code), log, p(where),
            grid=(blocks, 1),
        )  # fmt: skip

    return check


def _function_canary(
    bench: Bench, name: str, values: int, host: NDArray[np.uint64], seed: int,
    check: Callable[[int, ctypes.c_void_p], None], code: int,
) -> list[str]:  # fmt: skip
    """Return which comparisons did not find a flipped bit: on the device any bit, on the CPU a high one."""
    missed = []
    index, bit = _planted(bench, len(host))
    _flip(bench, values, index, bit)
    check(1, bench.device.fresh_log())
    if not _found(bench.device.log(), index, bit):
        missed.append(f"{name} on the device")
    host[index] ^= np.uint64(1 << FUNCTIONS[code].high_bit)
    wrong = outside(FUNCTIONS[code], host, seed)
    if (wrong.count, [sample[0] for sample in wrong.samples]) != (1, [index]):
        missed.append(f"{name} on the CPU")
    return missed


def atomics(bench: Bench) -> Outcome:
    """Let many threads change a few words in global and shared memory; the order does not matter.

    Expected values are computed without atomic operations. A wrong word is also noted by an ordinary store,
    since the error log itself needs them.
    """
    device, tally, missed = bench.device, Tally(), []
    n, blocks = bench.sizes.atomic_operations, bench.sizes.blocks or device.sms * 8
    cells = bench.sizes.atomic_cells
    per_block = SHARED_CELLS * 64
    rates = []
    with device.buffers(max(cells, blocks * SHARED_CELLS) * 8, blocks * 4, 8) as (memory, where, seen):
        on_blocks = _Blocks(bench, where, blocks)

        def check(count: int, per: int, operations: int, op: int, group: int) -> ErrorLog:
            device.clear(seen, 8)
            device.launch(
                "atomics", "check_atomics", p(memory), u32(count), u32(per), u32(operations), u64(bench.seed),
                u32(op), u32(group), p(seen), device.fresh_log(),
            )  # fmt: skip
            return device.log()

        def noted(log: ErrorLog, label: str) -> None:
            stored = u64(0)
            device.read(stored, seen)
            if stored.value and not log.count:
                tally.add(1, 0, f"{label}: missing from the error log", "", "")

        for op, name in enumerate(OPERATIONS):
            for group in GROUPS:
                device.launch("atomics", "start_atomics", p(memory), u64(cells), u32(op))
                device.sync()
                run = partial(
                    device.launch, "atomics", "run_atomics", p(memory), u32(cells), u32(n), u64(bench.seed),
                    u32(op), u32(group),
                )  # fmt: skip
                took = device.timed(run)
                rates.append(n / max(took, 0.001) / 1e6)
                log = check(cells, cells, n, op, group)
                tally.add_log(log, f"{name}, global memory, {group} threads per word")
                noted(log, name)
                device.launch(
                    "atomics", "run_atomics_shared", p(memory), u32(per_block), u64(bench.seed), u32(op),
                    u32(group), p(where), grid=(blocks, 1),
                )  # fmt: skip
                log = check(blocks * SHARED_CELLS, SHARED_CELLS, per_block, op, group)
                sm_of = on_blocks.sm_of(SHARED_CELLS) if log.count else None
                tally.add_log(log, f"{name}, shared memory, {group} threads per word", sm_of)
                noted(log, name)
            if not tally.errors:
                index, bit = _planted(bench, blocks * SHARED_CELLS)
                _flip(bench, memory, index, bit)
                log = check(blocks * SHARED_CELLS, SHARED_CELLS, per_block, op, GROUPS[-1])
                if not _found(log, index, bit):
                    missed.append(name)
            bench.beat(op + 1, len(OPERATIONS))
    measures = {**rate_of("atomics_gop_s", rates), "operations": float(len(OPERATIONS))}
    return _outcome(tally, missed, measures)


def shared_memory(bench: Bench) -> Outcome:
    """Test shared memory of every multiprocessor: address pattern in 8 orders, then moving inversions.

    Several blocks of 48 KiB run on each multiprocessor at once, which covers most of its memory.
    """
    device, tally, missed = bench.device, Tally(), []
    blocks, turns = bench.sizes.blocks or device.sms * 8, int(bench.params.get("turns", 1))
    with device.buffers(blocks * 4, 8) as (where, out):
        on_blocks = _Blocks(bench, where, blocks)

        def test(seed: int, grid: int, flip_at: int, bit: int) -> None:
            device.launch(
                "cache", "test_shared", u64(seed), u64(flip_at), u64(bit), device.fresh_log(), p(where),
                grid=(grid, 1),
            )  # fmt: skip

        for turn in range(turns):
            test(bench.seed + turn, blocks, MASK, 0)
            on_blocks.take(tally, "shared memory", SHARED_WORDS)
            bench.beat(turn + 1, turns)
        index, bit = _planted(bench, SHARED_WORDS)
        test(bench.seed, 1, index, bit)
        if not tally.errors and not _found(device.log(), index, bit):
            missed.append("test_shared")
        rounds = bench.sizes.shared_rounds
        rates = []
        for _ in range(TIMES):
            read = partial(
                device.launch, "cache", "read_shared", u64(rounds), u64(MASK), p(out), grid=(blocks, 1)
            )
            took = device.timed(read)
            rates.append(blocks * rounds * SHARED_WORDS * 8 / max(took, 0.001) / 1e6)
    measures = {**rate_of("shared_gb_s", rates), "turns": float(turns)}
    return _outcome(tally, missed, measures)


def caches(bench: Bench) -> Outcome:
    """Read L1 and L2 in several orders while their lines stay cached; L2 also with moving inversions."""
    device, tally, missed = bench.device, Tally(), []
    blocks, turns = bench.sizes.blocks or device.sms * 8, int(bench.params.get("turns", 1))
    # Half of L2: other data would evict a part of a full one.
    words = max(device.l2_bytes // 2 // 8 // L1_WINDOW, 1) * L1_WINDOW
    words = min(words, bench.sizes.copy_bytes // 8 // L1_WINDOW * L1_WINDOW)
    windows = words // L1_WINDOW
    rates = []
    with device.buffers(words * 8, blocks * 4) as (memory, where):
        on_blocks = _Blocks(bench, where, blocks)

        def l1(orders: int, grid: int) -> None:
            device.launch(
                "cache", "check_l1", p(memory), u32(words), u32(L1_WINDOW), u64(bench.seed), u32(orders),
                device.fresh_log(), p(where), grid=(grid, 1),
            )  # fmt: skip

        def l2(flip: int, ahead: int, log: ctypes.c_void_p) -> None:
            device.launch(
                "cache", "check_l2", p(memory), u64(words), u64(bench.seed), u64(flip), u64(ahead), log
            )

        def l2_in_all_orders(log: ctypes.c_void_p) -> None:
            for order in range(ORDERS):
                l2(0, words // ORDERS * order, log)

        def inverted(flip: int, down: int) -> None:
            device.launch(
                "cache", "invert_l2", p(memory), u64(words), u64(bench.seed), u64(flip), u64(down),
                device.fresh_log(),
            )  # fmt: skip
            tally.add_log(device.log(), "L2, inverted")

        for turn in range(turns):
            device.launch("memory", "fill_mix", p(memory), u64(words), u64(0), u64(bench.seed), u64(0))
            l1(ORDERS, blocks)
            on_blocks.take(tally, "L1", L1_WINDOW)
            took = device.timed(partial(l2_in_all_orders, device.fresh_log()))
            rates.append(ORDERS * words * 8 / max(took, 0.001) / 1e6)
            tally.add_log(device.log(), "L2")
            inverted(0, 0)
            inverted(MASK, 1)
            bench.beat(turn + 1, turns)
        if not tally.errors:
            index, bit = _planted(bench, words)
            _flip(bench, memory, index, bit)
            l2(0, 0, device.fresh_log())
            if not _found(device.log(), index, bit):
                missed.append("check_l2")
            # A block for each window, so that the index of a value is that of its word.
            l1(1, windows)
            if not _found(device.log(), index, bit):
                missed.append("check_l1")
    measures = {**rate_of("l2_gb_s", rates), "l2_tested_mib": words * 8 / 2**20}
    return _outcome(tally, missed, measures)
