"""Atomic writing of files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_file(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Replace a file atomically: readers see the old or the new text, even after a crash."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(text)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
