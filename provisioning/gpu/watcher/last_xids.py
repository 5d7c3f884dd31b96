"""The last XID of each device, regardless of cause, for the DCGM metric; in this process only."""

from __future__ import annotations

import threading

_lock = threading.Lock()
_last: dict[str, int] = {}
_watched = threading.Event()


def watching() -> None:
    """Mark the watcher as running: a device without an XID now has 0 instead of None."""
    _watched.set()


def note(slot: str, xid: int) -> None:
    with _lock:
        _last[slot] = xid


def last_xid(slot: str) -> int | None:
    """Return the last XID; 0 if there was none since the watcher started, None without a watcher."""
    if not _watched.is_set():
        return None
    with _lock:
        return _last.get(slot, 0)


def forget() -> None:
    """Reset to the state without a watcher."""
    _watched.clear()
    with _lock:
        _last.clear()
