"""Plots of a workspace's use over its life: CPU, memory, GPU use and GPU memory, each with its limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from portal.common import plots
from portal.common.formatting import format_number
from portal.common.plots import Limit, Line, Plot, Style, Values
from portal.fleet.inventory import use_plots
from portal.fleet.inventory.use_plots import MIB_PER_GIB, UsePlots
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.usage_history import Span, Usage
from portal.workspaces.usage_samples import MILLI_PER_CORE
from provisioning.gpu.rollup import MINUTE_S

SPAN_TEXTS = (
    (Span.HOUR, gettext_lazy("1 hour")),
    (Span.DAY, gettext_lazy("24 hours")),
    (Span.WEEK, gettext_lazy("7 days")),
    (Span.ALL, gettext_lazy("All")),
)


@dataclass(frozen=True, slots=True)
class _Quantity:
    """A plotted quantity: its columns for mean and maximum, and their factor to the plot's `unit`.

    `title` has placeholders for average and maximum. `limit` is None for no line, `top` for no fixed axis
    end.
    """

    key: str
    mean: str
    maximum: str
    unit: str
    scale: int
    digits: int
    quantity: str
    title: Callable[[float, float], str]
    limit: Limit | None = None
    top: float | None = None


def plots_of(workspace: Workspace, usage: Usage) -> UsePlots:
    """Return the plots of measured quantities, and notes about missing measurements."""
    if workspace.simulated:
        return UsePlots((), (_("Simulated workspaces are not measured."),))
    measured = tuple(plot for quantity in _quantities(usage) if (plot := _plot(quantity, usage)).measured)
    return UsePlots(measured, tuple(_notes(workspace, usage, measured)))


def _quantities(usage: Usage) -> tuple[_Quantity, ...]:
    limits = usage.limits
    cores = limits.cpu_milli / MILLI_PER_CORE
    memory = limits.memory_mib / MIB_PER_GIB
    gpu_memory = (limits.gpu_memory_mib or 0) / MIB_PER_GIB
    return (
        _Quantity(
            "cpu", "cpu_milli", "cpu_max_milli", "", MILLI_PER_CORE, 2, _("CPU use, cores"),
            lambda average, _most: _cpu_title(average, cores), Limit(_("requested cores"), cores),
        ),
        _Quantity(
            "ram", "memory_mib", "memory_max_mib", "GiB", MIB_PER_GIB, 1, _("Memory in use, GiB"),
            lambda _average, most: _("Memory: up to %(max)s of %(limit)s GiB")
            % {"max": format_number(most, 1), "limit": format_number(memory, 1)},
            Limit(_("memory limit"), memory),
        ),
        _Quantity(
            "use", "gpu_pct", "gpu_max_pct", "%", 1, 0, _("GPU use, %"),
            lambda average, _most: use_plots.utilisation_title(average), top=100,
        ),
        _Quantity(
            "memory", "gpu_memory_mib", "gpu_memory_max_mib", "GiB", MIB_PER_GIB, 1,
            _("GPU memory in use, GiB"),
            lambda _average, most: use_plots.memory_title(most, gpu_memory),
            Limit(_("GPU memory"), gpu_memory) if gpu_memory else None,
        ),
    )  # fmt: skip


def _cpu_title(average: float, cores: float) -> str:
    title = ngettext(
        "CPU: %(average)s of %(limit)s core on average",
        "CPU: %(average)s of %(limit)s cores on average",
        1 if cores == 1 else 2,
    )
    return title % {"average": format_number(average, 2), "limit": format_number(cores, 2)}


def _values(usage: Usage, name: str, scale: int) -> Values:
    values = (getattr(point, name) for point in usage.points)
    return tuple(None if value is None else value / scale for value in values)


def _plot(quantity: _Quantity, usage: Usage) -> Plot:
    means = _values(usage, quantity.mean, quantity.scale)
    maxima = _values(usage, quantity.maximum, quantity.scale)
    every_s = _row_s(usage)
    return Plot(
        key=quantity.key,
        title=quantity.title(plots.mean(means) or 0, plots.peak((*means, *maxima)) or 0),
        quantity=quantity.quantity,
        start_s=usage.start_s + usage.step_s / 2,
        step_s=usage.step_s,
        lines=(Line(_("mean"), Style.MEAN, means), Line(_("maximum"), Style.PEAK, maxima)),
        columns=(_("Mean"), _("Maximum")),
        rows=plots.rows(
            [means, maxima],
            start_s=usage.start_s,
            step_s=usage.step_s,
            every_s=every_s,
            unit=quantity.unit,
            digits=quantity.digits,
            summaries=(plots.mean, plots.peak),
        ),
        dated=every_s == plots.DAY_S,
        digits=quantity.digits,
        top=quantity.top,
        limits=(quantity.limit,) if quantity.limit is not None else (),
        # The mean of a longer interval is not the current value.
        now=plots.text_of(means[-1], quantity.unit, quantity.digits) if usage.step_s == MINUTE_S else "",
    )


def _row_s(usage: Usage) -> int:
    """Return the length of a table row in seconds: 5 minutes, an hour, or a day."""
    length_s = usage.end_s - usage.start_s
    if length_s <= 2 * plots.HOUR_S:
        return 5 * MINUTE_S
    # A day can have one more interval: the current one.
    return plots.HOUR_S if length_s <= plots.DAY_S + plots.HOUR_S else plots.DAY_S


def _notes(workspace: Workspace, usage: Usage, measured: tuple[Plot, ...]) -> list[str]:
    keys = {plot.key for plot in measured}
    notes = []
    if not keys:
        notes.append(
            _("Not measured in this period. A running workspace is measured once a minute.")
            if workspace.state == State.RUNNING
            else _("Not measured in this period.")
        )
    elif usage.accelerated and "use" not in keys:
        notes.append(_("GPU use was not measured in this period."))
    if keys and usage.shared:
        notes.append(
            _("GPU use is that of this workspace's processes. GPU memory of a share is not measured.")
        )
    return notes
