"""Charts of time series: geometry for SVG, a title with the finding, and a table.

Pure functions that do not read the database. Coordinates are those of the charts' view box. Times are UTC in
the markup; charts.js shows them in the user's zone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.common.formatting import format_duration, format_number
from portal.common.svg import Bar, Sparkline, Spot, area, nice, path, sparkline
from portal.fleet.inventory.models import Device
from portal.fleet.inventory.series import HOUR, DeviceAllocation, Series, SeriesPoint

__all__ = ["AxisTick", "Bar", "Chart", "Sparkline", "TableRow", "device_charts", "sparkline"]

WIDTH, HEIGHT = 360, 134
LEFT, RIGHT, TOP, BOTTOM = 38, 352, 8, 108
MAX_POINTS = 180
"""More points are merged, because no screen can show them and the page would be slow."""
MIB_PER_GIB = 1024
DAY_S = 86_400

Value = Callable[[SeriesPoint], float | None]


@dataclass(frozen=True, slots=True)
class AxisTick:
    """A mark on an axis with its label. `at` is its time, on the time axis."""

    position: float
    label: str
    at: datetime | None = None
    anchor: str = "middle"


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of the table. Empty texts are not measured."""

    at: datetime
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of one quantity. `line` is the mean, `band` extends to the maximum; both break at gaps."""

    key: str
    title: str
    quantity: str
    line: str
    band: str
    y_ticks: tuple[AxisTick, ...]
    x_ticks: tuple[AxisTick, ...]
    gaps: tuple[Bar, ...]
    held: tuple[Bar, ...]
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    dated: bool
    measured: bool
    now: str = ""
    live: Spot | None = None


@dataclass(frozen=True, slots=True)
class _Quantity:
    key: str
    quantity: str | Promise
    unit: str
    mean: Value
    most: Value
    top: float
    digits: int = 0


def device_charts(
    device: Device, series: Series, allocations: Sequence[DeviceAllocation] = ()
) -> list[Chart]:
    """Return charts of GPU use, memory, power and temperature; empty if nothing was measured."""
    if not series.measured and series.live is None:
        return []
    points = series.measured
    limit_mw = device.facts.get("power_limit_mw") if isinstance(device.facts, dict) else None
    powers = [point.power_max_mw / 1000 for point in points if point.power_max_mw is not None]
    if isinstance(limit_mw, int):
        powers.append(limit_mw / 1000)
    memory = [device.memory_mib / MIB_PER_GIB]
    hottest = [float(p.temperature_max_c) for p in points if p.temperature_max_c is not None]
    memory += [p.memory_max_mib / MIB_PER_GIB for p in points if p.memory_max_mib is not None]
    return [
        _chart(_USE, series, _use_title(series), allocations, _now(series, "gpu_util_pct", 1, " %")),
        _chart(
            _quantity(
                "memory", _("GPU memory"), "GiB", _scaled_by("memory_mib", MIB_PER_GIB),
                _scaled_by("memory_max_mib", MIB_PER_GIB), max(memory) or 1.0, digits=1,
            ),
            series, _memory_title(device, series), (),
            _now(series, "memory_used_mib", MIB_PER_GIB, " GiB", 1),
        ),
        _chart(
            _quantity(
                "power", _("Power"), "W", _scaled_by("power_mw", 1000), _scaled_by("power_max_mw", 1000),
                nice(max(powers, default=100)),
            ),
            series, _power_title(series), (), _now(series, "power_mw", 1000, " W"),
        ),
        _chart(
            _quantity(
                "temperature", _("Temperature"), "°C",
                _scaled_by("temperature_c"), _scaled_by("temperature_max_c"),
                max([100.0, *hottest]),
            ),
            series, _temperature_title(series), (), _now(series, "temperature_c", 1, " °C"),
        ),
    ]  # fmt: skip


# --- Titles with the finding --------------------------------------------------------------------------


def _unmeasured_title(quantity: str, series: Series) -> str:
    if series.span == HOUR:
        return _("%(quantity)s: not measured in the last hour") % {"quantity": quantity}
    return _("%(quantity)s: not measured in the last 30 days") % {"quantity": quantity}


def _use_title(series: Series) -> str:
    measured = [point for point in series.measured if point.gpu_s]
    if not measured:
        return _unmeasured_title(_("GPU use"), series)
    seconds = sum(point.gpu_s or 0 for point in measured)
    mean = sum((point.gpu_pct or 0) * (point.gpu_s or 0) for point in measured) / seconds
    idle_s = seconds - sum(point.gpu_used_s or 0 for point in measured)
    if idle_s == seconds:
        return _("GPU use: none in %(duration)s measured") % {"duration": format_duration(seconds)}
    idle = _("idle for %(duration)s") % {"duration": format_duration(idle_s)} if idle_s else _("never idle")
    average = _("under %(percent)s") % {"percent": "1 %"} if 0 < mean < 0.5 else f"{mean:.0f} %"
    return _("GPU use: %(average)s on average, %(idle)s") % {"average": average, "idle": idle}


def _memory_title(device: Device, series: Series) -> str:
    means = _weighted(series, lambda point: point.memory_mib)
    most = max((p.memory_max_mib for p in series.measured if p.memory_max_mib is not None), default=None)
    if means is None or most is None:
        return _unmeasured_title(_("GPU memory"), series)
    values = {
        "max": format_number(most / MIB_PER_GIB, 1),
        "total": format_number(device.memory_mib / MIB_PER_GIB, 1),
        "mean": format_number(means / MIB_PER_GIB, 1),
    }
    if device.memory_mib:
        return _("GPU memory: up to %(max)s of %(total)s GiB, %(mean)s GiB on average") % values
    return _("GPU memory: up to %(max)s GiB, %(mean)s GiB on average") % values


def _power_title(series: Series) -> str:
    mean = _weighted(series, lambda point: point.power_mw)
    most = max((p.power_max_mw for p in series.measured if p.power_max_mw is not None), default=None)
    if mean is None or most is None:
        return _unmeasured_title(_("Power"), series)
    held_s = sum(point.power_s or 0 for point in series.measured)
    values = {
        "mean": format_number(mean / 1000),
        "max": format_number(most / 1000),
        "duration": format_duration(held_s),
    }
    text = _("Power: %(mean)s W on average, up to %(max)s W")
    if held_s:
        text = _("Power: %(mean)s W on average, up to %(max)s W; throttled by power limits for %(duration)s")
    return text % values


def _temperature_title(series: Series) -> str:
    most = max(
        (p.temperature_max_c for p in series.measured if p.temperature_max_c is not None), default=None
    )
    if most is None:
        return _unmeasured_title(_("Temperature"), series)
    hot_s = sum(point.thermal_s or 0 for point in series.measured)
    if hot_s:
        heat = _("throttled by heat for %(duration)s") % {"duration": format_duration(hot_s)}
    else:
        reported = any(point.throttle_s for point in series.measured)
        heat = _("no heat throttling") if reported else _("heat throttling not reported")
    return _("Temperature: up to %(max)s °C, %(heat)s") % {"max": most, "heat": heat}


def _weighted(series: Series, value: Value) -> float | None:
    """Return the mean weighted by measured seconds, or `None`."""
    weighted = [(mean, p.measured_s) for p in series.measured if (mean := value(p)) is not None]
    seconds = sum(weight for _, weight in weighted)
    return sum(mean * weight for mean, weight in weighted) / seconds if seconds else None


def _now(series: Series, name: str, divisor: float, unit: str, digits: int = 0) -> tuple[float, str] | None:
    current = getattr(series.live, name, None)
    if current is None:
        return None
    return current / divisor, f"{format_number(current / divisor, digits)}{unit}"


# --- Geometry -----------------------------------------------------------------------------------------


def _scaled_by(name: str, divisor: float = 1) -> Value:
    def value(point: SeriesPoint) -> float | None:
        raw = getattr(point, name)
        return None if raw is None else raw / divisor

    return value


def _quantity(
    key: str, label: str, unit: str, mean: Value, most: Value, top: float, digits: int = 0
) -> _Quantity:
    return _Quantity(key, label, unit, mean, most, top, digits)


_USE = _Quantity(
    "use",
    gettext_lazy("GPU use"),
    "%",
    lambda point: point.gpu_pct,
    lambda point: None if point.gpu_max_pct is None else float(point.gpu_max_pct),
    100.0,
)


def _chart(
    quantity: _Quantity,
    series: Series,
    title: str,
    allocations: Sequence[DeviceAllocation],
    now: tuple[float, str] | None,
) -> Chart:
    end_s = max(series.end_s, int(series.live.at_s) + 1 if series.live else 0)
    start_s = series.start_s

    def x_of(at_s: float) -> float:
        return LEFT + (RIGHT - LEFT) * (at_s - start_s) / (end_s - start_s)

    def y_of(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * min(1.0, max(0.0, value / quantity.top))

    drawn = _merged_points(series, quantity)
    means: list[Spot | None] = []
    peaks: list[Spot | None] = []
    for middle_s, mean, most in drawn:
        x = x_of(middle_s)
        means.append(None if mean is None else (x, y_of(mean)))
        peaks.append(None if mean is None else (x, y_of(mean if most is None else most)))
    by_minute = series.span == HOUR
    measured = [point is not None and quantity.mean(point) is not None for point in series.points]
    return Chart(
        key=quantity.key,
        title=title,
        quantity=f"{quantity.quantity}, {quantity.unit}",
        line=path(means),
        band=area(peaks, means),
        y_ticks=tuple(
            AxisTick(
                round(y_of(quantity.top * part), 1),
                format_number(quantity.top * part, quantity.digits if part else 0),
            )
            for part in (0, 0.5, 1)
        ),
        x_ticks=_x_ticks(series, start_s, end_s, x_of),
        gaps=_gaps(series, measured, x_of),
        held=_allocation_bars(allocations, start_s, end_s, x_of),
        columns=_columns(with_percentile=by_minute and quantity.key == "use"),
        rows=_rows(series, quantity),
        dated=not by_minute,
        measured=any(measured),
        now=now[1] if now else "",
        live=(round(x_of(series.live.at_s), 1), round(y_of(now[0]), 1)) if now and series.live else None,
    )


def _columns(*, with_percentile: bool) -> tuple[str, ...]:
    if with_percentile:
        return _("Mean"), _("95th percentile"), _("Maximum")
    return _("Mean"), _("Maximum")


def hours_per_point(series: Series) -> int:
    """Return how many hours are merged into one point; 0 if none are."""
    bundle = -(-len(series.points) // MAX_POINTS)
    return bundle * series.step_s // 3600 if bundle > 1 else 0


def _merged_points(series: Series, quantity: _Quantity) -> list[tuple[float, float | None, float | None]]:
    """Return (middle, mean, maximum) of each point, merged if there are more than can be seen."""
    bundle = -(-len(series.points) // MAX_POINTS)
    points = []
    for first in range(0, len(series.points), bundle):
        part = [point for point in series.points[first : first + bundle] if point is not None]
        weights = [(mean, p.measured_s) for p in part if (mean := quantity.mean(p)) is not None]
        seconds = sum(weight for _, weight in weights)
        mean = sum(value * weight for value, weight in weights) / seconds if seconds else None
        most = max((value for p in part if (value := quantity.most(p)) is not None), default=None)
        width = min(bundle, len(series.points) - first)
        points.append((series.start_s + series.step_s * (first + width / 2), mean, most))
    return points


def _gaps(series: Series, measured: Sequence[bool], x_of: Callable[[float], float]) -> tuple[Bar, ...]:
    bars = []
    begun: int | None = None
    for at, is_known in enumerate([*measured, True]):
        if not is_known and begun is None:
            begun = at
        elif is_known and begun is not None:
            bars.append(
                _bar(series.start_s + series.step_s * begun, series.start_s + series.step_s * at, x_of)
            )
            begun = None
    return tuple(bars)


def _allocation_bars(
    allocations: Sequence[DeviceAllocation], start_s: int, end_s: int, x_of: Callable[[float], float]
) -> tuple[Bar, ...]:
    """Return the periods in which the device was allocated; overlapping ones are merged."""
    bars: list[tuple[float, float]] = []
    for item in sorted(allocations, key=lambda item: item.since):
        begun = max(item.since.timestamp(), start_s)
        ended = min(item.until.timestamp() if item.until else end_s, end_s)
        if ended <= begun:
            continue
        if bars and begun <= bars[-1][1]:
            bars[-1] = (bars[-1][0], max(ended, bars[-1][1]))
        else:
            bars.append((begun, ended))
    return tuple(_bar(begun, ended, x_of) for begun, ended in bars)


def _bar(begun_s: float, ended_s: float, x_of: Callable[[float], float]) -> Bar:
    x = round(x_of(begun_s), 1)
    return Bar(x, round(x_of(ended_s) - x, 1))


def _x_ticks(
    series: Series, start_s: int, end_s: int, x_of: Callable[[float], float]
) -> tuple[AxisTick, ...]:
    if series.span == HOUR:
        # All time zones are a multiple of 15 minutes away from UTC.
        first = start_s - start_s % 900 + 900
        moments = [_moment(at) for at in range(first, end_s + 1, 900)]
        pattern = "%H:%M"
    else:
        # At noon UTC nearly all time zones have the same date.
        first_day = start_s - start_s % DAY_S + DAY_S // 2
        days = [at for at in range(first_day, end_s, DAY_S) if at >= start_s]
        moments = [_moment(at) for at in days[len(days) % 7 :: 7]]
        pattern = ""
    ticks = []
    for moment in moments:
        x = round(x_of(moment.timestamp()), 1)
        label = f"{moment:{pattern}}" if pattern else f"{moment.day} {moment:%b}"
        if LEFT + 6 <= x <= RIGHT - 4:
            ticks.append(AxisTick(x, label, moment, "end" if x > RIGHT - 12 else "middle"))
    return tuple(ticks)


def _rows(series: Series, quantity: _Quantity) -> tuple[TableRow, ...]:
    """Return the figures per minute or per day (UTC). The template describes gaps in words."""
    if series.span == HOUR:
        values = (quantity.mean, *([_p95_of] if quantity.key == "use" else []), quantity.most)
        return tuple(
            TableRow(
                _moment(series.start_s + series.step_s * place),
                tuple(_text(value(point) if point else None, quantity) for value in values),
            )
            for place, point in reversed(list(enumerate(series.points)))
        )
    days: dict[datetime, list[SeriesPoint]] = {}
    for place, point in enumerate(series.points):
        moment = _moment(series.start_s + series.step_s * place)
        day = moment.replace(hour=12)
        days.setdefault(day, [])
        if point is not None:
            days[day].append(point)
    rows = []
    for day, points in sorted(days.items(), reverse=True):
        part = Series(series.span, 0, series.step_s, tuple(points))
        mean = _weighted(part, quantity.mean)
        most = max((v for p in points if (v := quantity.most(p)) is not None), default=None)
        rows.append(TableRow(day, (_text(mean, quantity), _text(most, quantity))))
    return tuple(rows)


def _p95_of(point: SeriesPoint) -> float | None:
    return point.gpu_p95_pct


def _text(value: float | None, quantity: _Quantity) -> str:
    return "" if value is None else f"{format_number(value, quantity.digits)} {quantity.unit}"


def _moment(at_s: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=at_s)
