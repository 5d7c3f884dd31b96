"""The log: what the app writes, size-capped, with one old file, and no token or secret in it."""

# ruff: noqa: PTH105, PTH123, UP031

from __future__ import annotations

import os

TAIL_LINES = 50
TAIL_BYTES = 16384
MASKED_LINES = 100  # a value of more is taken out as a whole only
MASKED_MIN = 8  # what is shorter is too common a text to take it out of the log


class Log:
    """Copies the app's output to a file. A full disk loses lines, never the app."""

    def __init__(self, path: str, max_bytes: int, tokens: list[str]) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.hidden: list[tuple[bytes, bytes]] = []
        self.hide(tokens, b"[token]")
        self.pending = b""
        self.descriptor = -1
        self.size = 0
        self.begins = 0  # how many bytes were written before this file
        self.marked = False

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self.descriptor = os.open(self.path, flags, 0o600)
        self.size = os.fstat(self.descriptor).st_size
        self.marked = False

    def _mark(self) -> None:
        """Say at which position the present file begins, and which one that is, for who reads on."""
        beside = self.path + ".start"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(beside + ".new", flags, 0o600)
            try:
                os.write(descriptor, b"%d %d\n" % (os.fstat(self.descriptor).st_ino, self.begins))
            finally:
                os.close(descriptor)
            os.replace(beside + ".new", beside)
            self.marked = True
        except OSError:
            pass  # a full disk: with what is written next it is tried again

    def hide(self, values: list[str], shown: bytes) -> None:
        """Write `shown` for each of these from now on, and for each line of one that has some."""
        lines = [value.splitlines() for value in values]
        parts = {*values, *(value.strip() for value in values)}
        parts.update(line for each in lines if len(each) <= MASKED_LINES for line in each)
        known = {part for part, _shown in self.hidden}
        encoded = {part.encode() for part in parts} - known
        self.hidden += [(part, shown) for part in encoded if len(part) >= MASKED_MIN]
        # The longest first: a shorter one may be a part of it.
        self.hidden.sort(key=lambda pair: -len(pair[0]))

    def feed(self, data: bytes, last: bool = False) -> None:
        """Write `data` without what is hidden, holding back what may be the beginning of that."""
        data = self.pending + data
        for part, shown in self.hidden:
            data = data.replace(part, shown)
        held = 0
        if not last:
            for part, _shown in self.hidden:
                held = max(held, overlap(data, part))
        self.pending = data[len(data) - held :]
        self._write(data[: len(data) - held])

    def _write(self, data: bytes) -> None:
        try:
            if self.descriptor < 0:
                self._open()
            if self.size and self.size + len(data) > self.max_bytes:
                os.close(self.descriptor)
                self.descriptor = -1
                os.replace(self.path, self.path + ".1")
                self.begins += self.size
                self._open()
            if self.begins and not self.marked:
                self._mark()
            while data:
                written = os.write(self.descriptor, data)
                self.size += written
                data = data[written:]
        except OSError:
            pass

    def without_hidden(self, text: str) -> str:
        """`text` without what is hidden."""
        data = text.encode()
        for part, shown in self.hidden:
            data = data.replace(part, shown)
        return data.decode("utf-8", "replace")

    def note(self, text: str) -> None:
        """A line of the agent's own."""
        self.feed(("[berth] %s\n" % text).encode())

    def aside(self, text: str) -> None:
        """Lines of the agent's own, of a thread beside the one that feeds: what that holds back stays so."""
        self._write(
            "".join("[berth] %s\n" % line for line in self.without_hidden(text).splitlines()).encode()
        )

    def tail(self) -> str:
        """The last lines of the log as text."""
        data = b""
        for path in (self.path, self.path + ".1"):
            try:
                with open(path, "rb") as handle:
                    size = handle.seek(0, os.SEEK_END)
                    handle.seek(max(0, size - TAIL_BYTES))
                    data = handle.read() + data
            except OSError:
                continue
            if data.count(b"\n") >= TAIL_LINES:
                break
        lines = data[-TAIL_BYTES:].decode("utf-8", "replace").splitlines()
        return "\n".join(lines[-TAIL_LINES:])


def overlap(data: bytes, part: bytes) -> int:
    """How many bytes at the end of `data` are the beginning of `part`, and not all of it."""
    start = max(0, len(data) - len(part) + 1)
    while True:
        start = data.find(part[:1], start)
        if start < 0:
            return 0
        if part.startswith(data[start:]):
            return len(data) - start
        start += 1
