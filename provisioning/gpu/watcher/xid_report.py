"""An XID reported by a source, and suppression of duplicates."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

DEDUPLICATION_S = 60.0
MAX_KEPT = 1024


@dataclass(frozen=True, slots=True)
class XidReport:
    """`slot` is a PCI address without function (`0000:3b:00`), `line` the kernel's message, if any."""

    slot: str
    xid: int
    line: str = ""


class XidDeduplicator:
    """Accepts each XID of a device once per minute: both sources report it, and some repeat rapidly."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[tuple[str, int], float] = {}
        self._lock = threading.Lock()

    def is_first(self, report: XidReport) -> bool:
        now = self._clock()
        with self._lock:
            before = self._last.get((report.slot, report.xid))
            if before is not None and now - before < DEDUPLICATION_S:
                return False
            if len(self._last) >= MAX_KEPT:
                self._last.clear()
            self._last[(report.slot, report.xid)] = now
        return True
