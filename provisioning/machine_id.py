"""What names a machine, wherever its disk goes."""

from __future__ import annotations

import hashlib
from pathlib import Path

MACHINE_ID = Path("/etc/machine-id")


def machine_id(instance: str, path: Path = MACHINE_ID) -> str:
    """What names this machine, as a hash; by `instance` where the machine has no id."""
    try:
        text = path.read_text().strip()
    except OSError:
        text = ""
    return hashlib.sha256(f"berth node\n{text or instance}".encode()).hexdigest()
