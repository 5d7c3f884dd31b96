"""`berth usage`: a workspace's measured CPU, memory and GPU usage."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from portal.cli.client import BerthClient
from portal.cli.commands import find, print_json, print_table

ROWS = (
    ("CPU", "cores", 1000, 2, "cpu_milli", "cpu_max_milli"),
    ("memory", "GiB", 1024, 1, "memory_mib", "memory_max_mib"),
    ("GPU use", "%", 1, 0, "gpu_pct", "gpu_max_pct"),
    ("GPU memory", "GiB", 1024, 1, "gpu_memory_mib", "gpu_memory_max_mib"),
)
"""Name, unit, factor to the API's unit, digits, and the fields of mean and maximum."""


def usage(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Print mean and maximum of each measured quantity in the period."""
    workspace = find(client, arguments)
    measured = client.workspaces.usage(workspace["id"], span=arguments.span)
    if arguments.json:
        return print_json(measured)
    if not measured["points"]:
        print("Not measured in this period.", file=sys.stderr)
        return 0
    rows = [_row(measured, *row) for row in ROWS]
    return print_table([("", "LATEST", "MEAN", "MAXIMUM", "LIMIT"), *rows], numbers_from=1)


def _row(
    measured: dict[str, Any], name: str, unit: str, scale: int, digits: int, mean: str, maximum: str
) -> tuple[str, ...]:
    points = measured["points"]
    means = [point[mean] for point in points if point[mean] is not None]
    maxima = [point[key] for point in points for key in (mean, maximum) if point[key] is not None]
    values = (
        points[-1][mean],
        sum(means) / len(means) if means else None,
        max(maxima, default=None),
        measured["limits"].get(mean),
    )
    return name, *("-" if value is None else f"{value / scale:.{digits}f} {unit}" for value in values)
