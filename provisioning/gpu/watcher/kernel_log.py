"""XIDs in the kernel's log, `/dev/kmsg`: they stand there even when NVML hangs or has lost the device."""

from __future__ import annotations

import errno
import os
import re
import select
from collections.abc import Iterator
from pathlib import Path

from provisioning.gpu.watcher.seen import Seen

KMSG = Path("/dev/kmsg")
RECORD_BYTES = 8192
"""The kernel gives one record at a time, and none that is longer."""
MAX_AT_ONCE = 256
# `NVRM: Xid (PCI:0000:3b:00): 79, pid=…`; drivers before R390 have no `PCI:`.
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})[^)]*\): (\d{1,4})\b"
)
MAX_LINE = 300


def parse(record: str) -> Seen | None:
    """The XID in a record of the kernel's log; None where it is about something else."""
    # `6,1234,5678901,-;text`, and further lines of the record begin with a blank.
    head, _, text = record.partition(";")
    # What a process has written has another facility than the kernel's.
    level, *_ = head.split(",")
    if not text or not level.isdecimal() or int(level) >> 3 != 0:
        return None
    line = text.split("\n", 1)[0]
    found = _XID.search(line)
    if found is None:
        return None
    return Seen(slot_of(found.group(1)), int(found.group(2)), line[found.start() :][:MAX_LINE])


def slot_of(bus: str) -> str:
    """`00000000:3B:00.0`, `PCI:0000:3b:00` → `0000:3b:00`: a device without its function."""
    domain, _, rest = bus.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest.partition('.')[0]}"


class KernelLog:
    """The log from now on. Raises `OSError` where it may not be read; may be closed from another thread."""

    def __init__(self, path: Path = KMSG) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        # What was before is known by checks and inventory, and may have been put right since.
        os.lseek(self._file, 0, os.SEEK_END)
        self.is_empty = False
        """What is no log (`/dev/null`, in some containers) can always be read, and has nothing in it."""

    def fileno(self) -> int:
        return self._file

    def wait(self, timeout_s: float) -> bool:
        """Whether there is something to read now."""
        return bool(select.select([self._file], [], [], timeout_s)[0])

    def read(self) -> Iterator[Seen]:
        """The XIDs that have come since the last time."""
        for _ in range(MAX_AT_ONCE):
            try:
                record = os.read(self._file, RECORD_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # what was next has been overwritten: the kernel goes on with what is left
                raise
            self.is_empty = not record
            if self.is_empty:
                return
            found = parse(record.decode(errors="replace"))
            if found is not None:
                yield found

    def close(self) -> None:
        os.close(self._file)
