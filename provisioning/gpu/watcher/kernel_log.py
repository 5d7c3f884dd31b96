"""XIDs from the kernel's log, `/dev/kmsg`, which has them even if NVML hangs or has lost the device."""

from __future__ import annotations

import errno
import os
import re
import select
from collections.abc import Iterator
from pathlib import Path

from provisioning.gpu.watcher.xid_report import XidReport

KMSG = Path("/dev/kmsg")
RECORD_BYTES = 8192
"""Maximum size of a record; the kernel returns one per read."""
MAX_AT_ONCE = 256
# `NVRM: Xid (PCI:0000:3b:00): 79, pid=…`; drivers before R390 have no `PCI:`.
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})[^)]*\): (\d{1,4})\b"
)
MAX_LINE = 300


def line_of(record: str) -> str:
    """Return the line of a record of the kernel's log; empty for messages of user processes."""
    # `6,1234,5678901,-;text`; continuation lines start with a space.
    head, _, text = record.partition(";")
    # Messages of user processes have another facility than the kernel's.
    level, *_ = head.split(",")
    if not level.isdecimal() or int(level) >> 3 != 0:
        return ""
    return text.split("\n", 1)[0]


def parse(record: str) -> XidReport | None:
    """Return the XID in a record of the kernel's log, or None."""
    line = line_of(record)
    match = _XID.search(line)
    if match is None:
        return None
    return XidReport(slot_of(match.group(1)), int(match.group(2)), line[match.start() :][:MAX_LINE])


def slot_of(bus: str) -> str:
    """Return a device's address without its function: `00000000:3B:00.0`, `PCI:0000:3b:00` → `0000:3b:00`."""
    domain, _, slot = bus.lower().partition(":")
    return f"{int(domain, 16):04x}:{slot.partition('.')[0]}"


class KernelLog:
    """The log from now on. Raises `OSError` if unreadable; can be closed from another thread."""

    def __init__(self, path: Path = KMSG) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        # Earlier records are known to checks and inventory, and may be resolved since.
        os.lseek(self._file, 0, os.SEEK_END)
        self.is_empty = False
        """Set if this is not a log (`/dev/null` in some containers): always readable, without content."""

    def fileno(self) -> int:
        return self._file

    def wait(self, timeout_s: float) -> bool:
        """Return whether a record can be read now."""
        return bool(select.select([self._file], [], [], timeout_s)[0])

    def read(self) -> Iterator[XidReport]:
        """Yield XIDs since the last call."""
        for record in self.records(MAX_AT_ONCE):
            report = parse(record)
            if report is not None:
                yield report

    def records(self, limit: int) -> Iterator[str]:
        """Yield up to `limit` records since the last call."""
        for _ in range(limit):
            try:
                record = os.read(self._file, RECORD_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # the next record was overwritten; continue with the oldest available
                raise
            self.is_empty = not record
            if self.is_empty:
                return
            yield record.decode(errors="replace")

    def close(self) -> None:
        os.close(self._file)
