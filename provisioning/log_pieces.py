"""Reads a growing log in pieces. Positions are byte offsets from the beginning of its start."""

from __future__ import annotations

from provisioning.types import LogPiece

PIECE_BYTES = 64 * 1024
"""Maximum size of a piece."""
CUT_OFF = "[…]\n"
"""Marks a gap: the requested text is no longer stored."""


def last_lines(data: bytes, end: int, lines: int, *, whole: bool) -> LogPiece:
    """Return the last lines of `data`, which ends at offset `end`.

    An unterminated last line is left for later, unless `whole` says that no more output will follow.
    """
    complete = data if whole else data[: data.rfind(b"\n") + 1]
    text = b"".join(complete.splitlines(keepends=True)[-lines:]) if lines > 0 else b""
    return LogPiece(text.decode("utf-8", "replace"), end - len(data) + len(complete))


def lines_from(data: bytes, position: int, *, whole: bool, cut_off: bool = False) -> LogPiece:
    """Return the next piece of `data`, which begins at offset `position`, in whole lines.

    `cut_off` says that requested text before it is gone.
    """
    piece, more = data[:PIECE_BYTES], len(data) > PIECE_BYTES
    ends = piece.rfind(b"\n") + 1
    if ends:
        if more or not whole:
            piece = piece[:ends]
    elif more:
        # A line longer than a piece: cut between two characters.
        piece = piece[: len(piece) - _partial_character_bytes(piece)]
    elif not whole:
        piece = b""
    text = piece.decode("utf-8", "replace")
    return LogPiece((CUT_OFF if cut_off and text else "") + text, position + len(piece), more=more)


def _partial_character_bytes(data: bytes) -> int:
    """Return the length of an incomplete UTF-8 character at the end."""
    for count in range(1, min(4, len(data)) + 1):
        byte = data[-count]
        if byte & 0xC0 != 0x80:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return count if length > count else 0
    return 0
