"""What rouses the main thread: signals, children that end, and the other threads."""

from __future__ import annotations

import os


class Waking:
    """A pipe that the main thread waits on; `signal.set_wakeup_fd` and `rouse` write to it."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        os.set_blocking(self.write_end, False)

    def rouse(self) -> None:
        """Any thread: have the main thread look."""
        os.write(self.write_end, b"x")

    def pause(self, timeout_s: float, *more: int) -> None:
        """The main thread: until it is roused, one of `more` (descriptors) can be read, or time is up."""
        import select

        select.select([self.read_end, *more], [], [], timeout_s)
        try:
            while os.read(self.read_end, 4096):
                pass
        except BlockingIOError:
            pass
