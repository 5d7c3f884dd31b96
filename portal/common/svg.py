"""Shapes for SVG: lines that break at gaps, areas, small trends.

Pure functions. Coordinates are written with one decimal: finer than a screen shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from portal.common.formatting import format_reading

Spot = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of time: a gap, or one in which the device was held."""

    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A small trend: `line` in a box of `width` × `height`, and the height of the floor, if there is one."""

    width: int
    height: int
    line: str
    label: str
    floor_y: float | None = None
    last: Spot | None = None
    below: bool = False


def sparkline(
    values: Iterable[float | None],
    *,
    floor: float | None = None,
    unit: str = "",
    name: str = "Trend",
    width: int = 96,
    height: int = 24,
) -> Sparkline | None:
    """The values at equal steps, the oldest first; None is a gap. `None` when there is no value at all.

    The floor is inside the picture, so that the distance to it is seen; a last value below it is marked.
    """
    given = list(values)
    known = [value for value in given if value is not None]
    if not known:
        return None
    low = min([*known, floor] if floor is not None else known)
    high = max([*known, floor] if floor is not None else known)
    span = (high - low) or abs(high) or 1.0
    low, high = low - span * 0.08, high + span * 0.08
    step = (width - 6) / max(1, len(given) - 1)

    def place(number: int, value: float) -> Spot:
        return 3 + number * step, 3 + (height - 6) * (high - value) / (high - low)

    spots = [None if value is None else place(number, value) for number, value in enumerate(given)]
    below = floor is not None and given[-1] is not None and given[-1] < floor
    words = f"{name}: {format_reading(known[0])}"
    if len(known) > 1:
        words += f" to {format_reading(known[-1])}"
    words += f" {unit}" if unit else ""
    if len(known) > 1:
        words += f" in {len(known)} values"
    if floor is not None:
        words += f", {'below the' if below else 'floor'} {'floor ' if below else ''}{format_reading(floor)}"
    return Sparkline(
        width,
        height,
        path(spots),
        words,
        round(place(0, floor)[1], 1) if floor is not None else None,
        next(((round(x, 1), round(y, 1)) for x, y in reversed([s for s in spots if s])), None),
        below,
    )


def path(spots: Sequence[Spot | None]) -> str:
    """Lines through the spots, broken at each None; one that stands alone becomes a dot."""
    parts: list[str] = []
    for run in _runs(spots):
        first, *rest = run
        parts.append(f"M{_xy(first)}" + ("".join(f"L{_xy(spot)}" for spot in rest) or "h0"))
    return "".join(parts)


def area(upper: Sequence[Spot | None], lower: Sequence[Spot | None]) -> str:
    parts = []
    for above, below in zip(_runs(upper), _runs(lower), strict=True):
        if len(above) > 1:
            around = [*above, *reversed(below)]
            parts.append("M" + "L".join(_xy(spot) for spot in around) + "Z")
    return "".join(parts)


def _runs(spots: Sequence[Spot | None]) -> list[list[Spot]]:
    runs: list[list[Spot]] = []
    broken = True
    for spot in spots:
        if spot is None:
            broken = True
            continue
        if broken:
            runs.append([])
        runs[-1].append(spot)
        broken = False
    return runs


def _xy(spot: Spot) -> str:
    return f"{plain(spot[0])} {plain(spot[1])}"


def nice(value: float) -> float:
    """A round number that is not smaller, whose half is round too."""
    size = 1.0
    while size * 10 <= value:
        size *= 10
    while size > value > 0:
        size /= 10
    return next((size * factor for factor in (1, 2, 3, 4, 5, 6, 8) if size * factor >= value), size * 10)


def plain(value: float) -> str:
    """A coordinate with one decimal at most."""
    return f"{value:.1f}".removesuffix(".0") if abs(value) >= 1 or value == 0 else f"{value:.3g}"
