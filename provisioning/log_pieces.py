"""A log that grows, read on from where one stopped. Positions are bytes from the beginning of its start."""

from __future__ import annotations

from provisioning.types import LogPiece

PIECE_BYTES = 64 * 1024
"""As much as one piece has at most."""
CUT_OFF = "[…]\n"
"""Stands where what was to come next is no longer kept."""


def last_lines(data: bytes, end: int, lines: int, *, whole: bool) -> LogPiece:
    """The last lines of `data`, which ends at position `end`.

    The last one is left for later while it has no end, unless `whole` says that nothing follows.
    """
    kept = data if whole else data[: data.rfind(b"\n") + 1]
    text = b"".join(kept.splitlines(keepends=True)[-lines:]) if lines > 0 else b""
    return LogPiece(text.decode("utf-8", "replace"), end - len(data) + len(kept))


def lines_from(data: bytes, position: int, *, whole: bool, cut_off: bool = False) -> LogPiece:
    """What is told next of `data`, which begins at `position`: whole lines, a piece at most.

    `cut_off` says that something before it was to be told and is gone.
    """
    piece, more = data[:PIECE_BYTES], len(data) > PIECE_BYTES
    ends = piece.rfind(b"\n") + 1
    if ends:
        if more or not whole:
            piece = piece[:ends]
    elif more:
        # One line longer than a piece: cut between two characters.
        piece = piece[: len(piece) - _begun(piece)]
    elif not whole:
        piece = b""
    text = piece.decode("utf-8", "replace")
    return LogPiece((CUT_OFF if cut_off and text else "") + text, position + len(piece), more=more)


def _begun(data: bytes) -> int:
    """How many bytes at the end are the beginning of a character of UTF-8."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return back if length > back else 0
    return 0
