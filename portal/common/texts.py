"""Texts from outside: programs may write anything, a database takes only some of it."""

from __future__ import annotations

from typing import Any


def strip_nul(text: str) -> str:
    """The text without NUL characters, which PostgreSQL refuses, and without lone surrogates."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def strip_nul_json(value: Any) -> Any:
    """The same for every text in a JSON value."""
    match value:
        case str():
            return strip_nul(value)
        case list():
            return [strip_nul_json(item) for item in value]
        case dict():
            return {strip_nul(str(key)): strip_nul_json(item) for key, item in value.items()}
        case _:
            return value
