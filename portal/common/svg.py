"""Draws sparklines as SVG paths: lines with gaps.

Pure functions. Coordinates have one decimal, finer than a screen pixel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from portal.common.formatting import format_reading

Spot = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A small trend: `line` as a path in a box of `width` × `height`, and the y of the floor, if any."""

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
    """Return a sparkline of values at equal steps, oldest first, or None without values. None is a gap.

    The floor is always inside the box, to show the distance to it. `below` marks a last value below it.
    """
    readings = list(values)
    measured = [value for value in readings if value is not None]
    if not measured:
        return None
    low = min([*measured, floor] if floor is not None else measured)
    high = max([*measured, floor] if floor is not None else measured)
    span = (high - low) or abs(high) or 1.0
    low, high = low - span * 0.08, high + span * 0.08
    step = (width - 6) / max(1, len(readings) - 1)

    def place(number: int, value: float) -> Spot:
        return 3 + number * step, 3 + (height - 6) * (high - value) / (high - low)

    spots = [None if value is None else place(number, value) for number, value in enumerate(readings)]
    below = floor is not None and readings[-1] is not None and readings[-1] < floor
    description = f"{name}: {format_reading(measured[0])}"
    if len(measured) > 1:
        description += f" to {format_reading(measured[-1])}"
    description += f" {unit}" if unit else ""
    if len(measured) > 1:
        description += f" in {len(measured)} values"
    if floor is not None:
        description += (
            f", {'below the' if below else 'floor'} {'floor ' if below else ''}{format_reading(floor)}"
        )
    return Sparkline(
        width,
        height,
        path(spots),
        description,
        round(place(0, floor)[1], 1) if floor is not None else None,
        next(((round(x, 1), round(y, 1)) for x, y in reversed([s for s in spots if s])), None),
        below,
    )


def path(spots: Sequence[Spot | None]) -> str:
    """Return an SVG path through the spots, broken at None. A single spot becomes a dot."""
    parts: list[str] = []
    for run in _runs(spots):
        first, *rest = run
        parts.append(f"M{_xy(first)}" + ("".join(f"L{_xy(spot)}" for spot in rest) or "h0"))
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
    return f"{format_value(spot[0])} {format_value(spot[1])}"


def round_up(value: float) -> float:
    """Return the smallest round number that is at least `value` and has a round half."""
    size = 1.0
    while size * 10 <= value:
        size *= 10
    while size > value > 0:
        size /= 10
    return next((size * factor for factor in (1, 2, 3, 4, 5, 6, 8) if size * factor >= value), size * 10)


def format_value(value: float) -> str:
    """Format a number with up to one decimal, or three significant digits below 1."""
    return f"{value:.1f}".removesuffix(".0") if abs(value) >= 1 or value == 0 else f"{value:.3g}"
