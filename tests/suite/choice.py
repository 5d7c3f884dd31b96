"""Values that `make test` samples and `make test-all` uses completely."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any, TypeVar, cast

import pytest
from _pytest.mark import ParameterSet

T = TypeVar("T")
THOROUGH = "BERTH_TEST_THOROUGH"
"""Set while pytest runs with `--thorough`."""
WORLDS = "BERTH_TEST_WORLDS"


def examples(number: int, *, quick: int = 0) -> int:
    """Return how many examples of a property are tried: `number`, or `quick` in `make test`.

    Without `quick` it is a quarter of `number`, but at least 5.
    """
    return number if os.environ.get(THOROUGH) else quick or max(number // 4, 5)


def worlds(number: int) -> range:
    """Return the seeds of random worlds: `number` of them, or a quarter in `make test`.

    `BERTH_TEST_WORLDS=FIRST:COUNT` selects others.
    """
    first, _, count = os.environ.get(WORLDS, "").partition(":")
    if count:
        return range(int(first), int(first) + int(count))
    return range(number if os.environ.get(THOROUGH) else number // 4)


def sample(values: Iterable[Any], step: int, reason: str) -> list[ParameterSet]:
    """Return all `values` as parameters; `make test` takes the first and each `step`th after it.

    The others are marked `thorough` with the reason. A tuple has one item for each argument name.
    """
    left = pytest.mark.thorough(reason)
    rows = [value if isinstance(value, ParameterSet) else _row(value) for value in values]
    return [
        row if index % step == 0 else pytest.param(*row.values, marks=[*row.marks, left], id=row.id)
        for index, row in enumerate(rows)
    ]


def _row(value: Any) -> ParameterSet:
    return pytest.param(*value) if isinstance(value, tuple) else pytest.param(value)


def quick_of(
    values: Iterable[T], quick: Collection[T], reason: str, *, several: bool = False
) -> list[ParameterSet]:
    """Return all `values` as parameters; those that are not in `quick` are marked `thorough` with the reason.

    With `several`, each value is a tuple with one item for each argument name. Raises `ValueError` when
    `quick` names something that is no value: a renamed one must not go unnoticed.
    """
    every = list(values)
    if unknown := [value for value in quick if value not in every]:
        raise ValueError(f"not among the values: {unknown}")
    left = pytest.mark.thorough(reason)
    return [
        pytest.param(
            *(cast("tuple[Any, ...]", value) if several else (value,)), marks=() if value in quick else left
        )
        for value in every
    ]
