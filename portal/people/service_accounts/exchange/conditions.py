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
"""Claims that identify the pipeline. A public issuer issues tokens to everybody."""
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
class Outcome:
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
        typed = re.fullmatch(r"\s*([^\s=~]+)\s*([=~])\s*(.*\S)\s*", line)
        if typed is None:
            wrong.append(number)
            continue
        claim, sign, value = typed.groups()
        conditions.append(Condition(claim, Match.EXACT if sign == "=" else Match.GLOB, value))
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


def check(conditions: Iterable[Condition], claims: Mapping[str, Any]) -> list[Outcome]:
    """Evaluate the conditions. A claim that is missing or not a plain value meets none."""
    outcomes = []
    for condition in conditions:
        value = text_of(claims.get(condition.claim))
        outcomes.append(Outcome(condition, value, value is not None and _is_met(condition, value)))
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
    return _pattern(condition.value).fullmatch(value) is not None


@lru_cache(maxsize=512)
def _pattern(glob: str) -> re.Pattern[str]:
    parts = [_part(part) for part in re.split(r"(\*+|\?)", glob)]
    return re.compile("".join(parts), re.DOTALL)


def _part(part: str) -> str:
    match part:
        case "*":
            return "[^/]*"
        case "?":
            return "[^/]"
        case _ if part and set(part) == {"*"}:
            return ".*"
        case _:
            return re.escape(part)
