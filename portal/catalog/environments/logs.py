"""Cleans and appends build logs: bounded, without terminal escapes."""

from __future__ import annotations

import re

from portal.common.texts import strip_nul

MAX_LOG = 1024 * 1024
_ESCAPES = re.compile(
    # OSC, DCS, PM, APC and SOS with their terminator; CSI; any other escape with one character.
    r"\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)|\x1b\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]?",
    re.DOTALL,
)
# Characters that move, hide or reorder text, except tabs and line ends.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def clean(text: str) -> str:
    """Return the text without terminal escapes and control characters, with uniform line ends."""
    text = _ESCAPES.sub("", strip_nul(text))
    return _CONTROLS.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def append_text(log: str, dropped: int, received: int, *, offset: int, text: str) -> tuple[str, int, int]:
    """Append text at `offset` in the node's count. Returns the new log, dropped and received.

    Skips characters already received, and marks a gap with a line.
    """
    if offset + len(text) <= received:
        return log, dropped, received
    if offset < received:
        text = text[received - offset :]
    gap = "\n[…]\n" if offset > received else ""
    log += gap + clean(text)
    received = max(offset, received) + len(text)
    if len(log) > MAX_LOG:
        # Cut at the beginning of a line, and a quarter at once, so that few messages cut.
        cut = log.find("\n", len(log) - MAX_LOG * 3 // 4) + 1 or len(log) - MAX_LOG
        log, dropped = log[cut:], dropped + cut
    return log, dropped, received
