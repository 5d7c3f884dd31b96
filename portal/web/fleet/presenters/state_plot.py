"""The plot of GPUs by state, of the site or of a pool. Pure functions."""

from __future__ import annotations

from django.utils.translation import gettext as _

from portal.common import plots
from portal.common.formatting import format_number
from portal.common.plots import Line, Plot, Style, Values
from portal.reports.state_samples import COLUMNS, StateHistory

MAX_DRAWN = 336
"""Maximum number of points: a week in steps of half an hour."""
STYLES = (Style.IN_USE, Style.IDLE, Style.FREE, Style.CHECKING, Style.MAINTENANCE, Style.OUT)


def plot_of(history: StateHistory) -> Plot | None:
    """Return the stacked plot of these samples, or None without samples. The title has the mean use."""
    if not history.recorded:
        return None
    layers = [_values(history, name) for name in COLUMNS]
    in_use = plots.mean(layers[0]) or 0.0
    totals = plots.mean([None if point is None else float(point.total) for point in history.points]) or 0.0
    values = {"in_use": format_number(in_use, 1), "total": format_number(totals, 1)}
    bundle = max(1, -(-len(history.points) // MAX_DRAWN))
    names = (_("In use"), _("Idle"), _("Free"), _("Being checked"), _("In maintenance"), _("Out of service"))
    return Plot(
        key="states",
        title=_("%(in_use)s of %(total)s GPUs in use on average") % values,
        quantity=_("GPUs and MIG instances by state, number"),
        start_s=history.start_s,
        step_s=history.step_s * bundle,
        lines=tuple(
            Line(name, style, plots.merge(layer, bundle=bundle))
            for name, style, layer in zip(names, STYLES, layers, strict=True)
        ),
        columns=names,
        rows=plots.rows(
            layers, start_s=history.start_s, step_s=history.step_s, every_s=plots.DAY_S, digits=1
        ),
        stacked=True,
        digits=1,
    )


def _values(history: StateHistory, name: str) -> Values:
    return tuple(None if point is None else float(getattr(point, name)) for point in history.points)
