"""What is shown on a terminal: text from workspaces and from other people must not command it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import IO, Any

# Sequences that terminals obey: CSI (colours, cursor), OSC, DCS and the like with their end, and single ones.
_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[PX\]^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
# All other control characters, and those that turn the direction of text around.
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


def harmless(text: str) -> str:
    """The text without what a terminal would obey. Line breaks and tabs stay; the rest is shown as codes."""
    text = _SEQUENCES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class HarmlessStream:
    """A stream to a terminal, which gets `harmless` text only; all else is the stream's own."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(harmless(text))
        return len(text)

    def unguarded(self, text: str) -> None:
        """Write sequences of our own."""
        self._stream.write(text)
        self._stream.flush()

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def guarded(stream: Any) -> Any:
    """The stream, as a `HarmlessStream` where it leads to a terminal: a file or a pipe gets all as it is."""
    return HarmlessStream(stream) if stream is not None and stream.isatty() else stream


class Progress:
    """How something comes along: one line that is written anew on a terminal, else a line for each step.

    Lines for each step are also for CI, TERM=dumb and NO_COLOR; colours there are none. In a `with`
    statement, so that the line is ended.
    """

    def __init__(self, stream: Any, environ: Mapping[str, str]) -> None:
        plain = environ.get("TERM") == "dumb" or bool(environ.get("NO_COLOR")) or bool(environ.get("CI"))
        self._in_place = isinstance(stream, HarmlessStream) and not plain
        self._stream = stream
        self._begun = False

    def show(self, text: str) -> None:
        if not self._in_place:
            print(text, file=self._stream, flush=True)
            return
        # Ours are the only sequences: what is shown was written by others.
        self._stream.unguarded(f"\r\x1b[K{harmless(text).replace(chr(10), ' ')}")
        self._begun = True

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._begun:
            self._stream.unguarded("\n")
