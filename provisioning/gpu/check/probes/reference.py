"""Expected products of random operands, computed on the CPU, independent of any GPU.

The operands are generated again from their seed, so only results come from the device. A sample is compared,
one per tile of the largest products. Tensor cores may add in any order and truncate, so there is a tolerance;
the integer products test exactness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SAMPLE = 64
"""Number of sampled rows, and of columns, of C."""
_GOLDEN = 0x9E3779B97F4A7C15
# Exponent and mantissa bits of operand types; None if random values fit exactly.
_FORMATS: Mapping[str, tuple[int, int] | None] = {
    "fp32": None, "fp64": None, "tf32": (8, 10), "fp16": (5, 10), "bf16": (8, 7), "fp8": (4, 3),
    "fp4": (2, 1),
}  # fmt: skip
# Random values are in (-1, 1) times this.
_SCALE: Mapping[str, float] = {"int8": 128.0, "fp4": 4.0}
# Maximum error per term, relative to the partial sum or 1.
_UNIT: Mapping[str, float] = {"fp64": 2.0**-51, "fp8": 2.0**-15, "fp4": 2.0**-15, "int8": 2.0**-52}
_UNIT_FP32 = 2.0**-22
# Additional rounding if the result is stored in the operands' type.
_NARROW: Mapping[str, float] = {"fp16": 2.0**-10, "bf16": 2.0**-7}


def mix64(index: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Return the same value as `mix64` in common.cuh."""
    with np.errstate(over="ignore"):
        z = index * np.uint64(_GOLDEN) + np.uint64(seed & 0xFFFFFFFFFFFFFFFF)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def random_values(index: NDArray[np.uint64], seed: int, dtype: str) -> NDArray[np.float64]:
    """Return the values that `fill_random` writes at these indexes, as the type stores them."""
    values = (mix64(index, seed) >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1.0
    values *= _SCALE.get(dtype, 1.0)
    if dtype == "int8":
        return np.trunc(values)
    form = _FORMATS[dtype]
    if form is None:
        return values
    exponent_bits, mantissa_bits = form
    _, exponent = np.frexp(values)
    unit = np.ldexp(1.0, exponent - 1 - mantissa_bits)
    cut = np.trunc(values / unit) * unit
    smallest = 2.0 ** (2 - 2 ** (exponent_bits - 1))
    return np.where(np.abs(values) < smallest, 0.0, cut)


def places(side: int, seed: int) -> NDArray[np.int64]:
    """Return `SAMPLE` indexes below `side`, one in each of equally long ranges."""
    count = min(side, SAMPLE)
    starts = np.arange(count, dtype=np.int64) * side // count
    ends = (np.arange(count, dtype=np.int64) + 1) * side // count
    shift = (mix64(np.arange(count, dtype=np.uint64), seed) >> np.uint64(33)).astype(np.int64)
    return starts + shift % (ends - starts)


@dataclass(frozen=True, slots=True)
class Difference:
    """Number of wrong results in the sample, and the first of them."""

    compared: int
    wrong: int
    worst: float
    """Largest error as a multiple of the tolerance."""
    first_index: int | None = None
    got: float = 0.0
    want: float = 0.0


def compare(
    row_of: Callable[[int], NDArray[np.float64]],
    *,
    dtype: str,
    side: int,
    depth: int,
    seeds: tuple[int, int],
    narrow: bool = False,
    beat: Callable[[int, int], None] | None = None,
) -> Difference:
    """Compare C = A B^T with the CPU.

    `row_of` reads one row of C; `seeds` are those of A and B, stored row-major.
    """
    rows, columns = places(side, seeds[0] ^ 0x51), places(side, seeds[1] ^ 0x52)
    inner = np.arange(depth, dtype=np.uint64)
    b = random_values(columns.astype(np.uint64)[:, None] * np.uint64(depth) + inner, seeds[1], dtype)
    wrong, worst = 0, 0.0
    first: tuple[int, float, float] | None = None
    for done, row in enumerate(rows.tolist(), 1):
        a = random_values(np.uint64(row * depth) + inner, seeds[0], dtype)
        sums = np.cumsum(a * b, axis=1)
        want = sums[:, -1]
        allowed = _UNIT.get(dtype, _UNIT_FP32) * np.maximum(np.abs(sums), 1.0).sum(axis=1)
        if narrow:
            allowed += _NARROW[dtype] * np.abs(want)
        got = row_of(row)[columns]
        # NaN counts as wrong: it compares false with every bound.
        bad = ~(np.abs(got - want) <= allowed)
        off = np.abs(got - want) / allowed
        worst = max(worst, float(np.where(np.isfinite(off), off, 1e12).max()))
        wrong += int(bad.sum())
        if first is None and bad.any():
            at = int(np.argmax(bad))
            first = row * side + int(columns[at]), float(got[at]), float(want[at])
        if beat is not None:
            beat(done, len(rows))
    compared = len(rows) * len(columns)
    if first is None:
        return Difference(compared, wrong, worst)
    return Difference(compared, wrong, worst, *first)
