"""Differences of counters that only grow, until they wrap or begin anew. Pure.

A value below the one before is either. A counter wraps at the end of its width and goes on from 0: then only
little can have been added on the way. After a reset of the device, or with a driver that was loaded again, it
begins at 0: then what it has by now was counted, and what was counted before that is lost.
"""

from __future__ import annotations

from dataclasses import dataclass

WIDE = 64
NARROW = 32
"""Bits of a counter: most of NVML's have 64, that of PCIe replays has 32."""
ON_THE_WAY_BITS = 8
"""Over its end a counter adds less than 1 / 2^8 of what it can hold: what would be more began anew."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a counter has counted from one look to the next.

    `anew`: it began at 0 in between, so more may have been counted than `by`.
    """

    by: int
    anew: bool = False


def step(before: int, after: int, *, bits: int = WIDE) -> Step:
    """From `before` to `after`. Never negative, and never nearly all of what a counter can hold."""
    if after >= before:
        return Step(after - before)
    over = (1 << bits) - before + after
    # One that is beyond its own width is wider than was thought: it cannot have wrapped there.
    if 0 < over < 1 << (bits - ON_THE_WAY_BITS):
        return Step(over)
    return Step(after, anew=True)


class Total:
    """A counter as somebody who has looked on from the beginning has it: it never goes back.

    It begins with what the device says, and goes on while there is nothing to be read.
    """

    __slots__ = ("_bits", "_last", "_sum")

    def __init__(self, bits: int = WIDE) -> None:
        self._bits = bits
        self._last: int | None = None
        self._sum = 0

    def of(self, value: int | None) -> int | None:
        """The total with this look; None where nothing was told."""
        if value is None:
            return None
        self._sum += value if self._last is None else step(self._last, value, bits=self._bits).by
        self._last = value
        return self._sum


class Rate:
    """What a counter adds in a second. None where the look before had no value, and where it began anew."""

    __slots__ = ("_at_s", "_bits", "_last")

    def __init__(self, bits: int = WIDE) -> None:
        self._bits = bits
        self._last: int | None = None
        self._at_s = 0.0

    def of(self, value: int | None, at_s: float) -> int | None:
        before, before_s = self._last, self._at_s
        self._last, self._at_s = value, at_s
        if value is None or before is None or at_s <= before_s:
            return None
        done = step(before, value, bits=self._bits)
        return None if done.anew else round(done.by / (at_s - before_s))
