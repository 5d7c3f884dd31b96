"""Terminal output, where text from workspaces and other people must not contain control sequences."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import IO, Any

# Sequences that terminals interpret: CSI (colours, cursor), OSC, DCS and similar with their terminator, and
# single ones.
_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[PX\]^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
# All other control characters, and characters that change the direction of text.
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


def harmless(text: str) -> str:
    """Remove control sequences, and show control characters except line breaks and tabs as codes."""
    text = _SEQUENCES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class HarmlessStream:
    """A terminal stream that writes only `harmless` text, and otherwise works like the wrapped stream."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(harmless(text))
        return len(text)

    def unguarded(self, text: str) -> None:
        """Write our own control sequences."""
        self._stream.write(text)
        self._stream.flush()

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def guard_terminal(stream: Any) -> Any:
    """Wrap a stream to a terminal in `HarmlessStream`; files and pipes get unchanged text."""
    return HarmlessStream(stream) if stream is not None and stream.isatty() else stream


class Progress:
    """Progress output: a line that is rewritten on a terminal, otherwise one line per step.

    CI, TERM=dumb and NO_COLOR also select one line per step; there are no colours. Use it in a `with`
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
        # Write only our own sequences, because the text comes from others.
        self._stream.unguarded(f"\r\x1b[K{harmless(text).replace(chr(10), ' ')}")
        self._begun = True

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._begun:
            self._stream.unguarded("\n")
