"""Special functions, atomics, shared memory and caches on the host build: every broken bit is found."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from provisioning.gpu.check.device import ErrorLog
from provisioning.gpu.check.plan import Test
from provisioning.gpu.check.probes.exact_functions import FUNCTIONS, outside
from provisioning.gpu.check.probes.units import GROUPS, OPERATIONS, ORDERS, SHARED_WORDS
from provisioning.gpu.check.report import Report, render
from provisioning.gpu.check.types import Action, Status, Verdict
from tests.gpu.check.host import MASK, Host
from tests.suite.choice import quick_of

FUNCTION, ATOMIC, SHARED, L1, L2 = range(1, 6)
"""Units, as in host_shim.h."""
SEED = 12345
u32 = ctypes.c_uint32
Check = Callable[..., Report]
Words = NDArray[np.uint64]


@pytest.fixture
def repaired_host(host: Host) -> Iterator[Host]:
    """Repairs the units afterwards."""
    yield host
    host.broken_unit()


def zeros(n: int) -> Words:
    return np.zeros(n, np.uint64)


def log_of(host: Host, kernel: str, *args: Any, blocks: int = 1) -> ErrorLog:
    """The error log of a kernel; None in `args` stands for the log."""
    log = ErrorLog(first=MASK)
    host.run(kernel, *(log if arg is None else arg for arg in args), grid=(blocks, 1))
    return log


# --- special functions ---

VALUES = 2000


def results(host: Host, code: int, n: int = VALUES) -> Words:
    values = zeros(n)
    host.run("fill_function", values, n, SEED, u32(code))
    return values


@pytest.mark.parametrize("code", range(len(FUNCTIONS)), ids=lambda code: FUNCTIONS[code].name)
def test_cpu_reference_accepts_good_functions_and_finds_high_bit_errors(
    repaired_host: Host, code: int
) -> None:
    values = results(repaired_host, code)
    assert len(np.unique(values)) > VALUES * 0.9
    assert outside(FUNCTIONS[code], values, SEED).count == 0
    for index in (0, 777, VALUES - 1):
        values[index] ^= np.uint64(1 << FUNCTIONS[code].high_bit)
        wrong = outside(FUNCTIONS[code], values, SEED)
        assert (wrong.count, wrong.samples[0][0]) == (1, index)
        values[index] ^= np.uint64(1 << FUNCTIONS[code].high_bit)
    values[5] = np.uint64(0x7FF8000000000000 if FUNCTIONS[code].bits == 64 else 0x7FC00000)
    assert outside(FUNCTIONS[code], values, SEED).count == 1


@pytest.mark.parametrize("code", range(len(FUNCTIONS)), ids=lambda code: FUNCTIONS[code].name)
def test_dead_bit_of_one_multiprocessor_differs_from_the_others(repaired_host: Host, code: int) -> None:
    """Each used bit, even within the error bound of an approximation."""
    n, blocks = 200, 4
    good = results(repaired_host, code, n)
    where = np.zeros(blocks, np.uint32)
    for bit in range(FUNCTIONS[code].bits):
        for stuck in (False, True):
            mask = np.uint64(1 << bit)
            changed = int(np.count_nonzero((good & mask == 0) if stuck else (good & mask != 0)))
            repaired_host.broken_unit(FUNCTION, block=2, **{"stuck" if stuck else "clear": 1 << bit})
            log = log_of(
                repaired_host, "check_function", good, u32(n), SEED, u32(code), None, where, blocks=blocks
            )
            assert (log.count, log.bits) == (changed, (1 << bit) * (changed > 0))
            if changed:
                assert log.first // n == 2
    assert list(where) == [0, 1, 2, 3]


@pytest.mark.parametrize("code", range(len(FUNCTIONS)), ids=lambda code: FUNCTIONS[code].name)
def test_dead_bit_of_all_multiprocessors_exceeds_the_bound(repaired_host: Host, code: int) -> None:
    """Every bit of rounded functions; of approximations, bits well above the bound."""
    function = FUNCTIONS[code]
    good = results(repaired_host, code)
    first = 0 if function.relative is None else 15 if function.name == "tanh" else 6
    hidden = []
    for bit in range(first, function.bits):
        for stuck in (False, True):
            repaired_host.broken_unit(FUNCTION, **{"stuck" if stuck else "clear": 1 << bit})
            broken = results(repaired_host, code)
            if (broken != good).any() and not outside(function, broken, SEED).count:
                hidden.append((bit, stuck))
    assert hidden == []


# --- atomic operations ---

COUNT, PER, TIMES = 64, 256, 64 * 64


def run_atomics(host: Host, op: int, group: int) -> tuple[Words, Words]:
    """Cells in global memory, and those of two blocks in shared memory."""
    cells, shared, where = zeros(COUNT), zeros(2 * PER), np.zeros(2, np.uint32)
    host.run("start_atomics", cells, COUNT, u32(op))
    host.run("run_atomics", cells, u32(COUNT), u32(TIMES), SEED, u32(op), u32(group))
    host.run(
        "run_atomics_shared", shared, u32(PER * 4), SEED, u32(op), u32(group), where, grid=(2, 1)
    )  # fmt: skip
    return cells, shared


def wrong_atomics(host: Host, cells: Words, op: int, group: int, *, shared: bool = False) -> ErrorLog:
    per, times = (PER, PER * 4) if shared else (COUNT, TIMES)
    seen = zeros(1)
    log = log_of(
        host, "check_atomics", cells, u32(len(cells)), u32(per), u32(times), SEED, u32(op), u32(group), seen,
        None,
    )  # fmt: skip
    assert bool(seen[0]) == bool(log.count)
    return log


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("op", range(len(OPERATIONS)), ids=OPERATIONS.__getitem__)
def test_atomics_are_exact_and_a_bit_flip_is_located(repaired_host: Host, op: int, group: int) -> None:
    for cells, shared in zip(run_atomics(repaired_host, op, group), (False, True), strict=True):
        assert len(np.unique(cells)) > 8
        assert wrong_atomics(repaired_host, cells, op, group, shared=shared).count == 0
        for index, bit in ((0, 0), (len(cells) - 1, 63), (33, 31)):
            cells[index] ^= np.uint64(1 << bit)
            log = wrong_atomics(repaired_host, cells, op, group, shared=shared)
            assert (log.count, log.first, log.bits) == (1, index, 1 << bit)
            cells[index] ^= np.uint64(1 << bit)


@pytest.mark.parametrize("op", range(len(OPERATIONS)), ids=OPERATIONS.__getitem__)
def test_operation_done_twice_is_found(repaired_host: Host, op: int) -> None:
    """Repetition changes sums, but not extremes, AND or OR."""
    cells, _ = run_atomics(repaired_host, op, 1)
    repaired_host.run("run_atomics", cells, u32(COUNT), u32(COUNT), SEED, u32(op), u32(1))
    repeats = OPERATIONS[op].split()[0] in ("add", "xor", "cas")
    log = wrong_atomics(repaired_host, cells, op, 1)
    assert log.count > COUNT * 0.8 if repeats else log.count == 0


def test_dead_bits_of_atomic_units_are_found(repaired_host: Host) -> None:
    """Sums, XOR and compare-and-swap find each bit alone; of extremes, AND and OR, one of the pair does."""
    families: dict[str, set[tuple[int, bool]]] = {}
    for op, name in enumerate(OPERATIONS):
        if "fp" in name:
            continue
        kind, width = name.split()
        family = {"min": "extremes", "max": "extremes", "and": "bits", "or": "bits"}.get(kind, kind) + width
        for bit in range(int(width)):
            for stuck in (False, True):
                repaired_host.broken_unit(ATOMIC, **{"stuck" if stuck else "clear": 1 << bit})
                cells, shared = run_atomics(repaired_host, op, 1)
                log = wrong_atomics(repaired_host, cells, op, 1)
                if log.count and wrong_atomics(repaired_host, shared, op, 1, shared=True).count:
                    families.setdefault(family, set()).add((bit, stuck))
    assert {name: len(found) for name, found in families.items()} == {
        "add64": 128, "add32": 64, "extremes64": 128, "extremes32": 64, "bits64": 128, "xor64": 128,
        "cas64": 128, "cas32": 64,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["add fp32", "add fp64"])
def test_dead_bits_of_floating_point_sums_are_found(repaired_host: Host, name: str) -> None:
    """Sign, exponent and upper mantissa bits, which small integers use."""
    op, bits = OPERATIONS.index(name), 32 if name.endswith("32") else 64
    lowest = {32: 20, 64: 49}[bits]
    for bit in range(lowest, bits):
        repaired_host.broken_unit(ATOMIC, stuck=1 << bit)
        assert wrong_atomics(repaired_host, run_atomics(repaired_host, op, 1)[0], op, 1).count, bit
    for bit in (lowest, bits - 2, bits - 1):
        repaired_host.broken_unit(ATOMIC, clear=1 << bit)
        assert wrong_atomics(repaired_host, run_atomics(repaired_host, op, 1)[0], op, 1).count, bit


# --- shared memory ---


def test_shared(host: Host, *, flip_at: int = MASK, bit: int = 0, blocks: int = 2) -> ErrorLog:
    where = np.zeros(blocks, np.uint32)
    return log_of(host, "test_shared", SEED, flip_at, bit, None, where, blocks=blocks)


test_shared.__test__ = False  # type: ignore[attr-defined]


def test_shared_memory_bit_flip_is_located(repaired_host: Host) -> None:
    assert test_shared(repaired_host).count == 0
    for index, bit in ((0, 0), (SHARED_WORDS - 1, 63), (1234, 31), (77, 32)):
        log = test_shared(repaired_host, flip_at=index, bit=bit)
        assert (log.count, log.first, log.bits) == (1, index, 1 << bit)


@pytest.mark.parametrize("fault", ["clear", "stuck"])
def test_dead_bits_of_shared_memory_are_located_by_block(repaired_host: Host, fault: str) -> None:
    for bit in range(64):
        repaired_host.broken_unit(SHARED, block=1, **{fault: 1 << bit})
        log = test_shared(repaired_host)
        assert (log.bits, log.first // SHARED_WORDS) == (1 << bit, 1)
        assert log.count > SHARED_WORDS


def test_dead_address_lines_of_shared_memory_are_found(repaired_host: Host) -> None:
    for line in range(SHARED_WORDS.bit_length()):
        repaired_host.broken_unit(SHARED, dead_address=1 << line)
        assert test_shared(repaired_host, blocks=1).count > 1000


def test_block_barriers_synchronize_all_threads(repaired_host: Host) -> None:
    """With 256 threads as fibers that read each other's writes."""
    log, where = ErrorLog(first=MASK), np.zeros(1, np.uint32)
    repaired_host.run("test_shared", SEED, MASK, 0, log, where, block=True)
    assert log.count == 0
    cells = zeros(PER)
    repaired_host.run("run_atomics_shared", cells, u32(PER * 4), SEED, u32(0), u32(32), where, block=True)
    assert wrong_atomics(repaired_host, cells, 0, 32, shared=True).count == 0


