"""JSON forms of the values in `provisioning.types`, for Celery messages. Input is validated."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def dump(value: object) -> Any:
    """Plain dicts, lists and scalars that any JSON serializer takes."""
    return msgspec.to_builtins(value)


def load(data: Any, kind: type[T]) -> T:
    """The typed value, or `ValueError` naming the field that is wrong."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a valid {kind.__name__}: {error}") from error
