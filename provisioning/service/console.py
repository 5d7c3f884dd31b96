"""Console output of the one-command start: one line per step with its duration, on a terminal or in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

LABEL_WIDTH = 22
QUIET_REPEAT_S = 10.0


class Problem(Exception):
    """A problem that the operator has to fix: its cause, and one next action."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(" ".join(filter(None, (message, fix))))
        self.message = message
        self.fix = fix


class Step:
    """One step in progress. `result` is the text of its finished line; `update` shows current activity."""

    def __init__(self, console: Console, label: str) -> None:
        self._console = console
        self._label = label
        self._started = time.monotonic()
        self._shown_at = self._started
        self._shown = ""
        self.result = ""
        self.mark = "✓"
        """Mark of its finished line; `!` if it failed but later steps continue."""

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def update(self, doing: str) -> None:
        """Show current activity: in place on a terminal, otherwise occasionally as a separate line."""
        if self._console.interactive:
            self._console.show_transient(self._line("…", doing))
            return
        now = time.monotonic()
        if doing != self._shown and now - self._shown_at >= QUIET_REPEAT_S:
            self._shown, self._shown_at = doing, now
            self._console.say(self._line("…", doing))

    def finish(self) -> None:
        self._console.say(self._line(self.mark, self.result))

    def _line(self, mark: str, text: str) -> str:
        return f"  {mark} {self._label:<{LABEL_WIDTH}} {text:<44} {self.elapsed_s:5.1f} s".rstrip()


class Console:
    """Writes lines, and ignores write errors: a closed terminal must not stop the portal."""

    def __init__(self, stream: TextIO | None = None, errors: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stdout
        self._errors = errors if errors is not None else sys.stderr
        self._lock = threading.Lock()
        self._transient = False
        try:
            self.interactive = self._stream.isatty()
        except ValueError:
            self.interactive = False
        encoding = (getattr(self._stream, "encoding", None) or "ascii").lower().replace("-", "")
        self._plain = encoding != "utf8"

    def say(self, text: str = "") -> None:
        """Write one line."""
        self._write(self._stream, text + "\n", transient=False)

    def show_transient(self, text: str) -> None:
        """Write a line that the next one replaces."""
        self._write(self._stream, text, transient=True)

    def complain(self, problem: Problem) -> None:
        """Write the line about a problem."""
        self._write(self._errors, f"  ✗ {problem}\n", transient=False)

    @contextmanager
    def step(self, label: str) -> Iterator[Step]:
        """Show a step from start to end; the caller reports its failure."""
        step = Step(self, label)
        if self.interactive:
            step.update("")
        yield step
        step.finish()

    def _write(self, stream: TextIO, text: str, *, transient: bool) -> None:
        if self._plain:
            for fancy, plain in (("✓", "+"), ("✗", "!"), ("…", "..."), ("·", "-"), ("–", "-")):
                text = text.replace(fancy, plain)
            text = text.encode("ascii", "replace").decode()
        with self._lock:
            clear = "\r\x1b[K" if self._transient else ""
            self._transient = transient
            try:
                stream.write(clear + text)
                stream.flush()
            except (OSError, ValueError):
                # The terminal is gone (a lost SSH connection, a closed pipe): continue without output.
                self._transient = False
