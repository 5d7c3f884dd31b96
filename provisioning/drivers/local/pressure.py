"""For how much of the last minute something on this machine waited: the kernel's pressure stall information.

Of the whole machine, whoever waited for whatever reason: who has reached a limit of its own waits, too.
"""

from __future__ import annotations

import re
from pathlib import Path

RESOURCES = ("cpu", "memory", "io")
_SOME = re.compile(r"^some .*\bavg60=(\d{1,3}(?:\.\d+)?)\b", re.MULTILINE)


def look(folder: Path = Path("/proc/pressure")) -> dict[str, float | None]:
    """What each resource was waited for. Nothing here raises."""
    return {name: _some(folder / name) for name in RESOURCES}


def _some(file: Path) -> float | None:
    try:
        found = _SOME.search(file.read_text(errors="replace"))
    except OSError:
        # No such file before Linux 4.20; one that cannot be read where it was switched off (`psi=0`).
        return None
    return min(100.0, round(float(found[1]), 1)) if found else None
