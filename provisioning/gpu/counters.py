"""Differences of monotonic counters that may wrap or restart. Pure functions.

A decreased value means a wrap or a restart. A counter that wraps continues from 0, so only a small amount can
have been added. After a device reset or a reload of the driver it restarts at 0: its value was counted since
then, and earlier counts are lost.
"""

from __future__ import annotations

from dataclasses import dataclass

WIDE = 64
NARROW = 32
"""Width of counters in bits: most of NVML's have 64, that of PCIe replays has 32."""
WRAP_MARGIN_BITS = 8
"""A wrap may add less than 1 / 2^8 of a counter's range; a larger increase counts as a restart."""


@dataclass(frozen=True, slots=True)
class CounterStep:
    """Increase of a counter between two readings.

    `restarted`: the counter restarted at 0 between them, so `by` is a lower bound.
    """

    by: int
    restarted: bool = False


def step(before: int, after: int, *, bits: int = WIDE) -> CounterStep:
    """Return the increase from `before` to `after`. Never negative, and never nearly the whole range."""
    if after >= before:
        return CounterStep(after - before)
    over = (1 << bits) - before + after
    # A value beyond the assumed width means a wider counter, so it cannot have wrapped there.
    if 0 < over < 1 << (bits - WRAP_MARGIN_BITS):
        return CounterStep(over)
    return CounterStep(after, restarted=True)


class Total:
    """A counter's total without wraps and restarts: it never decreases.

    It starts with the device's value, and is unaffected by missing readings.
    """

    __slots__ = ("_bits", "_last", "_sum")

    def __init__(self, bits: int = WIDE) -> None:
        self._bits = bits
        self._last: int | None = None
        self._sum = 0

    def add_reading(self, value: int | None) -> int | None:
        """Return the total including this reading; None if there was none."""
        if value is None:
            return None
        self._sum += value if self._last is None else step(self._last, value, bits=self._bits).by
        self._last = value
        return self._sum


class Rate:
    """Increase of a counter per second. None without a previous value, and after a restart."""

    __slots__ = ("_at_s", "_bits", "_last")

    def __init__(self, bits: int = WIDE) -> None:
        self._bits = bits
        self._last: int | None = None
        self._at_s = 0.0

    def add_reading(self, value: int | None, at_s: float) -> int | None:
        before, before_s = self._last, self._at_s
        self._last, self._at_s = value, at_s
        if value is None or before is None or at_s <= before_s:
            return None
        difference = step(before, value, bits=self._bits)
        return None if difference.restarted else round(difference.by / (at_s - before_s))
