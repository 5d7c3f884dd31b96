"""Decodes package lists that other tools and editors saved. Standard library only."""

from __future__ import annotations

import codecs

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # begins like the mark of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SPACES = dict.fromkeys(map(ord, "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
                                 "\u200a\u202f\u205f\u3000"), " ")  # fmt: skip
_INVISIBLE = dict.fromkeys(map(ord, "\ufeff\u200b\u200c\u200d\u2060\u00ad"))


def decoded(data: bytes) -> str:
    """Return the text of a file in UTF-8, UTF-16 or UTF-32. Invalid bytes become U+FFFD.

    PowerShell writes UTF-16 with a byte order mark; some editors leave the mark out.
    """
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, "replace")
    if len(data) >= 2 and not len(data) % 2:
        # Lists are mostly ASCII: in UTF-16 every other byte is then 0.
        if data[1::2].count(0) * 4 > len(data):
            return data.decode("utf-16-le", "replace")
        if data[::2].count(0) * 4 > len(data):
            return data.decode("utf-16-be", "replace")
    return data.decode("utf-8", "replace")


def normalize_text(text: str) -> str:
    """Return the text with plain spaces and line ends, and without invisible characters."""
    return text.translate(_SPACES | _INVISIBLE).replace("\r\n", "\n").replace("\r", "\n")
