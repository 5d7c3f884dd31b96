"""Terminals and their last activity."""

# ruff: noqa: PTH116, UP031

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .processes import Table

TTY_MAJORS = range(136, 144)  # device majors of pseudo-terminals


def terminals_of(pids: list[int], table: Table, viewed: set[int]) -> dict[str, Any] | None:
    """Return the terminals of these processes and the time of the last input or output; None if unknown.

    Of those in `viewed` only input counts. The kernel rounds that time to 8 seconds.
    """
    numbers = {table[pid][6] for pid in pids} - {0}
    times = []
    for number in numbers:
        major, minor = number >> 8 & 0xFFF, number & 0xFF | number >> 12 & 0xFFF00
        if major in TTY_MAJORS:
            try:
                info = os.stat("/dev/pts/%d" % ((major - TTY_MAJORS[0]) * 256 + minor))
            except OSError:
                return None  # closed meanwhile, or not visible from here
            times.append(info.st_atime if number in viewed else max(info.st_atime, info.st_mtime))
    last = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(max(times))) if times else None
    return {"count": len(times), "last_activity": last}
