"""The app's log: size-limited, with one old file, and with tokens and secrets redacted."""

# ruff: noqa: PTH105, PTH123, UP031

from __future__ import annotations

import os

TAIL_LINES = 50
TAIL_BYTES = 16384
MASKED_LINES = 100  # longer values are only redacted as a whole
MASKED_MIN = 8  # shorter texts are too common to redact


class Log:
    """Copies the app's output to a file. On a full disk lines are lost, but the app continues."""

    def __init__(self, path: str, max_bytes: int, tokens: list[str]) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.hidden: list[tuple[bytes, bytes]] = []
        self.mask_values(tokens, b"[token]")
        self.pending = b""
        self.descriptor = -1
        self.size = 0
        self.begins = 0  # bytes written before this file
        self.marked = False

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self.descriptor = os.open(self.path, flags, 0o600)
        self.size = os.fstat(self.descriptor).st_size
        self.marked = False

    def _mark(self) -> None:
        """Record the start offset and the inode of the current file, for readers that continue."""
        head_path = self.path + ".start"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(head_path + ".new", flags, 0o600)
            try:
                os.write(descriptor, b"%d %d\n" % (os.fstat(self.descriptor).st_ino, self.begins))
            finally:
                os.close(descriptor)
            os.replace(head_path + ".new", head_path)
            self.marked = True
        except OSError:
            pass  # a full disk: retried with the next write

    def mask_values(self, values: list[str], replacement: bytes) -> None:
        """Replace each value by `replacement` from now on, and each line of multi-line values."""
        lines = [value.splitlines() for value in values]
        parts = {*values, *(value.strip() for value in values)}
        parts.update(
            line for value_lines in lines if len(value_lines) <= MASKED_LINES for line in value_lines
        )
        hidden_parts = {part for part, _shown in self.hidden}
        encoded = {part.encode() for part in parts} - hidden_parts
        self.hidden += [(part, replacement) for part in encoded if len(part) >= MASKED_MIN]
        # Longest first: a shorter one may be a part of it.
        self.hidden.sort(key=lambda pair: -len(pair[0]))

    def feed(self, data: bytes, last: bool = False) -> None:
        """Write `data` with redactions, holding back a possible beginning of a redacted text."""
        data = self.pending + data
        for part, replacement in self.hidden:
            data = data.replace(part, replacement)
        held_back = 0
        if not last:
            for part, _shown in self.hidden:
                held_back = max(held_back, overlap(data, part))
        self.pending = data[len(data) - held_back :]
        self._write(data[: len(data) - held_back])

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

    def redact(self, text: str) -> str:
        """Return `text` with redactions."""
        data = text.encode()
        for part, replacement in self.hidden:
            data = data.replace(part, replacement)
        return data.decode("utf-8", "replace")

    def note(self, text: str) -> None:
        """Write a line of the agent itself."""
        self.feed(("[berth] %s\n" % text).encode())

    def note_unheld(self, text: str) -> None:
        """Write lines of the agent from another thread, without touching data held back by `feed`."""
        self._write("".join("[berth] %s\n" % line for line in self.redact(text).splitlines()).encode())

    def tail(self) -> str:
        """Return the last lines of the log as text."""
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
    """Return the length of the longest suffix of `data` that is a proper prefix of `part`."""
    start = max(0, len(data) - len(part) + 1)
    while True:
        start = data.find(part[:1], start)
        if start < 0:
            return 0
        if part.startswith(data[start:]):
            return len(data) - start
        start += 1
