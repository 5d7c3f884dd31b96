"""Plots over time: a title, a legend in words, a table, and the values that `static/berth/plots.js` draws.

Pure functions that do not read the database. Values are at equal steps; None is a gap.
Days of tables are UTC.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from django.utils.functional import Promise

from portal.common.formatting import format_number

HOUR_S, DAY_S = 3600, 86_400
MAX_POINTS = 180
"""Maximum number of points: a card cannot show more, and the page would be slow."""

Values = tuple[float | None, ...]
Summary = Callable[[Sequence[float | None]], float | None]


class Style(StrEnum):
    """How a line is drawn: the class of its legend key in `static/berth/plots.css`, which has the colours.

    The area between `MEAN` and `PEAK` is filled.
    """

    MEAN = "mean"
    PEAK = "peak"
    IN_USE = "in-use"
    IDLE = "idle"
    FREE = "free"
    CHECKING = "checking"
    MAINTENANCE = "maintenance"
    OUT = "out"


@dataclass(frozen=True, slots=True)
class Line:
    """A line, or a layer of a stacked plot. `name` is the text in the legend."""

    name: str | Promise
    style: Style
    values: Values


@dataclass(frozen=True, slots=True)
class Limit:
    """A dashed horizontal line with its text in the legend."""

    name: str | Promise
    value: float


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of the table. Unmeasured values are empty texts."""

    at: datetime
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of one quantity, as `templates/components/plot.html` shows it.

    `start_s` (UTC seconds) is the time of the first values, `step_s` the step in seconds. `title` states the
    finding, `quantity` the quantity with its unit. `top` is the end of the value axis; None for the largest
    value. `held` are times (from, until; UTC seconds) marked at the bottom, `held_name` is their text.
    `columns` and `rows` are the table; `dated` rows are days, others minutes.
    """

    key: str
    title: str
    quantity: str
    start_s: float
    step_s: int
    lines: tuple[Line, ...]
    columns: tuple[str, ...] = ()
    rows: tuple[TableRow, ...] = ()
    dated: bool = True
    stacked: bool = False
    digits: int = 0
    top: float | None = None
    limits: tuple[Limit, ...] = ()
    held: tuple[tuple[float, float], ...] = ()
    held_name: str = ""
    now: str = ""

    @property
    def measured(self) -> bool:
        """Whether the plot has any value."""
        return any(value is not None for values in self._by_time for value in values)

    @property
    def has_gaps(self) -> bool:
        """Whether all lines lack a value at some time."""
        return any(all(value is None for value in values) for values in self._by_time)

    @property
    def _by_time(self) -> Iterator[tuple[float | None, ...]]:
        return zip(*(line.values for line in self.lines), strict=True)

    @property
    def data(self) -> str:
        """The values as JSON, for the script."""
        document = {
            "start": self.start_s,
            "step": self.step_s,
            "stacked": self.stacked,
            "digits": self.digits,
            "top": self.top,
            "limits": [limit.value for limit in self.limits],
            "held": self.held,
            "lines": [
                {"style": line.style, "values": [_rounded(value, self.digits) for value in line.values]}
                for line in self.lines
            ],
        }
        return json.dumps(document, separators=(",", ":"))


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits) if digits else round(value)


def text_of(value: float | None, unit: str, digits: int = 0) -> str:
    """Return a value with its unit; empty if it was not measured."""
    if value is None:
        return ""
    return f"{format_number(value, digits)} {unit}" if unit else format_number(value, digits)


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the measured values, or None."""
    measured = [value for value in values if value is not None]
    return sum(measured) / len(measured) if measured else None


def peak(values: Sequence[float | None]) -> float | None:
    """Return the largest of the measured values, or None."""
    return max((value for value in values if value is not None), default=None)


def merge(values: Values, summary: Summary = mean, *, bundle: int) -> Values:
    """Return the `summary` of each group of `bundle` consecutive values."""
    return tuple(summary(values[first : first + bundle]) for first in range(0, len(values), bundle))


def bundle_of(count: int) -> int:
    """Return how many points to merge into one, so that at most `MAX_POINTS` of `count` remain."""
    return max(1, -(-count // MAX_POINTS))


def rows(
    lines: Sequence[Values],
    *,
    start_s: float,
    step_s: int,
    every_s: int,
    unit: str = "",
    digits: int = 0,
    summaries: Sequence[Summary] = (),
) -> tuple[TableRow, ...]:
    """Return table rows with the means of all lines in each `every_s` seconds (UTC), the newest first.

    `summaries` has one function for each line, to use instead of the mean. A row's time is the start of its
    hour or, for days, noon UTC, so that nearly all zones show its date.
    """
    segments = []
    by_line = list(zip(lines, summaries or (mean,) * len(lines), strict=True))
    for begun_s, places in _periods(len(lines[0]), start_s, step_s, every_s):
        at = moment(begun_s + (DAY_S // 2 if every_s == DAY_S else 0))
        texts = tuple(text_of(summary(values[places]), unit, digits) for values, summary in by_line)
        segments.append(TableRow(at, texts))
    return tuple(reversed(segments))


def _periods(count: int, start_s: float, step_s: int, every_s: int) -> Iterator[tuple[int, slice]]:
    """Yield the start of each period and the positions of its values."""
    first = 0
    while first < count:
        begun_s = int(start_s + step_s * first) // every_s * every_s
        last = first + 1
        while last < count and start_s + step_s * last < begun_s + every_s:
            last += 1
        yield begun_s, slice(first, last)
        first = last


def moment(at_s: float) -> datetime:
    """Return UTC seconds since the epoch as a datetime."""
    return datetime.fromtimestamp(at_s, UTC)
