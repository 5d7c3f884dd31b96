"""Schedules Python's garbage collection at idle moments, never within a decision.

A full collection takes time in proportion to the number of objects, and a site of 100,000 accelerators has
many. So long-lived objects are frozen, which is instant and excludes them from collections; automatic full
collections are rare; and worker tasks call `rest` at idle moments.
"""

from __future__ import annotations

import gc
import time

THRESHOLDS = (5_000, 5, 200)
"""Thresholds of the three generations (see `gc.set_threshold`).

The last one is for a process that never rests: about 5 million objects.
"""
RESTS_AFTER = 4
"""Number of collections of the middle generation after which a rest is due."""
THOROUGH_S = 60.0
"""Minimum seconds between collections that include frozen objects,"""
THOROUGH_RESTS = 100
"""and minimum as a multiple of the duration of the last one."""


class _Process:
    """State of this process. `keeps`: it has frozen objects."""

    keeps = False
    young_collections = 0
    thorough_at = 0.0


def keep() -> None:
    """Freeze all current objects and make automatic full collections rare. Instant."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    if not _Process.keeps:
        _Process.keeps = True
        _Process.young_collections = _young_collections()
        _Process.thorough_at = time.monotonic() + THOROUGH_S


def rest() -> bool:
    """Collect garbage if due; returns whether it did. Call when no user waits for this process."""
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
