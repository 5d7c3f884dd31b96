"""Plots of a device: GPU use, memory, power and temperature. Each title states the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.common import plots
from portal.common.formatting import format_duration, format_number
from portal.common.plots import Line, Plot, Style, TableRow
from portal.common.svg import round_up
from portal.fleet.inventory.models import Device
from portal.fleet.inventory.series import (
    HOUR,
    MONTH,
    DeviceAllocation,
    Series,
    SeriesPoint,
    device_series,
    holders,
    start_of,
)
from portal.fleet.inventory.use_plots import UsePlots

MIB_PER_GIB = 1024

Value = Callable[[SeriesPoint], float | None]


@dataclass(frozen=True, slots=True)
class _Quantity:
    key: str
    quantity: str | Promise
    unit: str
    mean: Value
    most: Value
    top: float
    digits: int = 0


SPAN_TEXTS = ((HOUR, gettext_lazy("Last hour")), (MONTH, gettext_lazy("Last 30 days")))


def use_of(device: Device, span: str, now: datetime) -> UsePlots:
    """Return the plots of a device, or why it has no data. Raises `KeyError` for an unknown span."""
    measured = device_series(device, span, now=now)
    allocations = holders(device, start_of(measured), now)
    if plots := device_plots(device, measured, allocations):
        return UsePlots(tuple(plots))
    if device.node.pool.simulated:
        return UsePlots((), (_("Simulated GPUs are not measured."),))
    text = (
        _("No samples in the last hour. Nodes send measurements once a minute.")
        if span == HOUR
        else _("No samples in the last 30 days. Nodes send measurements once a minute.")
    )
    advice = _("Check that the node worker runs on %(node)s, and that nvidia-smi lists this GPU there.")
    return UsePlots((), (text, advice % {"node": device.node.name}))


def device_plots(device: Device, series: Series, allocations: Sequence[DeviceAllocation] = ()) -> list[Plot]:
    """Return plots of GPU use, memory, power and temperature; empty if nothing was measured."""
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
        _plot(_USE, series, _use_title(series), allocations, _now(series, "gpu_util_pct", 1, "%")),
        _plot(
            _quantity(
                "memory", _("GPU memory"), "GiB", _scaled_by("memory_mib", MIB_PER_GIB),
                _scaled_by("memory_max_mib", MIB_PER_GIB), max(memory) or 1.0, digits=1,
            ),
            series, _memory_title(device, series), (),
            _now(series, "memory_used_mib", MIB_PER_GIB, "GiB", 1),
        ),
        _plot(
            _quantity(
                "power", _("Power"), "W", _scaled_by("power_mw", 1000), _scaled_by("power_max_mw", 1000),
                round_up(max(powers, default=100)),
            ),
            series, _power_title(series), (), _now(series, "power_mw", 1000, "W"),
        ),
        _plot(
            _quantity(
                "temperature", _("Temperature"), "°C",
                _scaled_by("temperature_c"), _scaled_by("temperature_max_c"),
                max([100.0, *hottest]),
            ),
            series, _temperature_title(series), (), _now(series, "temperature_c", 1, "°C"),
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
        return _("GPU use: 0 %% in %(duration)s") % {"duration": format_duration(seconds)}
    idle = _("idle for %(duration)s") % {"duration": format_duration(idle_s)} if idle_s else _("never idle")
    average = _("under %(percent)s") % {"percent": "1 %"} if 0 < mean < 0.5 else f"{mean:.0f} %"
    return _("GPU use: %(average)s on average, %(idle)s") % {"average": average, "idle": idle}


def _memory_title(device: Device, series: Series) -> str:
    means = _weighted(series, lambda point: point.memory_mib)
    peak = max((p.memory_max_mib for p in series.measured if p.memory_max_mib is not None), default=None)
    if means is None or peak is None:
        return _unmeasured_title(_("GPU memory"), series)
    values = {
        "max": format_number(peak / MIB_PER_GIB, 1),
        "total": format_number(device.memory_mib / MIB_PER_GIB, 1),
        "mean": format_number(means / MIB_PER_GIB, 1),
    }
    if device.memory_mib:
        return _("GPU memory: up to %(max)s of %(total)s GiB, %(mean)s GiB on average") % values
    return _("GPU memory: up to %(max)s GiB, %(mean)s GiB on average") % values


def _power_title(series: Series) -> str:
    mean = _weighted(series, lambda point: point.power_mw)
    peak = max((p.power_max_mw for p in series.measured if p.power_max_mw is not None), default=None)
    if mean is None or peak is None:
        return _unmeasured_title(_("Power"), series)
    held_s = sum(point.power_s or 0 for point in series.measured)
    values = {
        "mean": format_number(mean / 1000),
        "max": format_number(peak / 1000),
        "duration": format_duration(held_s),
    }
    text = _("Power: %(mean)s W on average, up to %(max)s W")
    if held_s:
        text = _("Power: %(mean)s W on average, up to %(max)s W; throttled by power limits for %(duration)s")
    return text % values


def _temperature_title(series: Series) -> str:
    peak = max(
        (p.temperature_max_c for p in series.measured if p.temperature_max_c is not None), default=None
    )
    if peak is None:
        return _unmeasured_title(_("Temperature"), series)
    hot_s = sum(point.thermal_s or 0 for point in series.measured)
    if hot_s:
        heat = _("throttled by heat for %(duration)s") % {"duration": format_duration(hot_s)}
    else:
        reported = any(point.throttle_s for point in series.measured)
        heat = _("no heat throttling") if reported else _("heat throttling not reported")
    return _("Temperature: up to %(max)s °C, %(heat)s") % {"max": peak, "heat": heat}


def _weighted(series: Series, value: Value) -> float | None:
    """Return the mean weighted by measured seconds, or `None`."""
    weighted = [(mean, p.measured_s) for p in series.measured if (mean := value(p)) is not None]
    seconds = sum(weight for _, weight in weighted)
    return sum(mean * weight for mean, weight in weighted) / seconds if seconds else None


def _now(series: Series, name: str, divisor: float, unit: str, digits: int = 0) -> str:
    """Return the newest sample as text, or an empty string."""
    current = getattr(series.live, name, None)
    return "" if current is None else plots.text_of(current / divisor, unit, digits)


# --- Values -------------------------------------------------------------------------------------------


def _scaled_by(name: str, divisor: float = 1) -> Value:
    def value(point: SeriesPoint) -> float | None:
        raw = getattr(point, name)
        return None if raw is None else raw / divisor

    return value


def _quantity(
    key: str, label: str, unit: str, mean: Value, peak: Value, top: float, digits: int = 0
) -> _Quantity:
    return _Quantity(key, label, unit, mean, peak, top, digits)


_USE = _Quantity(
    "use",
    gettext_lazy("GPU use"),
    "%",
    lambda point: point.gpu_pct,
    lambda point: None if point.gpu_max_pct is None else float(point.gpu_max_pct),
    100.0,
)


def _plot(
    quantity: _Quantity,
    series: Series,
    title: str,
    allocations: Sequence[DeviceAllocation],
    now: str,
) -> Plot:
    bundle = plots.bundle_of(len(series.points))
    by_minute = series.span == HOUR
    means, peaks = _merged_values(series, quantity, bundle)
    return Plot(
        key=quantity.key,
        title=title,
        quantity=f"{quantity.quantity}, {quantity.unit}",
        start_s=series.start_s + series.step_s * bundle / 2,
        step_s=series.step_s * bundle,
        lines=(
            Line(_mean_name(series, bundle), Style.MEAN, means),
            Line(_("up to the maximum"), Style.PEAK, peaks),
        ),
        columns=_columns(with_percentile=by_minute and quantity.key == "use"),
        rows=_rows(series, quantity),
        dated=not by_minute,
        digits=quantity.digits,
        top=quantity.top,
        held=allocation_times(allocations, series.start_s, series.end_s),
        held_name=_("allocated"),
        now=now,
    )


def _mean_name(series: Series, bundle: int) -> str:
    if bundle > 1:
        return _("mean of %(hours)s hours") % {"hours": bundle * series.step_s // plots.HOUR_S}
    return _("mean of each minute") if series.span == HOUR else _("mean of each hour")


def _columns(*, with_percentile: bool) -> tuple[str, ...]:
    if with_percentile:
        return _("Mean"), _("95th percentile"), _("Maximum")
    return _("Mean"), _("Maximum")


def _merged_values(series: Series, quantity: _Quantity, bundle: int) -> tuple[plots.Values, plots.Values]:
    """Return the means and maxima of each point, weighted by measured time if several are merged."""
    means: list[float | None] = []
    peaks: list[float | None] = []
    for first in range(0, len(series.points), bundle):
        part = [point for point in series.points[first : first + bundle] if point is not None]
        weights = [(mean, p.measured_s) for p in part if (mean := quantity.mean(p)) is not None]
        seconds = sum(weight for _, weight in weights)
        mean = sum(value * weight for value, weight in weights) / seconds if seconds else None
        peak = plots.peak([quantity.most(point) for point in part])
        means.append(mean)
        peaks.append(None if mean is None else mean if peak is None else peak)
    return tuple(means), tuple(peaks)


def allocation_times(
    allocations: Sequence[DeviceAllocation], start_s: float, end_s: float
) -> tuple[tuple[float, float], ...]:
    """Return the periods with an allocation, within these UTC seconds; overlapping ones are merged."""
    times: list[tuple[float, float]] = []
    for item in sorted(allocations, key=lambda item: item.since):
        begun = max(item.since.timestamp(), start_s)
        ended = min(item.until.timestamp() if item.until else end_s, end_s)
        if ended <= begun:
            continue
        if times and begun <= times[-1][1]:
            times[-1] = (times[-1][0], max(ended, times[-1][1]))
        else:
            times.append((begun, ended))
    return tuple(times)


def _rows(series: Series, quantity: _Quantity) -> tuple[TableRow, ...]:
    """Return the figures per minute or per day (UTC), newest first."""
    if series.span == HOUR:
        values = (quantity.mean, *([_p95_of] if quantity.key == "use" else []), quantity.most)
        return tuple(
            TableRow(
                plots.moment(series.start_s + series.step_s * place),
                tuple(_text(value(point) if point else None, quantity) for value in values),
            )
            for place, point in reversed(list(enumerate(series.points)))
        )
    days: dict[int, list[SeriesPoint]] = {}
    for place, point in enumerate(series.points):
        at_s = series.start_s + series.step_s * place
        points = days.setdefault(at_s - at_s % plots.DAY_S, [])
        if point is not None:
            points.append(point)
    rows = []
    for day_s, points in sorted(days.items(), reverse=True):
        part = Series(series.span, 0, series.step_s, tuple(points))
        mean = _weighted(part, quantity.mean)
        peak = plots.peak([quantity.most(point) for point in points])
        # At noon UTC nearly all time zones have the same date.
        at = plots.moment(day_s + plots.DAY_S // 2)
        rows.append(TableRow(at, (_text(mean, quantity), _text(peak, quantity))))
    return tuple(rows)


def _p95_of(point: SeriesPoint) -> float | None:
    return point.gpu_p95_pct


def _text(value: float | None, quantity: _Quantity) -> str:
    return plots.text_of(value, quantity.unit, quantity.digits)
