"""Conversion of the values in `provisioning.types` to and from JSON for Celery messages, with validation."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
MAX_BYTES = 64 * 1024 * 1024
"""Maximum size of one message from the other plane; an inventory of the largest pool has less than half."""


def dump(value: object) -> Any:
    """Return plain dicts, lists and scalars for any JSON serializer."""
    return msgspec.to_builtins(value)


def load(data: Any, kind: type[T]) -> T:
    """Return the typed value. Raises `ValueError` that names the invalid field."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a valid {kind}: {error}") from error


def receive(data: Any, kind: type[T]) -> T:
    """Load a message of the other plane; also raises `ValueError` for values that cannot be stored.

    Rejects excessive nesting, numbers out of range, and more than `MAX_BYTES`. Removes NUL characters and
    lone surrogates from texts. Numbers that are not finite become null.
    """
    name = getattr(kind, "__name__", str(kind))
    try:
        try:
            raw = msgspec.json.encode(data)
        except UnicodeEncodeError:
            raw = msgspec.json.encode(_strip_unstorable(data))
        if b"\\u0000" in raw:
            raw = msgspec.json.encode(_strip_unstorable(msgspec.json.decode(raw)))
        if len(raw) > MAX_BYTES:
            raise ValueError(f"not a valid {name}: {len(raw)} bytes")
        return msgspec.json.decode(raw, type=kind)
    except RecursionError:
        raise ValueError(f"not a valid {name}: nested too deeply") from None
    except (msgspec.MsgspecError, OverflowError, TypeError) as error:
        raise ValueError(f"not a valid {name}: {error}") from error


def _strip_unstorable(value: Any) -> Any:
    """Return the value with texts that every database accepts."""
    if isinstance(value, str):
        return value.replace("\0", "").encode("utf-8", "replace").decode()
    if isinstance(value, list | tuple):
        return [_strip_unstorable(item) for item in value]
    if isinstance(value, dict):
        return {_strip_unstorable(key): _strip_unstorable(item) for key, item in value.items()}
    return value
