"""Plots of GPU use: allocated devices, utilisation, memory. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from portal.common import plots
from portal.common.formatting import format_number
from portal.common.plots import Limit, Line, Plot, Style, Values
from portal.fleet.inventory.use_history import DAYS, MONTH, WEEK, MeasuredUse, Window

MIB_PER_GIB = 1024
SPAN_TEXTS = ((WEEK, gettext_lazy("Last 7 days")), (MONTH, gettext_lazy("Last 30 days")))


@dataclass(frozen=True, slots=True)
class UsePlots:
    """Plots of use, and notes about missing plots."""

    plots: tuple[Plot, ...]
    notes: tuple[str, ...] = ()


def allocated_plot(values: Values, window: Window, *, devices: int | None = None) -> Plot:
    """Return the plot of allocated devices; `devices` is their current number."""
    average = plots.mean(values) or 0.0
    counts = {"average": format_number(average, 1), "total": format_number(devices or 0)}
    if devices:
        title = ngettext(
            "Allocated: %(average)s of %(total)s GPU on average",
            "Allocated: %(average)s of %(total)s GPUs on average",
            devices,
        )
    else:
        title = _("Allocated: %(average)s GPUs on average")
    limits = (Limit(_("all GPUs"), devices),) if devices else ()
    name = _("allocated")
    return _plot("allocated", title % counts, _("Allocated GPUs and MIG instances"), name, values, window,
                 limits=limits, digits=1)  # fmt: skip


def utilisation_title(average: float) -> str:
    """Return the title of a plot of GPU use, which states the result."""
    text = _("under %(percent)s") % {"percent": "1 %"} if 0 < average < 0.5 else plots.text_of(average, "%")
    return _("GPU use: %(average)s on average") % {"average": text}


def memory_title(peak: float, total: float) -> str:
    """Return the title of a plot of GPU memory in GiB; `total` is 0 for no limit."""
    texts = {"max": format_number(peak, 1), "total": format_number(total, 1)}
    title = _("GPU memory: up to %(max)s of %(total)s GiB") if total else _("GPU memory: up to %(max)s GiB")
    return title % texts


def utilisation_plot(use: MeasuredUse, window: Window) -> Plot | None:
    """Return the plot of mean utilisation, or None if nothing was measured."""
    average = plots.mean(use.gpu_pct)
    if average is None:
        return None
    title = utilisation_title(average)
    return _plot("use", title, _("GPU use, %"), _("mean"), use.gpu_pct, window, unit="%", top=100)


def memory_plot(use: MeasuredUse, window: Window, *, total_mib: int) -> Plot | None:
    """Return the plot of GPU memory in use, with `total_mib` as its limit; None if nothing was measured."""
    values = tuple(None if mib is None else mib / MIB_PER_GIB for mib in use.memory_mib)
    peak = plots.peak(values)
    if peak is None:
        return None
    total = total_mib / MIB_PER_GIB
    limits = (Limit(_("total memory"), total),) if total else ()
    title, name = memory_title(peak, total), _("in use")
    return _plot("memory", title, _("GPU memory in use, GiB"), name, values, window,
                 unit="GiB", digits=1, limits=limits)  # fmt: skip


def _plot(
    key: str,
    title: str,
    quantity: str,
    name: str,
    values: Values,
    window: Window,
    *,
    unit: str = "",
    digits: int = 0,
    top: float | None = None,
    limits: tuple[Limit, ...] = (),
) -> Plot:
    bundle = plots.bundle_of(len(values))
    drawn = plots.merge(values, bundle=bundle)
    return Plot(
        key=key,
        title=title,
        quantity=quantity,
        start_s=window.start_s + window.step_s * bundle / 2,
        step_s=window.step_s * bundle,
        lines=(Line(name, Style.MEAN, drawn),),
        columns=(_("Mean"),),
        rows=plots.rows(
            [values],
            start_s=window.start_s,
            step_s=window.step_s,
            every_s=plots.DAY_S,
            unit=unit,
            digits=digits,
        ),
        digits=digits,
        top=top,
        limits=limits,
    )


def span_of(requested: str) -> str:
    """Return the requested span, or a week for an unknown one."""
    return requested if requested in DAYS else WEEK


def use_plots(
    first: Plot | None, use: MeasuredUse, window: Window, *, total_mib: int, simulated: bool
) -> UsePlots:
    """Return the `first` plot, if any, and those of measured use, with a note if nothing was measured."""
    plots = (first, utilisation_plot(use, window), memory_plot(use, window, total_mib=total_mib))
    measured = any(value is not None for value in (*use.gpu_pct, *use.memory_mib))
    notes: tuple[str, ...] = ()
    if simulated:
        notes = (_("Simulated GPUs are not measured, so there is no GPU use and no GPU memory to show."),)
    elif not measured:
        notes = (_("GPU use and GPU memory were not measured in this period."),)
    return UsePlots(tuple(plot for plot in plots if plot is not None), notes)


def page_context(
    plots: UsePlots,
    *,
    name: str,
    url: str,
    here: str,
    simulated: bool,
    span: str,
    spans: Sequence[tuple[str, str | Promise]] = SPAN_TEXTS,
    every_s: int = 300,
    live_delay_ms: int | None = None,
    shown_at: str = "",
) -> dict[str, Any]:
    """Return the context of `templates/components/use_page.html`.

    The page reloads its plots every `every_s` seconds or, with `live_delay_ms`, after this delay following
    each `measured` event. `shown_at` is the path of the page whose URL gets the selected span.
    """
    return {
        "plots": plots.plots,
        "notes": plots.notes,
        "name": name,
        "url": url,
        "here": here,
        "simulated": simulated,
        "span": span,
        "spans": spans,
        "every_s": every_s,
        "live_delay_ms": live_delay_ms,
        "shown_at": shown_at,
    }