# --- caches ---

WINDOW, WORDS = 64, 256


def filled(host: Host) -> Words:
    memory = zeros(WORDS)
    host.run("fill_mix", memory, WORDS, 0, SEED, 0)
    return memory


def check_l1(host: Host, memory: Words, orders: int = ORDERS) -> ErrorLog:
    blocks = WORDS // WINDOW
    where = np.zeros(blocks, np.uint32)
    return log_of(
        host, "check_l1", memory, u32(WORDS), u32(WINDOW), SEED, u32(orders), None, where, blocks=blocks
    )  # fmt: skip


def test_every_order_reads_each_word_once(repaired_host: Host) -> None:
    for index in range(WORDS):
        memory = filled(repaired_host)
        assert check_l1(repaired_host, memory).count == 0
        memory[index] ^= np.uint64(1 << 9)
        log = check_l1(repaired_host, memory)
        assert (log.count, log.first, log.bits) == (ORDERS, index, 1 << 9)
        assert check_l1(repaired_host, memory, orders=1).count == 1


@pytest.mark.parametrize("ahead", [0, 1, WORDS - 1])
def test_l2_is_read_once_and_inverted(repaired_host: Host, ahead: int) -> None:
    memory = filled(repaired_host)
    assert log_of(repaired_host, "check_l2", memory, WORDS, SEED, 0, ahead, None).count == 0
    memory[100] ^= np.uint64(1 << 50)
    log = log_of(repaired_host, "check_l2", memory, WORDS, SEED, 0, ahead, None)
    assert (log.count, log.first, log.bits) == (1, 100, 1 << 50)
    memory[100] ^= np.uint64(1 << 50)
    assert log_of(repaired_host, "invert_l2", memory, WORDS, SEED, 0, 0, None).count == 0
    assert log_of(repaired_host, "check_l2", memory, WORDS, SEED, MASK, ahead, None).count == 0
    assert log_of(repaired_host, "invert_l2", memory, WORDS, SEED, MASK, 1, None).count == 0
    assert (memory == filled(repaired_host)).all()


