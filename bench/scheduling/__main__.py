"""`python -m bench.scheduling --data DIR --json OUT`: half of the Philly trace, with its groups as teams.

DIR contains `philly/philly_first_half.csv.gz`; `--trace FILE` (with `--part`) names another file, and
`--synthetic SEED` draws jobs. `--thinned SEED` keeps about a fourth of the jobs, for a fourth of the
`--gpus`.

Compares FIFO, EASY back-fill, Tiresias and SRSF (`peers`), Gavel and Themis (`rounds`; also with a minute
lost each time that a job returns), all of them re-implemented, and Berth's engine without and with
preemption, with durations known and estimated from history. Waits in a queue this long depend on chance, so
preemption is compared again with all submissions shifted by some minutes. All but the re-implemented policies
follow the path of a request in the portal (`site`), with its default settings. Every 500th request is
previewed first, and must get the previewed result.

Exits with 1 if a quota was exceeded, or back-fill delayed a reserved start.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.scheduling.peers import PeerOutcome, srsf, tiresias
from bench.scheduling.replay import Outcome, quotas, replay
from bench.scheduling.rounds import gavel, themis
from bench.scheduling.trace import Job, load, shifted, synthetic, thinned
from portal.scheduling.snapshot import policy as site_policy

DEFAULT_GPUS = 650
NEVER_S = 1 << 40
SIZES = (("1", 1), ("2-8", 8), ("9-32", 32), (">32", 1 << 30))
"""Classes of jobs by GPUs: name, and maximum number of GPUs."""
RESTART_S = 60
PEERS: dict[str, Callable[[Sequence[Job], int], PeerOutcome]] = {
    "tiresias_2d_las": tiresias,
    "srsf": srsf,
    "gavel_max_min": gavel,
    "gavel_max_min_restart_60s": partial(gavel, restart_s=RESTART_S),
    "themis_finish_time": themis,
    "themis_finish_time_restart_60s": partial(themis, restart_s=RESTART_S),
}
"""Policies with their own simulation: no teams or quotas; preempted work continues where it stopped."""
SYNTHETIC_JOBS = 20_000


def at(values: Sequence[float], percent: int) -> float | None:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, len(ranked) * percent // 100)] if ranked else None


def of_waits(waits: Mapping[str, float], jobs: Sequence[Job]) -> dict[str, Any]:
    """Return mean, percentiles and maximum of the waits, and the mean by job size."""
    by_size: dict[str, list[float]] = {name: [] for name, _ in SIZES}
    for job in jobs:
        if job.id in waits:
            by_size[next(name for name, most in SIZES if job.gpus <= most)].append(waits[job.id])
    every = list(waits.values())
    return {
        "jobs_started": len(every),
        "wait_p50_s": at(every, 50),
        "wait_p95_s": at(every, 95),
        "wait_max_s": max(every, default=None),
        "wait_mean_s": int(sum(every) // max(1, len(every))),
        "wait_mean_s_by_gpus": {name: int(sum(some) // len(some)) for name, some in by_size.items() if some},
    }


def summary(outcome: Outcome, jobs: Sequence[Job], gpus: int, wall_s: float) -> dict[str, Any]:
    span_s = max(1, jobs[-1].submit_s - jobs[0].submit_s)
    errors = [abs(error) for error, _ in outcome.eta_errors]
    eta_waits = [wait for _, wait in outcome.eta_errors]
    return {
        **of_waits(outcome.waits, jobs),
        "utilisation_pct": round(100 * outcome.busy_gpu_s / span_s / gpus, 2),
        "events": outcome.events,
        "previews": outcome.previews,
        "backfilled": outcome.backfilled,
        "preempted": outcome.preempted,
        "preempted_one_job_most": outcome.max_preempted,
        "lost_gpu_hours": outcome.lost_gpu_s // 3600,
        "quota_violations": len(outcome.violations),
        "reservations_checked": outcome.reservations_checked,
        "reservations_delayed_by_backfill": len(outcome.reservations_delayed),
        "heads_started_late": len(outcome.late_starts),
        "first_problems": (outcome.violations + outcome.reservations_delayed)[:5],
        "etas": len(errors),
        "etas_unknown": outcome.etas_unknown,
        "eta_median_absolute_error_s": at(errors, 50),
        "eta_wait_p50_s": at(eta_waits, 50),
        "naive_eta_median_absolute_error_s": at(outcome.naive_errors, 50),
        "cycle_ms_mean": round(1000 * sum(outcome.cycle_s) / len(outcome.cycle_s), 4),
        "cycle_ms_p99": round(1000 * (at(outcome.cycle_s, 99) or 0), 3),
        "replay_s": round(wall_s, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scheduling", description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, help="the folder that holds philly/philly_first_half.csv.gz")
    source.add_argument("--trace", type=Path, help="a file with the columns of the trace")
    source.add_argument("--synthetic", type=int, metavar="SEED", help="draw the jobs")
    parser.add_argument("--part", choices=("all", "first", "second"), default="all", help="which half of it")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=DEFAULT_GPUS)
    parser.add_argument("--jobs", type=int, default=None, help="only the first so many, or draw so many")
    parser.add_argument("--load", type=float, default=0.95, help="part of the GPUs that drawn jobs ask for")
    parser.add_argument("--quick", action="store_true", help="only the first tenth of the trace")
    parser.add_argument("--thinned", type=int, metavar="SEED", help="only a fourth of the jobs, drawn")
    parser.add_argument("--shifted", type=int, default=None, help="replays with moved submissions (3)")
    parser.add_argument("--eta-every", type=int, default=100, help="forecast every so manieth that waits")
    parser.add_argument("--only", nargs="*", default=None, help="names of the runs wanted")
    options = parser.parse_args()
    try:
        if options.synthetic is not None:
            count = options.jobs or SYNTHETIC_JOBS
            jobs = synthetic(options.synthetic, count, options.gpus, options.load)
        else:
            path = options.trace or options.data / "philly" / "philly_first_half.csv.gz"
            jobs = load(path, options.jobs, options.part)
    except FileNotFoundError as error:
        parser.error(f"no trace at {error.filename}; give the folder that holds philly/ as --data")
    jobs = [job for job in jobs if job.gpus <= options.gpus]
    if options.thinned is not None:
        jobs = thinned(jobs, options.thinned, options.gpus)
    if options.quick:
        jobs = jobs[: max(1, len(jobs) // 10)]
    times = options.shifted if options.shifted is not None else (0 if options.quick else 3)
    if not jobs:
        parser.error("the trace has no job that fits on so few GPUs")
    teams = quotas(jobs, options.gpus)
    berth = site_policy()
    without = replace(berth, preemption=False)
    plain = replace(without, max_wait_s=NEVER_S, due_after=0)
    runs: dict[str, dict[str, Any]] = {
        "fifo": {"policy": replace(plain, backfill=False)},
        "easy": {"policy": plain},
        "berth": {"policy": without, "teams": teams, "eta_every": options.eta_every},
        "berth_guessed_durations": {
            "policy": without,
            "teams": teams,
            "eta_every": options.eta_every,
            "known_durations": False,
        },
        "berth_preemption": {"policy": berth, "teams": teams},
        "berth_preemption_guessed_durations": {"policy": berth, "teams": teams, "known_durations": False},
    }
    for seed in range(1, times + 1):
        moved = shifted(jobs, seed)
        runs[f"berth_shifted_{seed}"] = {"policy": without, "teams": teams, "jobs": moved}
        runs[f"berth_preemption_shifted_{seed}"] = {"policy": berth, "teams": teams, "jobs": moved}
    result: dict[str, Any] = {
        "trace": f"synthetic {options.synthetic}"
        if options.synthetic is not None
        else f"{path.name} {options.part}",
        "thinned": options.thinned,
        "jobs": len(jobs),
        "gpus": options.gpus,
        "teams": {team.name: team.limits["gpu"].nominal for team in teams},
        "runs": {},
    }
    for name, peer in PEERS.items():
        if options.only and name not in options.only:
            continue
        peer_outcome = peer(jobs, options.gpus)
        row = {
            **of_waits(peer_outcome.waits, jobs),
            "preempted": peer_outcome.preempted,
            "lost_gpu_hours": peer_outcome.lost_gpu_s // 3600,
        }
        result["runs"][name] = row
        print(line(name, row), flush=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    failed = False
    for name, settings in runs.items():
        if options.only and name not in options.only:
            continue
        began = time.perf_counter()
        replayed = settings.pop("jobs", jobs)
        outcome = replay(replayed, options.gpus, settings.pop("policy"), **settings)
        row = summary(outcome, replayed, options.gpus, time.perf_counter() - began)
        result["runs"][name] = row
        failed |= bool(outcome.violations or outcome.reservations_delayed)
        print(line(name, row), flush=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(failed)


COLUMNS = (
    ("wait p50", "wait_p50_s", 3600, " h"),
    ("p95", "wait_p95_s", 3600, " h"),
    ("most", "wait_max_s", 3600, " h"),
    ("mean", "wait_mean_s", 3600, " h"),
    ("utilisation", "utilisation_pct", 1, " %"),
    ("quota violations", "quota_violations", 1, ""),
    ("reserved starts checked", "reservations_checked", 1, ""),
    ("delayed", "reservations_delayed_by_backfill", 1, ""),
    ("ETA error", "eta_median_absolute_error_s", 60, " min"),
    ("naive", "naive_eta_median_absolute_error_s", 60, " min"),
    ("preempted", "preempted", 1, ""),
    ("lost", "lost_gpu_hours", 1, " GPU-h"),
)


def line(name: str, row: dict[str, Any]) -> str:
    """Return the row as a line for people."""
    cells = []
    for title, key, unit, unit_name in COLUMNS:
        value = row.get(key)
        if value is not None and unit > 1:
            value = f"{value / unit:.2f}"
        cells.append(f"{title} –" if value is None else f"{title} {value}{unit_name}")
        if key == "wait_mean_s":
            sizes = row["wait_mean_s_by_gpus"].items()
            cells.append("mean by GPUs " + ", ".join(f"{size}: {wait / 3600:.1f} h" for size, wait in sizes))
    return f"{name:34} " + " | ".join(cells)


if __name__ == "__main__":
    sys.exit(main())
