"""Plots: values for the script, merged points, and tables with equal values."""

from __future__ import annotations

import json

from portal.common import plots
from portal.common.plots import Limit, Line, Plot, Style

DAY = 1_763_683_200
"""Midnight UTC."""


def plot(*lines: Line, **fields) -> Plot:
    return Plot("use", "Title", "GPU use, %", DAY, 3600, lines, **fields)


def test_data_has_rounded_values_and_gaps():
    line = Line("mean", Style.MEAN, (1.26, None, 3))
    data = json.loads(plot(line, digits=1, top=100, limits=(Limit("all", 8),), held=((1, 2),)).data)
    assert data["lines"] == [{"style": "mean", "values": [1.3, None, 3]}]
    assert (data["start"], data["step"], data["top"], data["limits"]) == (DAY, 3600, 100, [8])
    assert data["held"] == [[1, 2]] and data["stacked"] is False
    assert json.loads(plot(line).data)["lines"][0]["values"] == [1, None, 3]


def test_gap_is_a_time_without_values():
    full, empty = Line("a", Style.IDLE, (1, None)), Line("b", Style.FREE, (None, 2))
    assert not plot(full, empty).has_gaps and plot(full, empty).measured
    assert plot(full).has_gaps
    assert not plot(Line("a", Style.IDLE, (None, None))).measured


def test_merged_points_are_means_of_measured_values():
    assert plots.merge((1, 3, None, None, 5), bundle=2) == (2, None, 5)
    assert plots.merge((1, 3, None), plots.peak, bundle=3) == (3,)
    assert (plots.bundle_of(180), plots.bundle_of(181), plots.bundle_of(0)) == (1, 2, 1)


def test_rows_are_utc_days_newest_first():
    values = (*[1.0] * 30, *[4.0] * 18, None)
    rows = plots.rows([values], start_s=DAY, step_s=3600, every_s=plots.DAY_S, unit="GPUs", digits=2)
    assert [(row.at.day, row.at.hour, row.texts) for row in rows] == [
        (23, 12, ("",)),
        (22, 12, ("3.25 GPUs",)),
        (21, 12, ("1 GPUs",)),
    ]
    hours = plots.rows([values], start_s=DAY + 900, step_s=900, every_s=3600)
    assert (hours[-1].at.minute, hours[-1].texts, len(hours)) == (0, ("1",), 13)
