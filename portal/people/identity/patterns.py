"""Detects regular expressions that are slow to match on untrusted values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

MAX_WAYS = 2**24
"""Enough for three repeats on a value of 255 characters, which Python matches in about 0.1 s."""
_UNBOUNDED_CHOICES = 256
"""Assumed choices of a repeat without an upper bound."""
_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)


def is_slow_pattern(pattern: str) -> bool:
    """Return whether a value could take too long to match. Raises `re.error` if the pattern is invalid."""
    return _ways(_parser.parse(pattern)) > MAX_WAYS


def _ways(nodes: Iterable[tuple[Any, Any]]) -> int:
    """Return an upper bound on the ways that Python tries to match a value."""
    return math.prod(_ways_of(op, value) for op, value in nodes)


def _ways_of(op: Any, value: Any) -> int:
    if op in _REPEATS:
        least, most, body = value
        choices = min(int(most) - int(least) + 1, _UNBOUNDED_CHOICES)
        inner = _ways(body)
        if inner == 1:
            return choices
        return choices * min(inner, MAX_WAYS) ** min(int(most), _UNBOUNDED_CHOICES // 8)
    if op is _constants.BRANCH:
        return sum(_ways(branch) for branch in value[1])
    if op is _constants.SUBPATTERN:
        return _ways(value[3])
    if op in (_constants.ASSERT, _constants.ASSERT_NOT):
        return _ways(value[1])
    if op is _constants.ATOMIC_GROUP:
        return _ways(value)
    if op is _constants.GROUPREF_EXISTS:
        return _ways(value[1]) + _ways(value[2] or ())
    return 1
