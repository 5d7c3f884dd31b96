"""`python -m bench.placement --data DIR --json OUT`: placement quality beside published results."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from bench.placement.chart import draw
from bench.placement.replay import MIXES, Curve, replay
from bench.placement.site import LAYOUTS
from bench.placement.traces import (
    Published,
    TraceError,
    Workload,
    read_nodes,
    read_published,
    read_workloads,
    renamed,
)
from portal.scheduling.engine.placement.scoring import DEFAULT_POLICY, POLICIES
from portal.scheduling.engine.placement.types import NodeCapacity

_MARKS = (80, 90, 95, 100, 110, 120, 130)
_COMPARED = (95, 100, 130)
_PUBLISHED = {
    "Random": "01-Random",
    "Best fit": "05-BestFit",
    "GPU packing": "04-GpuPacking",
    "FGD, published": "06-FGD",
}


def main(arguments: list[str] | None = None) -> int:
    """Replay all traces in the folder. The exit code is 2 if it contains none that can be used."""
    options = _parser().parse_args(arguments)
    try:
        nodes = read_nodes(options.data)
        published = read_published(options.data)
        print(f"layout {options.layout}; policy {options.policy}; mix {options.mix}: {MIXES[options.mix]}")
        rows = []
        for workload in read_workloads(options.data):
            if options.workload and workload.name not in options.workload:
                continue
            if options.seed and workload.seed not in options.seed:
                continue
            rows.append(_row(nodes, workload, published, options))
            _print(rows[-1], head=len(rows) == 1)
    except (TraceError, OSError, KeyError, ValueError) as error:
        print(f"bench.placement: {error}", file=sys.stderr)
        return 2
    if not rows:
        print("bench.placement: no workload left after --workload and --seed", file=sys.stderr)
        return 2
    report = {
        "policy": options.policy,
        "mix": options.mix,
        "layout": options.layout,
        "nodes": len(nodes),
        "gpus": sum(len(node.devices) for node in nodes),
        "workloads": rows,
        "mean": _means(rows),
    }
    print("mean over workloads, allocation minus published FGD:", _differences(report["mean"]))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    if options.chart:
        options.chart.write_text(_chart(nodes, rows, published))
    return 0


def _row(
    nodes: list[NodeCapacity], workload: Workload, published: Published, options: argparse.Namespace
) -> dict[str, Any]:
    curve = replay(nodes, workload, options.policy, mix=options.mix, layout=LAYOUTS[options.layout])
    row: dict[str, Any] = {"workload": workload.name, "seed": workload.seed}
    row |= {f"alloc_{mark}": _at(curve.allocation, mark) for mark in _MARKS}
    row |= {f"frag_{mark}": _at(curve.fragmentation, mark) for mark in _MARKS}
    reference = published.allocation(workload.name, workload.seed)
    row |= {f"fgd_{mark}": reference.get(mark) for mark in _MARKS}
    row |= {
        "requests": len(workload.arrivals),
        "placed": curve.placed,
        "decision_mean_ms": round(statistics.fmean(curve.decision_s) * 1000, 4),
        "decision_p99_ms": round(_percentile(curve.decision_s, 99) * 1000, 4),
    }
    if options.renamings:
        row["renamings"] = _renamings(nodes, workload, options)
    return row


def _chart(nodes: list[NodeCapacity], rows: list[dict[str, Any]], published: Published) -> str:
    """Return a chart of the allocation at requests for 100 % of the GPUs, beside the published policies."""
    lines = []
    for name in sorted({row["workload"] for row in rows}):
        selected = [row for row in rows if row["workload"] == name]
        points = []
        for label, policy in _PUBLISHED.items():
            values = [published.allocation(name, row["seed"], policy).get(100) for row in selected]
            if None not in values:
                points.append((label, statistics.fmean(value for value in values if value is not None)))
        points.append(("Berth", statistics.fmean(row["alloc_100"] for row in selected)))
        lines.append((name, points))
    title = "Allocation when the requests ask for every GPU"
    mean = _means(rows)
    if "fgd_100" in mean:
        gain = mean["alloc_100"] - mean["fgd_100"]
        more = "more" if gain >= 0 else "less"
        title = f"On average Berth gives out {abs(gain):.2f} points {more} of the GPUs than published FGD"
    gpus = sum(len(node.devices) for node in nodes)
    subtitle = f"{len(nodes):,} nodes with {gpus:,} GPUs, mean over seeds; requests arrive and never leave"
    return draw(
        title, subtitle, lines, "GPUs given out, % of the cluster, when requests for 100 % have arrived"
    )


def _renamings(nodes: list[NodeCapacity], workload: Workload, options: argparse.Namespace) -> dict[str, Any]:
    """Repeat the replay several times with renamed nodes in another order."""
    curves: list[Curve] = [
        replay(
            renamed(nodes, seed),
            workload,
            options.policy,
            measure=False,
            mix=options.mix,
            layout=LAYOUTS[options.layout],
        )
        for seed in range(options.renamings)
    ]
    spreads: dict[str, Any] = {"count": len(curves)}
    for mark in _COMPARED:
        values = [value for curve in curves if (value := _at(curve.allocation, mark)) is not None]
        if values:
            spreads[f"alloc_{mark}_mean"] = round(statistics.fmean(values), 4)
            spreads[f"alloc_{mark}_min"] = min(values)
            spreads[f"alloc_{mark}_max"] = max(values)
    return spreads


def _at(curve: dict[int, float], mark: int) -> float | None:
    value = curve.get(mark)
    return None if value is None else round(value, 4)


def _percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def _means(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the mean over workloads of their means over seeds, for each measure that all rows have."""
    names = sorted({row["workload"] for row in rows})
    means = {}
    for key in [f"{kind}_{mark}" for kind in ("alloc", "frag", "fgd") for mark in _MARKS]:
        if all(row[key] is not None for row in rows):
            means[key] = round(
                statistics.fmean(
                    statistics.fmean(row[key] for row in rows if row["workload"] == name) for name in names
                ),
                4,
            )
    return means


