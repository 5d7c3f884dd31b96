"""Rate of progress as reported by the job: one file per counter, containing its running total.

The folder is `BERTH_PROGRESS_DIR`; `echo 123456 > "$BERTH_PROGRESS_DIR/tokens"` reports that many tokens
done. A job may write as often as it likes: each heartbeat reads a few bytes of a few files.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections import deque

MAX_NAMES = 4
MAX_ENTRIES = 64  # entries of the folder that are read
MAX_BYTES = 64
MAX_DONE = 1e15
WINDOW_S = 600.0
LEAST_S = 300.0  # minimum period for a rate
SPACING_S = 5.0  # minimum spacing of stored values
STALE_S = 180.0  # counters without updates for longer are treated as stopped
CLOCK_SET_S = 2.0
NAME = re.compile(r"[a-z][a-z0-9_]{0,29}\Z")
DONE = re.compile(rb"\s*([0-9]{1,16}(?:\.[0-9]{1,9})?)\s*\Z")


class ProgressCounters:
    """Counters of one start. Reading is bounded and raises nothing, whatever the folder contains."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.totals: dict[str, deque[tuple[float, float]]] = {}  # name → (time, total)
        self.clock: float | None = None

    def rates(self) -> dict[str, float]:
        """Return the rate per second of each counter over the last ten minutes.

        Omits counters that are younger than five minutes, stale, or not increasing.
        """
        if not self.folder:
            return {}
        now = time.time()
        clock = now - time.monotonic()
        if self.clock is not None and abs(clock - self.clock) > CLOCK_SET_S:
            self.totals.clear()  # times before and after a clock change are not comparable
        self.clock = clock
        counters = self.read()
        if len(self.totals.keys() | counters.keys()) > MAX_NAMES:
            # A file that is just being written is not found; its counter is kept while there is room.
            self.totals = {name: rows for name, rows in self.totals.items() if name in counters}
        for name, (at, total) in counters.items():
            self.update(name, at, total, now)
        rates = {name: rate(rows, now) for name, rows in self.totals.items()}
        return {name: value for name, value in rates.items() if value}

    def update(self, name: str, at: float, total: float, now: float) -> None:
        """Store a total written at `at`, if it is new and not in the future."""
        if at > now + CLOCK_SET_S:
            self.totals.pop(name, None)
            return
        rows = self.totals.setdefault(name, deque())
        if rows and (total < rows[-1][1] or at < rows[-1][0]):
            rows.clear()  # the job has restarted
        if rows and at == rows[-1][0]:
            return
        if len(rows) > 1 and at - rows[-2][0] < SPACING_S:
            rows.pop()
        rows.append((at, total))
        while rows[-1][0] - rows[0][0] > WINDOW_S:
            rows.popleft()

    def read(self) -> dict[str, tuple[float, float]]:
        """Return time of last write and total by name. Invalid files are ignored."""
        counters: dict[str, tuple[float, float]] = {}
        try:
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return counters
        try:
            names = []
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    names.append(entry.name)
                    if len(names) == MAX_ENTRIES:
                        break
            # Sorted, so that the same files are read each time.
            for name in sorted(filter(NAME.match, names)):
                counter = read_one(name, folder)
                if counter is not None:
                    counters[name] = counter
                if len(counters) == MAX_NAMES:
                    break
        finally:
            os.close(folder)
        return counters


def read_one(name: str, folder: int) -> tuple[float, float] | None:
    """Return time of last write and total of a file; None if it is not a valid counter."""
    try:
        # Never block on a pipe without a writer, and never follow a link.
        descriptor = os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder
        )
    except OSError:
        return None
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            return None
        text = os.read(descriptor, MAX_BYTES + 1)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    match = DONE.match(text)
    if match is None or len(text) > MAX_BYTES:
        return None
    total = float(match.group(1))
    return (info.st_mtime, total) if total <= MAX_DONE else None


def rate(rows: deque[tuple[float, float]], now: float) -> float | None:
    """Return the rate per second; None if unknown or zero."""
    if len(rows) < 2 or now - rows[-1][0] > STALE_S:
        return None
    seconds = rows[-1][0] - rows[0][0]
    if seconds < LEAST_S:
        return None
    return float("%.6g" % ((rows[-1][1] - rows[0][1]) / seconds)) or None
