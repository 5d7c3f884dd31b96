"""Line protocol between the check and its child processes: one JSON object per line, on a separate pipe.

Standard output is ignored, since libraries print there.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
from typing import Any

LINE_MAX = 64 * 1024
TOTAL_MAX = 4 * 1024 * 1024


class LineWriter:
    """The child's end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def send(self, kind: str, **values: Any) -> None:
        """Send one message. Raises `BrokenPipeError` if the check is gone."""
        data = json.dumps({"kind": kind, **values}, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        while data:
            data = data[os.write(self._fd, data) :]


class ProtocolViolation(Exception):
    """A protocol violation: too much data, no JSON, or no object."""


class LineReader:
    """The parent's end: converts bytes to complete messages. An unterminated line is never a message."""

    def __init__(self) -> None:
        self._rest = b""
        self._total = 0

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Return complete messages. Raises `ProtocolViolation`."""
        self._total += len(data)
        if self._total > TOTAL_MAX:
            raise ProtocolViolation(f"more than {TOTAL_MAX // 1024} KiB of messages")
        *complete, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_MAX or any(len(line) > LINE_MAX for line in complete):
            raise ProtocolViolation(f"a line of more than {LINE_MAX // 1024} KiB")
        messages = []
        for line in complete:
            try:
                message = json.loads(line)
            except ValueError as error:
                raise ProtocolViolation("a line that is not JSON") from error
            if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
                raise ProtocolViolation("a message without a kind")
            messages.append(message)
        return messages

    @property
    def cut_off(self) -> bool:
        """Whether the last line is unterminated."""
        return bool(self._rest)


def die_with_parent() -> None:
    """End this process if its parent dies, so a check does not load a device after its worker was killed."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    parent = os.environ.get("BERTH_CHECK_PARENT", "")
    if parent and os.getppid() != int(parent):  # it died before prctl took effect
        raise SystemExit(1)
