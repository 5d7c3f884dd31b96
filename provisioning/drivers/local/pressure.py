"""Share of the last minute in which tasks on this machine waited: the kernel's pressure stall information.

Covers the whole machine and all reasons, including tasks that wait at their own limit.
"""

from __future__ import annotations

import re
from pathlib import Path

RESOURCES = ("cpu", "memory", "io")
_SOME = re.compile(r"^some .*\bavg60=(\d{1,3}(?:\.\d+)?)\b", re.MULTILINE)


def read_pressure(folder: Path = Path("/proc/pressure")) -> dict[str, float | None]:
    """Return the share in percent by resource. Never raises."""
    return {name: _some_average(folder / name) for name in RESOURCES}


def _some_average(file: Path) -> float | None:
    try:
        match = _SOME.search(file.read_text(errors="replace"))
    except OSError:
        # The file is missing before Linux 4.20, and unreadable if disabled (`psi=0`).
        return None
    return min(100.0, round(float(match[1]), 1)) if match else None
