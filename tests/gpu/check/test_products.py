"""Matrix products are exact on the host build, and every broken bit of a multiplier is found."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from provisioning.gpu.check.plan import SINCE
from provisioning.gpu.check.probes import reference
from provisioning.gpu.check.probes.compute import DTYPES, DType
from provisioning.gpu.check.probes.operands import SMALL, ProductRound, largest, rounds_of
from tests.gpu.check.host import Host
from tests.suite.choice import quick_of

DEEPEST = 32
KINDS = {"fp32": np.float32, "fp16": np.uint16, "bf16": np.uint16, "fp8": np.uint8, "fp64": np.float64,
         "tf32": np.float32, "int8": np.int8, "fp4": np.uint8}  # fmt: skip
# Exponent and mantissa bits; an integer has none of an exponent.
FORMATS = {"fp32": (8, 23), "fp64": (11, 52), "fp16": (5, 10), "bf16": (8, 7), "tf32": (8, 10), "fp8": (4, 3),
           "int8": (0, 7), "fp4": (2, 1)}  # fmt: skip
# Bits of the largest operand: of a float those of its mantissa, with the leading one.
SIZES = {dtype: mantissa + (exponent > 0) for dtype, (exponent, mantissa) in FORMATS.items()}
# Each type by its plain kernel, and by Hopper's where there is one.
KERNELS = [
    (d.name, suffix) for d in DTYPES.values() for suffix in ("", "_wg") if d.unit == "tensor" or not suffix
]
u32 = ctypes.c_uint32


@dataclass
class Operands:
    """One round of a data type: encoded operands and their product."""

    d: DType
    round: ProductRound
    a: NDArray[Any]
    b: NDArray[Any]
    want: NDArray[np.int64]
    integers: tuple[NDArray[np.int64], NDArray[np.int64]]

    @property
    def side(self) -> int:
        """One block: the smallest product."""
        return self.d.tile

    @property
    def inner(self) -> int:
        return self.d.depth_argument(self.round.depth)

    def multiply(self, host: Host, suffix: str = "") -> NDArray[Any]:
        kind = {"fp64": np.float64, "int8": np.int32}.get(self.d.name, np.float32)
        c = np.full(self.side**2 * self.d.c_size, self.d.fill_byte, np.uint8).view(kind)
        kernel = f"gemm_{self.d.name}{suffix}"
        host.run(kernel, self.a, self.b, c, u32(self.side), u32(self.inner), 0, block=True)
        return c

    def errors(self, host: Host, c: NDArray[Any]) -> Any:
        kernel = {"fp64": "compare_f64", "int8": "compare_i32"}.get(self.d.name, "compare_f32")
        return host.log(kernel, c, self.want, c.size)


def empty_operands(d: DType, elements: int) -> NDArray[Any]:
    """An empty buffer for operands of a type."""
    return np.zeros(d.bytes_of(elements), np.uint8).view(KINDS[d.name])


def operands(host: Host, d: DType, round_: ProductRound) -> Operands:
    side = d.tile
    size, wides, integers = side * round_.depth, [], []
    for bits, gap, seed in zip((round_.a_bits, round_.b_bits), round_.gaps, (1, 1 ^ 0xB), strict=True):
        whole, wide = np.zeros(size, np.int64), empty_operands(d, size)
        host.run("fill_integers", whole, size, seed, u32(bits), u32(round_.depth), u32(gap))
        host.run("encode", wide, whole, size, u32(d.code))
        integers.append(whole.reshape(side, round_.depth))
        wides.append(wide)
    want = np.zeros(side * side, np.int64)
    host.run(
        "gemm_reference", *integers, want, u32(side), u32(round_.depth), grid=(side // 64,) * 2, block=True
    )
    return Operands(d, round_, wides[0], wides[1], want, (integers[0], integers[1]))


@cache
def every_round(host: Host, dtype: str) -> tuple[Operands, ...]:
    d = DTYPES[dtype]
    return tuple(operands(host, d, round_) for round_ in rounds_of(dtype, d.step, DEEPEST))


@pytest.fixture
def repaired_host(host: Host) -> Iterator[Host]:
    """Repairs the multipliers afterwards."""
    yield host
    host.broken()


def is_detected(host: Host, dtype: str, suffix: str, **fault: Any) -> bool:
    """Whether the product of any round is wrong with this fault."""
    first = any(name.endswith("b") for name in fault)
    # Rounds with most bits of the broken side first.
    rounds = sorted(every_round(host, dtype), key=lambda each: -(each.round.a_bits, each.round.b_bits)[first])
    host.broken(**fault)
    try:
        return any(each.errors(host, each.multiply(host, suffix)).count for each in rounds)
    finally:
        host.broken()


def test_every_type_of_the_plan_has_rounds() -> None:
    assert set(SINCE) == set(DTYPES) == set(FORMATS)
    assert {d.name: d.since for d in DTYPES.values()} == dict(SINCE)


@pytest.mark.parametrize("deepest", [64, 2048])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rounds_cover_all_mantissa_bits_with_exact_sums(dtype: str, deepest: int) -> None:
    d = DTYPES[dtype]
    rounds = rounds_of(dtype, d.step, deepest)
    mantissa = SIZES[dtype]
    assert {(mantissa, SMALL), (SMALL, mantissa)} <= {(r.a_bits, r.b_bits) for r in rounds}
    exact = {"fp8": 2**11, "fp4": 2**11, "fp64": 2**53, "int8": 2**31 - 1}.get(dtype, 2**24)
    for r in rounds:
        assert r.depth % d.step == 0
        assert r.depth % r.gap == 0
        assert r.terms >= 1
        power_of_two = SMALL in (r.a_bits, r.b_bits)
        assert r.largest_sum() <= exact or (r.terms == 1 and power_of_two)
    if dtype not in ("fp32", "fp64"):
        assert (mantissa, mantissa) in {(r.a_bits, r.b_bits) for r in rounds}
    else:
        assert max(r.terms for r in rounds) == deepest


def test_bf16_operands_are_below_256_in_sums_of_256() -> None:
    both = next(r for r in rounds_of("bf16", 32, 2048) if r.a_bits == r.b_bits)
    assert (both.a_bits, both.depth, both.gap) == (8, 256, 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_operands_match_their_round(host: Host, dtype: str) -> None:
    for each in every_round(host, dtype):
        for integers, bits, gap in zip(
            each.integers, (each.round.a_bits, each.round.b_bits), each.round.gaps, strict=True
        ):
            sizes = np.abs(integers)
            assert (np.count_nonzero(integers, axis=1) == each.round.depth // gap).all()
            assert int(sizes.max()) <= largest(bits)
            if bits == SMALL:
                assert set(np.unique(integers)) - {0} == {-2, -1, 1, 2}
                continue
            assert (integers < 0).any() and (integers > 0).any()
            assert int(np.bitwise_or.reduce(sizes, axis=None)) == 2**bits - 1
            # Uniform: half of them have their highest bit, and with it use the whole mantissa.
            expected = (2 ** (bits - 1) + 1) / 2**bits  # zero becomes the largest
            share = np.count_nonzero(sizes >> (bits - 1)) / np.count_nonzero(integers)
            assert expected - 0.1 < share < expected + 0.15
        exact = each.integers[0] @ each.integers[1].T
        assert (each.want.reshape(exact.shape) == exact).all()


@pytest.mark.parametrize(("dtype", "suffix"), KERNELS)
def test_products_are_exact_and_any_flip_is_found(repaired_host: Host, dtype: str, suffix: str) -> None:
    for each in every_round(repaired_host, dtype):
        c = each.multiply(repaired_host, suffix)
        assert each.errors(repaired_host, c).count == 0
        # Every single bit counts: the lowest of a mantissa, the sign, one that makes a NaN.
        bits = c.view(np.uint64 if dtype == "fp64" else np.uint32)
        for index, bit in ((0, 0), (c.size - 1, bits.itemsize * 8 - 1), (777, bits.itemsize * 8 - 2)):
            bits[index] ^= bits.dtype.type(1 << bit)
            log = each.errors(repaired_host, c)
            assert (log.count, log.first, log.bits) == (1, index, 1 << bit)
            bits[index] ^= bits.dtype.type(1 << bit)
        c[5] = each.d.fill_byte if each.d.integer else np.nan
        assert each.errors(repaired_host, c).count == 1


def test_wrong_operand_corrupts_its_whole_row(repaired_host: Host) -> None:
    each = every_round(repaired_host, "fp32")[-1]
    a = each.a.copy()
    a[3 * each.round.depth + 9] += 1
    wrong = Operands(each.d, each.round, a, each.b, each.want, each.integers)
    log = wrong.errors(repaired_host, wrong.multiply(repaired_host))
    assert (log.count, log.first) == (each.side, 3 * each.side)


def test_product_records_the_multiprocessor_of_each_tile(host: Host) -> None:
    for dtype, suffix in KERNELS:
        d = DTYPES[dtype]
        side, depth = 2 * d.tile, d.step
        a, b = empty_operands(d, side * depth), empty_operands(d, side * depth)
        c, where = np.zeros(side * side, np.float64), np.full(4, 99, np.uint32)
        inner = d.depth_argument(depth)
        host.run(f"gemm_{dtype}{suffix}", a, b, c, u32(side), u32(inner), where, grid=(2, 2), block=True)
        assert list(where) == [0, 1, 10, 11]


DEAD = [
    (dtype, side, bit)
    for dtype, (exponent, mantissa) in FORMATS.items()
    for side in "ab"
    for bit in range(1 + exponent + mantissa)
]


@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize(
    ("dtype", "suffix"),
    quick_of(
        KERNELS,
        [("bf16", "_wg"), ("fp64", ""), ("int8", "")],
        "every kernel; `make test` has three",
        several=True,
    ),
)
def test_dead_multiplier_bit_is_found(repaired_host: Host, dtype: str, suffix: str, side: str) -> None:
    """Each mantissa, exponent and sign bit of each type, stuck at 0 and at 1, on both sides."""
    bits = [bit for kind, which, bit in DEAD if (kind, which) == (dtype, side)]
    assert len(bits) == 1 + sum(FORMATS[dtype])
    hidden = [
        (bit, stuck_at)
        for bit in bits
        for stuck_at in ("clear", "set")
        if not is_detected(repaired_host, dtype, suffix, **{f"{stuck_at}_{side}": 1 << bit})
    ]
    assert hidden == []


def test_powers_of_two_hide_mantissa_bits(repaired_host: Host) -> None:
    """The negative control, which the rounds exist for."""
    small = operands(repaired_host, DTYPES["bf16"], ProductRound(SMALL, SMALL, 64, 1))
    for bit in range(7):
        repaired_host.broken(clear_a=1 << bit, clear_b=1 << bit)
        assert small.errors(repaired_host, small.multiply(repaired_host)).count == 0


@pytest.mark.parametrize("suffix", ["", "_wg"])
@pytest.mark.parametrize(
    "dtype",
    quick_of(("fp16", "bf16", "tf32", "fp8", "int8"), ("fp8", "int8"), "every type; `make test` has two"),
)
def test_dead_tensor_core_cell_is_found(repaired_host: Host, dtype: str, suffix: str) -> None:
    """Each pair of mantissa bits, including the leading ones."""
    bits = range(FORMATS[dtype][1] + 1)
    both = next(each for each in every_round(repaired_host, dtype) if each.round.a_bits == each.round.b_bits)
    hidden = []
    for cell in ((i, j) for i in bits for j in bits):
        repaired_host.broken(cell=cell)
        if not both.errors(repaired_host, both.multiply(repaired_host, suffix)).count:
            hidden.append(cell)
    assert hidden == []


# --- random operands and the CPU reference --------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_cpu_reproduces_random_operands_exactly(host: Host, dtype: str) -> None:
    d, count = DTYPES[dtype], 20_000
    filled = empty_operands(d, count)
    host.run("fill_random", filled, count, 3, u32(d.code))
    values = reference.random_values(np.arange(count, dtype=np.uint64), 3, dtype)
    exponent, mantissa = FORMATS[dtype]
    if dtype in ("fp32", "fp64", "tf32", "int8"):
        assert (filled == values).all()
    elif dtype == "fp16":
        assert (filled.view(np.float16) == values).all()
    else:
        if dtype == "fp4":
            filled = np.stack([filled & 15, filled >> 4], axis=1).reshape(-1)
        sign, rest = filled.astype(np.int64) >> (exponent + mantissa), filled.astype(np.int64)
        power = (rest >> mantissa) & ((1 << exponent) - 1)
        size = np.ldexp(
            1 + (rest & ((1 << mantissa) - 1)) / (1 << mantissa), power - (1 << (exponent - 1)) + 1
        )
        assert (np.where(power == 0, 0.0, np.where(sign == 1, -size, size)) == values).all()
    if dtype == "tf32":
        assert not (filled.view(np.uint32) & 0x1FFF).any()
    largest_value = {"int8": 128.0, "fp4": 4.0}.get(dtype, 1.0)
    assert -largest_value <= values.min() <= -0.75 * largest_value
    assert 0.75 * largest_value <= values.max() < largest_value
    assert len(np.unique(values)) > {"fp4": 8, "fp8": 90, "int8": 250}.get(dtype, 1000)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cpu_sample_finds_repeated_errors_in_random_products(repaired_host: Host, dtype: str) -> None:
    d = DTYPES[dtype]
    side = d.tile
    a, b = empty_operands(d, side * side), empty_operands(d, side * side)
    repaired_host.run("fill_random", a, side * side, 5, u32(d.code))
    repaired_host.run("fill_random", b, side * side, 6, u32(d.code))
    work = Operands(d, ProductRound(SMALL, SMALL, side, 1), a, b, np.zeros(0, np.int64), (np.zeros(0),) * 2)  # type: ignore[arg-type]
    c = work.multiply(repaired_host).astype(np.float64).reshape(side, side)

    def compare(values: NDArray[np.float64]) -> reference.Difference:
        return reference.compare(values.__getitem__, dtype=dtype, side=side, depth=side, seeds=(5, 6))

    good = compare(c)
    assert (good.compared, good.wrong, good.first_index) == (64 * 64, 0, None)
    assert good.worst < 1
    wrong = compare(c * 1.01)
    assert wrong.wrong > 1000 and wrong.first_index is not None
    row, column = divmod(wrong.first_index, side)
    assert wrong.got == pytest.approx(c[row, column] * 1.01)
    assert wrong.want == pytest.approx(c[row, column], abs=0.01)
    c[row, column] = np.nan
    assert compare(c).wrong == 1
    # The highest mantissa bit of an operand: no exact product is needed to see it.
    repaired_host.broken(clear_a=1 << (FORMATS[dtype][1] - 1))
    assert compare(work.multiply(repaired_host).astype(np.float64).reshape(side, side)).wrong > 100


@pytest.mark.parametrize("side", [1, 64, 100, 128, 8192])
def test_sample_covers_every_stretch(side: int) -> None:
    for seed in range(5):
        found_at = reference.places(side, seed)
        assert len(found_at) == min(side, 64)
        assert (np.diff(found_at) > 0).all()
        assert found_at[0] >= 0
        assert found_at[-1] < side
        if side == 8192:
            assert (found_at // 128 == np.arange(64)).all()
