"""Schedules Python's garbage collection at idle moments, never within a decision.

The time of a full collection is proportional to the number of objects, of which a site with 100,000
accelerators has many. So long-lived objects are frozen, which is instant and excludes them from collections;
automatic full collections are rare; and worker tasks call `collect_if_due` at idle moments.
"""

from __future__ import annotations

import gc
import time

THRESHOLDS = (5_000, 5, 200)
"""Thresholds of the three generations (see `gc.set_threshold`).

The last one, about 5 million objects, is for a process that is never idle.
"""
COLLECT_AFTER = 4
"""Number of middle-generation collections after which `collect_if_due` runs a full one."""
MIN_FULL_INTERVAL_S = 60.0
"""Minimum seconds between collections that include frozen objects."""
FULL_PAUSE_FACTOR = 100
"""Minimum pause between these collections, as a multiple of the duration of the last one."""


class _Process:
    """The state of this process. `frozen`: it has frozen objects."""

    frozen = False
    young_collections = 0
    next_full_at = 0.0


def freeze() -> None:
    """Freeze all current objects and make automatic full collections rare. Instant."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    if not _Process.frozen:
        _Process.frozen = True
        _Process.young_collections = _young_collections()
        _Process.next_full_at = time.monotonic() + MIN_FULL_INTERVAL_S


def collect_if_due() -> bool:
    """Collect garbage if due, and return whether it was. Call this when no user waits for the process."""
    if not _Process.frozen or _young_collections() - _Process.young_collections < COLLECT_AFTER:
        return False
    began = time.monotonic()
    full = began >= _Process.next_full_at
    if full:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
    if full:
        ended = time.monotonic()
        _Process.next_full_at = ended + max(MIN_FULL_INTERVAL_S, FULL_PAUSE_FACTOR * (ended - began))
    _Process.young_collections = _young_collections()
    return True


def _young_collections() -> int:
    return int(gc.get_stats()[1]["collections"])
