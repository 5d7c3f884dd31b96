"""Wakes the main thread: on signals, ended children, and requests of other threads."""

from __future__ import annotations

import os


class WakePipe:
    """A pipe that the main thread waits on; `signal.set_wakeup_fd` and `wake` write to it."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        os.set_blocking(self.write_end, False)

    def wake(self) -> None:
        """Any thread: wake the main thread."""
        os.write(self.write_end, b"x")

    def pause(self, timeout_s: float, *more: int) -> None:
        """Main thread: wait until woken, until a descriptor of `more` is readable, or for `timeout_s`."""
        import select

        select.select([self.read_end, *more], [], [], timeout_s)
        try:
            while os.read(self.read_end, 4096):
                pass
        except BlockingIOError:
            pass
