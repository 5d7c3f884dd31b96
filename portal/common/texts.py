"""Texts from outside: programs may write anything, a database takes only some of it."""

from __future__ import annotations

from typing import Any


def storable(text: str) -> str:
    """The text without NUL characters, which PostgreSQL refuses, and without lone surrogates."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def storable_json(value: Any) -> Any:
    """The same for every text in a JSON value."""
    match value:
        case str():
            return storable(value)
        case list():
            return [storable_json(item) for item in value]
        case dict():
            return {storable(str(key)): storable_json(item) for key, item in value.items()}
        case _:
            return value
