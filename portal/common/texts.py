"""Removes characters that databases would reject, splits texts and parses hours."""

from __future__ import annotations

import re
from typing import Any

from portal.common.errors import InvalidInput
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason

LONG_TEXT = 240
"""Maximum length of a text that `split_sentence` does not split."""
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


def strip_nul(text: str) -> str:
    """Return the text without NUL characters, which PostgreSQL rejects, and without lone surrogates."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def strip_nul_json(value: Any) -> Any:
    """Apply `strip_nul` to every string in a JSON value."""
    match value:
        case str():
            return strip_nul(value)
        case list():
            return [strip_nul_json(item) for item in value]
        case dict():
            return {strip_nul(str(key)): strip_nul_json(item) for key, item in value.items()}
        case _:
            return value


def split_sentence(text: str) -> tuple[str, str]:
    """Return the first sentence of a text and the rest, or the whole text and “” if it is short."""
    text = text.strip()
    if len(text) <= LONG_TEXT and "\n" not in text:
        return text, ""
    end = SENTENCE_END.search(text)
    return (text[: end.start()].rstrip(), text[end.end() :].strip()) if end is not None else (text, "")


def parse_hours(text: str) -> int | None:
    """Parse hours typed by a user. Returns seconds, or None if empty. Raises `InvalidInput`."""
    text = strip_nul(text).strip().replace(",", ".")
    if not text:
        return None
    try:
        return round(float(text) * 3600)
    except (ValueError, OverflowError):
        reason = Reason(CommonCode.HOURS_NOT_UNDERSTOOD)
        raise InvalidInput(reason, errors={"hours": [reason]}) from None
