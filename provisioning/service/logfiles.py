"""Log files of services: size limit and relevant last lines."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

LOG_LIMIT_BYTES = 10 * 1024 * 1024
KEPT = 3


def rotate(path: Path, *, limit_bytes: int = LOG_LIMIT_BYTES, keep: int = KEPT) -> bool:
    """Rotate a log that exceeds the limit (`.1` is the newest); return whether that was done.

    The service keeps its file open, so the text is copied and the file truncated; services append, so their
    next line is at its beginning. If the disk is full, the old text is lost, but the service keeps running.
    """
    try:
        if path.stat().st_size <= limit_bytes:
            return False
    except OSError:
        return False
    for number in range(keep - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number + 1}"))
    newest = path.with_name(f"{path.name}.1")
    try:
        shutil.copyfile(path, newest)
    except OSError:
        newest.unlink(missing_ok=True)
    os.truncate(path, 0)
    return True


_INFORMATIVE = re.compile(r"error|exception|critical|fatal|cannot|denied|refused", re.IGNORECASE)


def last_line(path: Path, *, since: int = 0) -> str:
    """Return the most relevant of the last lines written after offset `since`, shortened; or ''."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(size - 8192, since if since <= size else 0))
            text = stream.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    informative = [line for line in lines if _INFORMATIVE.search(line)]
    return _message_of((informative or lines or [""])[-1])[:300]


def _message_of(line: str) -> str:
    """Return the message of a structured line."""
    try:
        event = json.loads(line)
    except ValueError:
        return line
    if not isinstance(event, dict):
        return line
    parts = [str(event[key]) for key in ("event", "message", "error") if event.get(key)]
    return ": ".join(" ".join(part.split()) for part in parts) or line
