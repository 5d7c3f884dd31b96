"""Mount points on this machine, as this process sees them."""

from __future__ import annotations

import os
import re
from pathlib import Path

TABLE = Path("/proc/self/mountinfo")
_OCTAL = re.compile(rb"\\([0-7]{3})")


def points() -> list[Path]:
    """Return all mount points in order of mounting, possibly repeated. Raises `OSError`."""
    lines = TABLE.read_bytes().splitlines()
    # The fifth field of proc(5); spaces in paths are written as \040.
    fields = (_OCTAL.sub(lambda digits: bytes([int(digits[1], 8)]), line.split(b" ")[4]) for line in lines)
    return [Path(os.fsdecode(field)) for field in fields]
