"""When Python's garbage collector walks through all there is: at rest, never within a decision.

A full collection takes as long as there are objects, and a site of a hundred thousand accelerators has many.
So what is kept is frozen, which takes no time and lets collections pass it over; full ones do not come by
themselves any more; and whoever decides calls `rest` when nobody waits for it.
"""

from __future__ import annotations

import gc
import time

THRESHOLDS = (5_000, 5, 200)
"""Objects more than before until the youngest are looked at; how many times until the young ones are; and how
many times these until all are. The last is for a process that never rests: some five million objects."""
RESTS_AFTER = 4
"""With as many collections of the young a rest is due."""
THOROUGH_S = 60.0
"""What is frozen is looked at too after this at the earliest,"""
THOROUGH_RESTS = 100
"""and after so many times what that took the last time."""


class _Process:
    """What this process has done so far. `keeps`: it has something to pass over."""

    keeps = False
    young_collections = 0
    thorough_at = 0.0


def keep() -> None:
    """What has been made by now stays: collections pass it over, and come at rest. Takes no time."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    if not _Process.keeps:
        _Process.keeps = True
        _Process.young_collections = _young_collections()
        _Process.thorough_at = time.monotonic() + THOROUGH_S


def rest() -> bool:
    """Collect what is due; True if that was anything. For moments in which nobody waits for this process."""
    if not _Process.keeps or _young_collections() - _Process.young_collections < RESTS_AFTER:
        return False
    began = time.monotonic()
    thorough = began >= _Process.thorough_at
    if thorough:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
    if thorough:
        ended = time.monotonic()
        _Process.thorough_at = ended + max(THOROUGH_S, THOROUGH_RESTS * (ended - began))
    _Process.young_collections = _young_collections()
    return True


def _young_collections() -> int:
    return int(gc.get_stats()[1]["collections"])
