"""Choose integer operands that exercise every multiplier bit while all sums stay exact.

A multiplier of p mantissa bits has p by p cells, of which powers of two use only one. So the rounds use all
bits of one side (with ±1, ±2 on the other), of the other side, and of both. The exact range of the
accumulator limits the number of terms per sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SMALL = 0
"""Stands for one of -2, -1, 1, 2."""
# Tensor cores may accumulate FP8 and FP4 products with fewer bits than FP32 has.
_EXACT: Mapping[str, int] = {"fp8": 2**11, "fp4": 2**11, "fp64": 2**53, "int8": 2**31 - 1}
_EXACT_FP32 = 2**24
# Bits of A and B. FP32 and FP64 cannot hold the product of two full mantissas, so with both sides active each
# has half of its bits. Their last round has long sums, which the others cannot have.
_BITS: Mapping[str, Sequence[tuple[int, int]]] = {
    "fp32": ((24, SMALL), (SMALL, 24), (12, 12), (12, SMALL)),
    "fp64": ((53, SMALL), (SMALL, 53), (26, 26), (40, SMALL)),
    "fp16": ((11, SMALL), (SMALL, 11), (11, 11)),
    "bf16": ((8, SMALL), (SMALL, 8), (8, 8)),
    "tf32": ((11, SMALL), (SMALL, 11), (11, 11)),
    "fp8": ((4, SMALL), (SMALL, 4), (4, 4)),
    "int8": ((7, SMALL), (SMALL, 7), (7, 7)),
    "fp4": ((2, SMALL), (SMALL, 2), (2, 2)),
}


@dataclass(frozen=True, slots=True)
class ProductRound:
    """Operands of one product: bits of A and B, length of the sums, and sparsity of one side.

    One in `gap` elements is nonzero, on the side with fewer bits, or B if equal.
    """

    a_bits: int
    b_bits: int
    depth: int
    gap: int

    @property
    def gaps(self) -> tuple[int, int]:
        """Gaps of A and B."""
        return (self.gap, 1) if self.a_bits < self.b_bits else (1, self.gap)

    @property
    def terms(self) -> int:
        """Number of nonzero products per sum."""
        return self.depth // self.gap

    def largest_sum(self) -> int:
        return self.terms * largest(self.a_bits) * largest(self.b_bits)


def largest(bits: int) -> int:
    """Return the largest magnitude of an integer with this many bits."""
    return 2 if bits == SMALL else 2**bits - 1


def rounds_of(dtype: str, step: int, deepest: int) -> tuple[ProductRound, ...]:
    """Return the rounds of a type. Its kernels take K in steps of `step`, a power of two, up to `deepest`.

    A sum of one term is always exact if one of its factors is a power of two.
    """
    exact = _EXACT.get(dtype, _EXACT_FP32)
    rounds = []
    for a_bits, b_bits in _BITS[dtype]:
        fits = max(1, exact // (largest(a_bits) * largest(b_bits)))
        terms = min(2 ** (fits.bit_length() - 1), deepest)
        depth = max(step, terms)
        rounds.append(ProductRound(a_bits, b_bits, depth, depth // terms))
    return tuple(rounds)
