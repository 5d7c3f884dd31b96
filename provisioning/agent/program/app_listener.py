"""The route to the app: the driver's listener, served by the app itself or by a relay to its port."""

# ruff: noqa: UP031

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .app import App
    from .log import Log
    from .spare import Spare


COUNTER_BYTES = 8
"""An unsigned number in native byte order."""


class AppListener:
    """Forwards connections of `listener`, a descriptor or -1, to `app`.

    `counted_at` is the file in which a relay outside gVisor counts forwarded bytes; empty if there is none.
    """

    def __init__(self, listener: int, app: App, spare: Spare | None, log: Log, counted_at: str = "") -> None:
        self.listener = listener
        self.app = app
        self.spare = spare
        self.log = log
        self.counted_at = counted_at
        self.direct: bool | None = None if spare and listener >= 0 else False  # None: not known yet
        self.relay_pid = 0
        self.lifeline = -1
        self.passed: memoryview | None = None  # bytes forwarded by relays, in shared memory

    def find(self, ready: bool) -> None:
        """Check whether the app serves the listener itself, and start a relay if not."""
        if self.direct is None and self.spare:
            self.direct = self.spare.listening()
            if self.direct is None and ready:
                self.direct = False
        if self.direct is False and not self.relay_pid:
            self.start_relay()  # at first, or after a process in the workspace killed it

    def start_relay(self) -> None:
        """Start a process that forwards the listener's connections to the app. It ends with this process."""
        if self.listener < 0:
            return
        # Imported before the fork: the agent needs most of these modules too, and another relay may have to
        # start after an update of Berth.
        from mmap import mmap

        from . import relay as _relay  # noqa: F401

        if self.passed is None:
            self.passed = memoryview(mmap(-1, 8)).cast("Q")
        lifeline, write_end = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(lifeline)
            os.close(write_end)
            self.log.note("could not start the relay to the app: %s" % error)
            return
        if pid == 0:
            become_relay(self.listener, self.app.port, lifeline, self.passed)
        os.close(lifeline)
        if self.lifeline >= 0:
            os.close(self.lifeline)
        self.relay_pid, self.lifeline = pid, write_end

    def traffic_bytes(self) -> int | None:
        """Return the bytes forwarded by relays so far, in both directions; None if unknown."""
        if self.counted_at:
            return read_counter(self.counted_at)
        return None if self.passed is None else int(self.passed[0])

    @property
    def counts(self) -> bool:
        """Whether traffic of the app is counted."""
        return self.listener >= 0 or bool(self.counted_at)


def read_counter(path: str) -> int | None:
    """Return the number in the file; None if unreadable. A workspace may have written anything there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        data = os.read(descriptor, COUNTER_BYTES)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return int.from_bytes(data, sys.byteorder) if len(data) == COUNTER_BYTES else None


def become_relay(listener: int, port: int, lifeline: int, passed: memoryview | None = None) -> None:
    """Run `relay.py` in a child, without other descriptors, especially the lock of the workspace.

    Never returns.
    """
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        first, second = sorted((listener, lifeline))
        for low, high in ((3, first), (first + 1, second), (second + 1, os.sysconf("SC_OPEN_MAX"))):
            os.closerange(low, high)
        from .relay import serve

        serve(listener, port, lifeline, passed)
    except BaseException as error:
        os.write(2, ("berth relay: %s\n" % error).encode())
    finally:
        os._exit(0)
