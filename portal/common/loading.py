"""Python's garbage collector while a process of the portal starts.

Starting makes half a million objects that stay. Collections at their usual pace walk through them again and
again: a quarter of the processor time of a start.
"""

from __future__ import annotations

import gc

THRESHOLDS = (5_000, 5, 200)
_usual = gc.get_threshold()


def begin() -> None:
    """Collect more rarely until `end`, or for good in a process that only starts, works and exits."""
    gc.set_threshold(*THRESHOLDS)


def end() -> None:
    """Collect as usual, without what is loaded by now: that stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_usual)
