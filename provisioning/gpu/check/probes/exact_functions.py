"""Expected values of the special functions of functions.cu, computed on the CPU in double precision.

NVIDIA bounds the error of approximations and does not say which bits they have. Source: PTX ISA 9.1, sections
9.7.3.13 to 9.7.3.22, https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions.

| instruction | maximum error |
|---|---|
| `sin.approx.f32`, `cos.approx.f32` | 2^-20.5 absolute, within [-2 pi, 2 pi] |
| `ex2.approx.f32` | 2 ulp from the correctly rounded result |
| `lg2.approx.f32` | 2^-22 absolute within (0.5, 2), else relative |
| `rsqrt.approx.f32` | 2^-22.9 relative |
| `rcp.approx.f32` | 1 ulp |
| `sqrt.approx.f32` | 2^-23 relative |
| `tanh.approx.f32` | 2^-11 relative |

Results may differ by `MARGIN` times the documented error. Functions that IEEE 754 rounds correctly are
compared bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from provisioning.gpu.check.probes.reference import mix64

Words = NDArray[np.uint64]
Values = NDArray[np.float64]
_MASK = 0xFFFFFFFFFFFFFFFF
SAMPLES = 4
MARGIN = 2.0
"""Only a fault exceeds this, even if an architecture is a little less precise than documented."""
ULP = 2.0**-23
"""Largest relative size of a unit in the last place of FP32."""


@dataclass(frozen=True, slots=True)
class Function:
    """One function of functions.cu.

    `arguments`: one function of a random word for each argument. `of`: the function in double precision.
    `relative` and `absolute` are the documented errors, of which the larger one applies. Without `relative`
    it is rounded correctly, and `of` has the result's own type. `bits`: size of the result.
    """

    name: str
    arguments: tuple[Callable[[Words], NDArray[np.floating]], ...]
    of: Callable[..., NDArray[np.floating]]
    relative: float | None = None
    absolute: float = 0.0
    bits: int = 32

    @property
    def high_bit(self) -> int:
        """Bit whose flip is always outside the bound: the highest one of the exponent."""
        return self.bits - 2


@dataclass(frozen=True, slots=True)
class OutOfBounds:
    """Number of results outside the bound, and some of them: index, result, expected value."""

    count: int
    samples: list[tuple[int, str, str]] = field(default_factory=list)


def _even(unit: float) -> Callable[[Words], Values]:
    def argument(r: Words) -> Values:
        return ((r >> np.uint64(40)).astype(np.float64) - 2.0**23) * unit

    return argument


def _positive(r: Words) -> NDArray[np.float32]:
    exponent = np.uint64(67) + (r >> np.uint64(32)) % np.uint64(120)
    return ((exponent << np.uint64(23)) | (r & np.uint64(0x7FFFFF))).astype(np.uint32).view(np.float32)


def _positive64(r: Words) -> Values:
    exponent = np.uint64(963) + (r >> np.uint64(56)) % np.uint64(120)
    return ((exponent << np.uint64(52)) | (r & np.uint64(0xFFFFFFFFFFFFF))).view(np.float64)


# In the order of functions.cu.
FUNCTIONS = (
    Function("sin", (_even(2.0**-21),), np.sin, 0.0, 2.0**-20.5),
    Function("cos", (_even(2.0**-21),), np.cos, 0.0, 2.0**-20.5),
    # Rounding adds half a unit to the 2 units.
    Function("exp2", (_even(2.0**-17),), np.exp2, 2.5 * ULP),
    Function("log2", (_positive,), np.log2, 2.0**-22, 2.0**-22),
    Function("rsqrt", (_positive,), lambda x: 1.0 / np.sqrt(x), 2.0**-22.9),
    Function("rcp", (_positive,), lambda x: 1.0 / x, ULP),
    Function("sqrt", (_positive,), np.sqrt, 2.0**-23),
    Function("tanh", (_even(2.0**-21),), np.tanh, 2.0**-11),
    Function("sqrt, rounded", (_positive,), np.sqrt),
    Function("reciprocal, rounded", (_positive,), lambda x: np.float32(1.0) / x),
    Function("division, rounded", (_positive, _positive), np.divide),
    Function("sqrt in FP64, rounded", (_positive64,), np.sqrt, bits=64),
    Function("division in FP64, rounded", (_positive64, _positive64), np.divide, bits=64),
)


def outside(function: Function, results: Words, seed: int) -> OutOfBounds:
    """Compare the results of indexes 0, 1, … with the CPU's."""
    index = np.arange(len(results), dtype=np.uint64)
    words = (mix64(index, seed), mix64(index, ~seed & _MASK))
    arguments = [argument(word) for argument, word in zip(function.arguments, words, strict=False)]
    if function.relative is None:
        expected = function.of(*arguments)
        got: NDArray[np.floating] = _as_float(results, function.bits)
        bad = results != expected.view(np.uint32 if function.bits == 32 else np.uint64).astype(np.uint64)
    else:
        expected = function.of(*(values.astype(np.float64) for values in arguments))
        got = _as_float(results, function.bits)
        allowed = MARGIN * np.maximum(function.relative * np.abs(expected), function.absolute)
        with np.errstate(invalid="ignore"):
            # NaN is outside: it compares false with every bound. So is a word wider than the result.
            bad = ~(np.abs(got.astype(np.float64) - expected) <= allowed) | (results >> np.uint64(32) != 0)
    places = np.flatnonzero(bad)
    samples = [(int(i), f"{got[i]:.9g}", f"{expected[i]:.9g}") for i in places[:SAMPLES]]
    return OutOfBounds(len(places), samples)


def _as_float(results: Words, bits: int) -> NDArray[np.floating]:
    return results.view(np.float64) if bits == 64 else results.astype(np.uint32).view(np.float32)
