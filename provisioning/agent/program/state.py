"""What the driver reads of the agent: the state file."""

# ruff: noqa: PTH105, UP031

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class State:
    """The state file of one start; see `agent.py`."""

    def __init__(self, path: str, generation: int) -> None:
        self.path = path
        self.generation = generation
        self.written = False

    def write(self, phase: str, port: int | None, **more: Any) -> None:
        """Publish the state to the driver; a full disk is survived, and `written` says so."""
        state = {"phase": phase, "generation": self.generation, "port": port, **more}
        try:
            write_atomically(self.path, json.dumps(state).encode())
            self.written = True
        except OSError:
            self.written = False


def write_atomically(path: str, data: bytes) -> None:
    """Replace `path` by `data` (bytes) in one step, readable by its owner only."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)
