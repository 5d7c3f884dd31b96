"""Running workloads as arrays in the order of expected ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from portal.scheduling.engine.model import Workload

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RunningAmounts:
    """Expected end (UTC seconds), team (an index of `teams`) and amounts of each workload."""

    ends: Ints
    teams: tuple[str, ...]
    team: Ints
    amounts: dict[str, Ints]

    @classmethod
    def of(cls, by_end: Iterable[tuple[int, Workload]]) -> RunningAmounts:
        """Build from an iterator sorted by end."""
        ends: list[int] = []
        numbers: dict[str, int] = {}
        team: list[int] = []
        shapes: dict[tuple[tuple[str, int], ...], int] = {}
        shape: list[int] = []
        # Equal amounts are mostly the same object, and its id is faster to look up than its content.
        numbers_by_id: dict[int, int] = {}
        for end_s, workload in by_end:
            ends.append(end_s)
            team.append(numbers.setdefault(workload.team, len(numbers)))
            number = numbers_by_id.get(id(workload.amounts))
            if number is None:
                number = shapes.setdefault(tuple(workload.amounts.items()), len(shapes))
                numbers_by_id[id(workload.amounts)] = number
            shape.append(number)
        of = np.array(shape, np.intp)
        amounts = {}
        for name in {name for shape in shapes for name, _ in shape}:
            by_shape = np.array([dict(shape).get(name, 0) for shape in shapes], np.int64)
            amounts[name] = by_shape[of]
        return cls(np.array(ends, np.int64), tuple(numbers), np.array(team, np.int64), amounts)
