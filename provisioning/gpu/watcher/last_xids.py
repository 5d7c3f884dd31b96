"""The last XID of each device, whoever caused it, as DCGM's exporter tells it; in this process alone."""

from __future__ import annotations

import threading

_lock = threading.Lock()
_last: dict[str, int] = {}
_watched = threading.Event()


def watching() -> None:
    """From now on a device without an XID has had none; before that nobody knows."""
    _watched.set()


def note(slot: str, xid: int) -> None:
    with _lock:
        _last[slot] = xid


def of(slot: str) -> int | None:
    """0 where there was none since the watcher began, None where nobody watches."""
    if not _watched.is_set():
        return None
    with _lock:
        return _last.get(slot, 0)


def forget() -> None:
    """As before anybody watched."""
    _watched.clear()
    with _lock:
        _last.clear()