def _differences(mean: dict[str, float]) -> str:
    parts = [
        f"{mean[f'alloc_{mark}'] - mean[f'fgd_{mark}']:+.2f} at {mark} %"
        for mark in _COMPARED
        if f"fgd_{mark}" in mean and f"alloc_{mark}" in mean
    ]
    return ", ".join(parts) or "no published values"


def _print(row: dict[str, Any], *, head: bool) -> None:
    if head:
        print(
            f"{'workload':14} seed "
            + " ".join(f"{f'at {mark} %':>15}" for mark in _COMPARED)
            + "   frag 80/130  ms"
        )
    cells = []
    for mark in _COMPARED:
        alloc, fgd = row[f"alloc_{mark}"], row[f"fgd_{mark}"]
        cells.append(
            "-" if alloc is None else f"{alloc:.2f}" + (f" ({alloc - fgd:+.2f})" if fgd is not None else "")
        )
    frag = "/".join(
        "-" if row[f"frag_{mark}"] is None else f"{row[f'frag_{mark}']:.2f}" for mark in (80, 130)
    )
    print(
        f"{row['workload']:14} {row['seed']:4} "
        + " ".join(f"{cell:>15}" for cell in cells)
        + f"   {frag:11} {row['decision_mean_ms']:.3f}",
        flush=True,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.placement", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with openb/ and published/")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--chart", type=Path, help="where to draw the result, as SVG")
    parser.add_argument("--policy", default=DEFAULT_POLICY, choices=sorted(POLICIES))
    parser.add_argument(
        "--mix",
        default="learnt",
        choices=sorted(MIXES),
        help="the requests that are expected; learnt (default) is what the portal does",
    )
    parser.add_argument(
        "--layout",
        default="pool",
        choices=sorted(LAYOUTS),
        help="one pool with homes on its nodes (default) or shared, one pool per model, or the engine alone",
    )
    parser.add_argument("--workload", action="append", help="only this workload (may be repeated)")
    parser.add_argument("--seed", action="append", type=int, help="only this seed (may be repeated)")
    parser.add_argument(
        "--renamings", type=int, default=0, help="also replay with the nodes renamed and reordered, so often"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
