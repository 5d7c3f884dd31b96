"""Registry of codes by value. Plain Python; filled by `portal.common.reasons.rooms` at startup."""

from __future__ import annotations

from enum import StrEnum


class DuplicateCode(ValueError):
    """Two codes have the same value."""


class Registry:
    """All enumerations of codes. Finds a code by its value."""

    def __init__(self) -> None:
        self._enumerations: list[type[StrEnum]] = []
        self._codes: dict[str, StrEnum] = {}

    def register(self, enumeration: type[StrEnum]) -> None:
        """Register an enumeration. Idempotent. Raises `DuplicateCode` if another one has the same value."""
        if enumeration in self._enumerations:
            return
        for code in enumeration:
            if (other := self._codes.get(code.value)) is not None:
                raise DuplicateCode(f"{_path(code)} and {_path(other)} have the same value “{code.value}”.")
        self._enumerations.append(enumeration)
        self._codes.update({code.value: code for code in enumeration})

    def code_named(self, value: str) -> StrEnum:
        """Return the code with this value. Raises `LookupError` for an unknown value."""
        return self._codes[value]

    @property
    def enumerations(self) -> tuple[type[StrEnum], ...]:
        """All enumerations, in the order of registration."""
        return tuple(self._enumerations)


def _path(code: StrEnum) -> str:
    return f"{type(code).__module__}.{type(code).__name__}.{code.name}"


registry = Registry()
"""Codes of all packages. Rows and problem documents store only the value."""
