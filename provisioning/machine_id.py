"""Identification of a machine, independent of its disk."""

from __future__ import annotations

import hashlib
from pathlib import Path

MACHINE_ID = Path("/etc/machine-id")


def machine_id(instance: str, path: Path = MACHINE_ID) -> str:
    """Return a hash that identifies this machine, based on `instance` if it has no machine ID."""
    try:
        text = path.read_text().strip()
    except OSError:
        text = ""
    return hashlib.sha256(f"berth node\n{text or instance}".encode()).hexdigest()
