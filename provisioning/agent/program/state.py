"""The agent's state file, read by the driver."""

# ruff: noqa: PTH105, UP031

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class StateFile:
    """The state file of one start; see `agent.py`."""

    def __init__(self, path: str, generation: int) -> None:
        self.path = path
        self.generation = generation
        self.written = False

    def write(self, phase: str, port: int | None, **more: Any) -> None:
        """Write the state for the driver. A failure such as a full disk only sets `written` to False."""
        state = {"phase": phase, "generation": self.generation, "port": port, **more}
        try:
            write_atomically(self.path, json.dumps(state).encode())
            self.written = True
        except OSError:
            self.written = False


def write_atomically(path: str, data: bytes) -> None:
    """Atomically replace the file by `data`, readable only by its owner."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)
