"""Which integers are multiplied, so that every bit of the multipliers works and every sum stays exact.

A multiplier of p mantissa bits has p by p cells. Operands that are powers of two use one of them. So there
are rounds with all bits of one side (and ±1, ±2 on the other), of the other side, and of both at a time; how
many terms a sum may have follows from what the accumulator holds exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SMALL = 0
"""Stands for one of -2, -1, 1, 2."""
# Tensor cores may add products in FP8 with fewer bits than FP32 has.
_EXACT: Mapping[str, int] = {"fp8": 2**11, "fp64": 2**53}
_EXACT_FP32 = 2**24
# Bits of A and of B. FP32 and FP64 cannot hold the product of two whole mantissas: where both sides work,
# each has half of its bits. The last round of theirs has sums of many terms, which the others cannot have.
_BITS: Mapping[str, Sequence[tuple[int, int]]] = {
    "fp32": ((24, SMALL), (SMALL, 24), (12, 12), (12, SMALL)),
    "fp64": ((53, SMALL), (SMALL, 53), (26, 26), (40, SMALL)),
    "fp16": ((11, SMALL), (SMALL, 11), (11, 11)),
    "bf16": ((8, SMALL), (SMALL, 8), (8, 8)),
    "tf32": ((11, SMALL), (SMALL, 11), (11, 11)),
    "fp8": ((4, SMALL), (SMALL, 4), (4, 4)),
}


@dataclass(frozen=True, slots=True)
class Round:
    """Operands of one product: bits of A and of B, the length of the sums, and how sparse one side is.

    One in `gap` of its elements is not 0. It is the side with fewer bits, B where both have as many.
    """

    a_bits: int
    b_bits: int
    depth: int
    gap: int

    @property
    def gaps(self) -> tuple[int, int]:
        """Of A and of B."""
        return (self.gap, 1) if self.a_bits < self.b_bits else (1, self.gap)

    @property
    def terms(self) -> int:
        """How many products that are not zero a sum has."""
        return self.depth // self.gap

    def largest_sum(self) -> int:
        return self.terms * largest(self.a_bits) * largest(self.b_bits)


def largest(bits: int) -> int:
    """The largest integer of so many bits, without its sign."""
    return 2 if bits == SMALL else 2**bits - 1


def rounds_of(dtype: str, step: int, deepest: int) -> tuple[Round, ...]:
    """The rounds of a type. Its products take K in steps of `step`, a power of two; at most `deepest`.

    A sum of one term is exact whatever its size, if one of its factors is a power of two.
    """
    exact = _EXACT.get(dtype, _EXACT_FP32)
    found = []
    for a_bits, b_bits in _BITS[dtype]:
        fits = max(1, exact // (largest(a_bits) * largest(b_bits)))
        terms = min(2 ** (fits.bit_length() - 1), deepest)
        depth = max(step, terms)
        found.append(Round(a_bits, b_bits, depth, depth // terms))
    return tuple(found)