@pytest.mark.parametrize("fault", ["clear", "stuck"])
def test_dead_cache_bits_are_found(repaired_host: Host, fault: str) -> None:
    memory = filled(repaired_host)
    for bit in range(64):
        repaired_host.broken_unit(L1, block=2, **{fault: 1 << bit})
        log = check_l1(repaired_host, memory)
        assert (log.bits, log.first // WINDOW) == (1 << bit, 2)
        repaired_host.broken_unit(L2, **{fault: 1 << bit})
        assert log_of(repaired_host, "check_l2", memory, WORDS, SEED, 0, 0, None).bits == 1 << bit


# --- whole checks ---

TESTS = ("functions", "atomics", "shared_memory", "caches")


@pytest.mark.engine
def test_healthy_units_pass(check: Check) -> None:
    turns = Test("shared_memory", "shared_memory", 20.0, params={"turns": 2})
    report = check("functions", "atomics", turns, "caches", level="standard")
    assert {test.status for test in report.tests} == {Status.PASSED}, render(report)
    for test in report.tests:
        assert (test.errors, test.detail) == (0, {"canary_found": True})
        (judged,) = test.judgements
        assert judged.advisory and judged.value > 0


@pytest.mark.engine
@pytest.mark.parametrize(
    ("unit", "block", "test"),
    quick_of(
        [(1, 1, 0), (1, -1, 0), (2, -1, 1), (3, 2, 2), (4, 0, 3), (5, -1, 3)],
        [(1, 1, 0), (2, -1, 1), (5, -1, 3)],
        "each unit has quick tests of its kernel",
        several=True,
    ),
    ids=["a function of one SM", "a function", "atomics", "shared memory", "L1", "L2"],
)
def test_dead_bit_of_a_unit_fails_its_test(check: Check, unit: int, block: int, test: int) -> None:
    bit = 30 if unit == FUNCTION and block < 0 else 1
    cuda = {"dead_unit": unit, "dead_unit_block": block, "dead_unit_bit": bit}
    report = check(*TESTS, level="standard", cuda=cuda)
    found = [each.status for each in report.tests]
    assert found == [Status.FAILED if at == test else Status.PASSED for at in range(4)], render(report)
    assert (report.verdict, report.action) == (Verdict.FAIL, Action.REPLACE)
    failed = report.tests[test]
    assert failed.errors
    if unit in (SHARED, L1, L2):
        assert failed.detail["wrong_bits"] == f"{1 << bit:016x}"
    if block > 0:
        assert list(failed.detail["sms"]) == [str(block)]


@pytest.mark.engine
def test_blind_checker_is_detected(check: Check) -> None:
    report = check("functions", "atomics", "caches", level="standard", cuda={"blind": 1})
    functions, atomics, caches = report.tests
    assert {test.status for test in report.tests} == {Status.FAILED}, render(report)
    assert "sin on the device" in functions.detail["missed"]
    assert atomics.detail["missed"] == list(OPERATIONS)
    assert caches.detail["missed"] == ["check_l2", "check_l1"]
