"""The log of a build as it is kept: bounded, without what a terminal would act upon."""

from __future__ import annotations

import re

from portal.common.texts import strip_nul

MAX_LOG = 1024 * 1024
_ESCAPES = re.compile(
    # OSC, DCS, PM, APC and SOS to their end; CSI; any other escape with its one character.
    r"\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)|\x1b\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]?",
    re.DOTALL,
)
# What moves, hides or turns text around, but for tabs and line ends.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def clean(text: str) -> str:
    """The text for a page: no terminal escapes, no control characters, one kind of line end."""
    text = _ESCAPES.sub("", strip_nul(text))
    return _CONTROLS.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def appended(log: str, dropped: int, received: int, *, offset: int, text: str) -> tuple[str, int, int]:
    """The log with what came at `offset` of the node's own count: the new log, dropped and received.

    What has been received already is left out; where something is missing a line says so.
    """
    if offset + len(text) <= received:
        return log, dropped, received
    if offset < received:
        text = text[received - offset :]
    gap = "\n[…]\n" if offset > received else ""
    log += gap + clean(text)
    received = max(offset, received) + len(text)
    if len(log) > MAX_LOG:
        # At a line's beginning, and by more than a line: it is not cut at each message.
        cut = log.find("\n", len(log) - MAX_LOG * 3 // 4) + 1 or len(log) - MAX_LOG
        log, dropped = log[cut:], dropped + cut
    return log, dropped, received
