"""Ports for test servers, distinct between test processes."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import random
import socket
import tempfile
from collections import deque
from pathlib import Path

CLAIMED: deque[contextlib.ExitStack] = deque(maxlen=100)
"""Ports of this process, locked against others of the tests."""
atexit.register(lambda: [claims.close() for claims in CLAIMED])


def consecutive_ports(number: int) -> int:
    """The first of several consecutive free ports below the kernel's ephemeral range.

    No other test process gets them until this one has ended or has taken many more, so they can be used again
    after a restart.
    """
    folder = Path(tempfile.gettempdir()) / f"berth-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for _ in range(1000):
        first = random.randrange(29000, 32700)
        with contextlib.ExitStack() as claims, contextlib.ExitStack() as held:
            try:
                for port in range(first, first + number):
                    claim = claims.enter_context((folder / str(port)).open("a"))
                    fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    server = held.enter_context(socket.socket())
                    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    server.bind(("127.0.0.1", port))
            except OSError:
                continue
            if len(CLAIMED) == CLAIMED.maxlen:
                CLAIMED[0].close()
            CLAIMED.append(claims.pop_all())
            return first
    raise RuntimeError("no consecutive ports are free")


def free_port() -> int:
    """One such port; ephemeral ports may be taken before a server starts."""
    return consecutive_ports(1)
