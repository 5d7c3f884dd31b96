"""Reason of a refusal, a wait or a state: a code and its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from portal.common.reasons.registry import registry


@dataclass(frozen=True, slots=True)
class Reason:
    """A code and the parameters of its text: numbers, names, other codes.

    Programs compare `code` and read `params`; only `wording` renders text. `params` are JSON values in base
    units (milli-GPU, MiB, seconds).
    """

    code: StrEnum
    params: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form, for REST and for storage."""
        return {"code": self.code.value, "params": _plain(self.params)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reason:
        """Restore from `as_json`. Raises `LookupError` for an unknown code."""
        return cls(registry.code_named(data["code"]), dict(data.get("params", {})))


def _plain(value: Any) -> Any:
    """Convert to plain JSON types, with lists for tuples, so that a restored reason equals the original."""
    match value:
        case Mapping():
            return {name: _plain(item) for name, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return value
