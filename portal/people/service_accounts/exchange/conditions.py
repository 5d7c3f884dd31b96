"""Conditions on claims of a token. Pure functions.

A condition names a claim and a value. `exact` compares the whole text. In a `glob`, `*` matches any
characters except “/”, `**` any characters, and `?` one character except “/”.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

MAX_CONDITIONS = 12
MAX_VALUE = 255
CHECKED_ANYWAY = frozenset({"iss", "aud", "exp", "nbf", "iat", "jti"})
"""Claims that every exchange checks anyway."""
IDENTITY = (
    *("sub", "repository", "repository_id", "repository_owner", "repository_owner_id"),
    *("project_path", "project_id", "namespace_path", "namespace_id"),
)
"""Claims that identify the pipeline. A public issuer issues tokens to anyone."""
_CLAIM = re.compile(r"[A-Za-z][A-Za-z0-9_.:/-]{0,63}\Z")


class Match(StrEnum):
    EXACT = "exact"
    GLOB = "glob"


class Problem(StrEnum):
    """Why conditions are invalid."""

    CLAIM = "claim"
    CHECKED_ANYWAY = "checked_anyway"
    MATCH = "match"
    VALUE = "value"
    TOO_MANY = "too_many"
    NO_IDENTITY = "no_identity"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition on one claim."""

    claim: str
    match: str
    value: str

    def as_json(self) -> dict[str, str]:
        return {"claim": self.claim, "match": self.match, "value": self.value}

    def __str__(self) -> str:
        return f"{self.claim} {'=' if self.match == Match.EXACT else '~'} {self.value}"


@dataclass(frozen=True, slots=True)
class ConditionResult:
    """Result of a condition. `seen` is the claim's text, or None if it is missing."""

    condition: Condition
    seen: str | None
    holds: bool


def from_json(stored: Iterable[Mapping[str, str]]) -> list[Condition]:
    return [Condition(item["claim"], item["match"], item["value"]) for item in stored]


def parse(text: str) -> tuple[list[Condition], list[int]]:
    """Parse one condition per line, as `claim = value` or `claim ~ glob`.

    Returns the conditions and the numbers of invalid lines.
    """
    conditions, wrong = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        sign = re.search(r"[=~]", line)
        claim, value = (line[: sign.start()].split(), line[sign.end() :].strip()) if sign else ([], "")
        if sign is None or len(claim) != 1 or not value:
            wrong.append(number)
            continue
        conditions.append(Condition(claim[0], Match.EXACT if sign[0] == "=" else Match.GLOB, value))
    return conditions, wrong


def problem_of(conditions: Sequence[Condition]) -> tuple[Problem, Condition | None] | None:
    """Return the first problem with its condition, or None if the conditions are valid."""
    if len(conditions) > MAX_CONDITIONS:
        return Problem.TOO_MANY, None
    for condition in conditions:
        if condition.claim in CHECKED_ANYWAY:
            return Problem.CHECKED_ANYWAY, condition
        if not _CLAIM.match(condition.claim):
            return Problem.CLAIM, condition
        if condition.match not in list(Match):
            return Problem.MATCH, condition
        if not 0 < len(condition.value) <= MAX_VALUE or not condition.value.isprintable():
            return Problem.VALUE, condition
    if not any(_identifies(condition) for condition in conditions):
        return Problem.NO_IDENTITY, None
    return None


def check(conditions: Iterable[Condition], claims: Mapping[str, Any]) -> list[ConditionResult]:
    """Evaluate the conditions. A claim that is missing or not a plain value meets none."""
    outcomes = []
    for condition in conditions:
        value = text_of(claims.get(condition.claim))
        outcomes.append(ConditionResult(condition, value, value is not None and _is_met(condition, value)))
    return outcomes


def text_of(value: Any) -> str | None:
    """Return a claim as text: booleans in lower case, integers in digits, None for other types."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return None


def _identifies(condition: Condition) -> bool:
    """Return whether the condition identifies the pipeline: no wildcard before the first “/”."""
    if condition.claim not in IDENTITY:
        return False
    return condition.match == Match.EXACT or not re.search(r"[*?]", condition.value.partition("/")[0])


def _is_met(condition: Condition, value: str) -> bool:
    if condition.match == Match.EXACT:
        return value == condition.value
    return _glob(condition.value).matches(value)


@dataclass(frozen=True, slots=True)
class _Glob:
    """A parsed glob. Bit n of each mask represents part n; one more bit represents the end.

    The matcher follows all paths through the glob at once, so its time grows with the text alone. A regular
    expression would try the paths one by one.
    """

    parts: int
    repeats: int
    """Parts `*` and `**`, which may also match nothing."""
    crosses: int
    """Parts `**`."""
    any_one: int
    """Parts `?`."""
    letters: Mapping[str, int]

    def matches(self, text: str) -> bool:
        at = self._skipped(1)
        for letter in text:
            same = self.letters.get(letter, 0)
            if letter != "/":
                same |= self.any_one
            stays = self.repeats if letter != "/" else self.crosses
            at = self._skipped((at & same) << 1 | at & stays)
            if not at:
                return False
        return bool(at >> self.parts & 1)

    def _skipped(self, at: int) -> int:
        """Return the parts reached when repeats match nothing. No two repeats are adjacent."""
        return at | (at & self.repeats) << 1


@lru_cache(maxsize=512)
def _glob(text: str) -> _Glob:
    parts = re.findall(r"\*+|[^*]", text, re.DOTALL)
    letters: dict[str, int] = {}
    for number, part in enumerate(parts):
        if part[0] not in "*?":
            letters[part] = letters.get(part, 0) | 1 << number
    return _Glob(
        parts=len(parts),
        repeats=_bits(part[0] == "*" for part in parts),
        crosses=_bits(part[:2] == "**" for part in parts),
        any_one=_bits(part == "?" for part in parts),
        letters=letters,
    )


def _bits(values: Iterable[bool]) -> int:
    return sum(1 << number for number, value in enumerate(values) if value)
