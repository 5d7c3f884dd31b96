"""Why something is refused, waits or is as it is: a code to decide by, and what there is to say about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from portal.common.reasons.registry import registry


@dataclass(frozen=True, slots=True)
class Reason:
    """A code, and the values that its text is made of: numbers, names, other reasons' codes.

    Programs compare `code` and read `params`; only `wording` makes a sentence of it. `params` hold what
    JSON can hold, in base units (milli-GPU, MiB, seconds): amounts are put into words with the text.
    """

    code: StrEnum
    params: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """As REST shows it and rows keep it."""
        return {"code": self.code.value, "params": _plain(self.params)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reason:
        """What `as_json` gave. Raises `LookupError` for a code that there is no more."""
        return cls(registry.code_named(data["code"]), dict(data.get("params", {})))


def _plain(value: Any) -> Any:
    """What JSON gives back for it, so that a kept reason equals a new one: lists for tuples."""
    match value:
        case Mapping():
            return {name: _plain(item) for name, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return value
