"""Replay half of the Philly trace with notebooks that are left open, without and with reclaim.

    python -m bench.idle_replay --data DIR --json OUT [--svg OUT]

Each job of the trace (`bench.scheduling`) is the work of one workspace, with added idle time: its GPUs pause
between stretches of work, and after the work the notebook stays open. Published figures say that allocated
GPUs are used 5 to 20 % of the time. Idle times are drawn so that use is `--use` percent (20) without reclaim.
Their distribution has not been published; both are log-normal here. **The idleness is synthetic; work, sizes,
groups and times of submission are the trace's.**

Both replays use the portal's own scheduler, with `Policy(preemption=False)` and durations estimated from
history. Without reclaim, a notebook ends when its user closes it. With reclaim, the portal's own decision
(`portal.reclaim.engine.replay`) stops it earlier by the default policy: two hours without work, half an hour
of notice. Ends of lifetimes are left out, since working users extend them. A user whose session was stopped
in a pause returns after the pause with a new request, which waits in the queue again.

Exits with 1 if a stop interrupted work.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import sys
import time
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from bench.scheduling.__main__ import at
from bench.scheduling.replay import GPU, MILLI_PER_GPU, USAGE_EVERY_S, _age_usage, history_estimates, quotas
from bench.scheduling.trace import Job, load
from portal.quota.limits.types import Cohort
from portal.reclaim.engine import ladder
from portal.reclaim.engine.replay import Period, RecordedRun, replay
from portal.scheduling.engine.model import Policy, Snapshot, Workload
from portal.scheduling.engine.scheduler import Scheduler

HOUR_S = 3600
DEFAULT = ladder.Policy(gpu_idle_s=None, idle_s=2 * HOUR_S, notice_s=1800)
"""The portal's default settings."""
STRETCH_S = 2 * HOUR_S
"""Mean length of a stretch of work between two pauses."""
GAP_MEDIAN_S, GAP_SIGMA = 1200, 1.3
LEFT_SIGMA = 1.5
EVERY_S = 300
"""Events within this interval are decided together, since long queues take long to examine."""


@dataclass(frozen=True, slots=True)
class Session:
    """Alternating seconds of work and pause, and finally how long the notebook is left open."""

    job: Job
    turns: tuple[int, ...]

    @property
    def work_s(self) -> int:
        return sum(self.turns[::2])

    @property
    def held_s(self) -> int:
        """Seconds for which the session holds its GPUs without reclaim."""
        return sum(self.turns)


@dataclass(frozen=True, slots=True)
class Part:
    """One start of a session: how long it holds its GPUs, and the pause until the next start is requested."""

    held_s: int
    work_s: int
    next_after_s: int = 0


@dataclass(slots=True)
class Totals:
    """Totals of a replay: waits in seconds, and GPU-hours."""

    waits: list[int] = field(default_factory=list)
    returns: list[int] = field(default_factory=list)
    used: float = 0.0
    held: float = 0.0
    stops: int = 0
    stops_in_gaps: int = 0
    stops_of_work: int = 0
    gpus: int = 0
    last_s: int = 0

    def row(self) -> dict[str, Any]:
        return {
            "gpu_hours_held": round(self.held),
            "gpu_hours_used": round(self.used),
            "gpu_hours_idle": round(self.held - self.used),
            "used_percent": round(100 * self.used / self.held, 1),
            "wait_p50_h": round((at(self.waits, 50) or 0) / HOUR_S, 2),
            "wait_p95_h": round((at(self.waits, 95) or 0) / HOUR_S, 2),
            "wait_mean_h": round(sum(self.waits) / len(self.waits) / HOUR_S, 2),
            "stops": self.stops,
            "stops_in_gaps": self.stops_in_gaps,
            "stops_of_work": self.stops_of_work,
            "returns_wait_p50_h": round((at(self.returns, 50) or 0) / HOUR_S, 2),
            "returns_wait_p95_h": round((at(self.returns, 95) or 0) / HOUR_S, 2),
            "days_until_all_done": round(self.last_s / 86400, 1),
        }


def sessions(jobs: Sequence[Job], use_percent: float, seed: int) -> list[Session]:
    """Return one session per job, with idle time that results in `use_percent`."""
    chance = Random(seed)
    drawn = []
    for job in jobs:
        turns, left = [], job.duration_s
        while (stretch := 60 + int(chance.expovariate(1 / STRETCH_S))) < left:
            turns += [stretch, 30 + int(chance.lognormvariate(math.log(GAP_MEDIAN_S), GAP_SIGMA))]
            left -= stretch
        drawn.append((job, (*turns, left), chance.lognormvariate(0, LEFT_SIGMA)))

    def with_median(median_s: float) -> list[Session]:
        return [Session(job, (*turns, int(median_s * factor))) for job, turns, factor in drawn]

    low, high = 1.0, float(14 * 86400)
    for _ in range(30):
        middle = math.sqrt(low * high)
        if _use(with_median(middle)) > use_percent / 100:
            low = middle
        else:
            high = middle
    return with_median(high)


def _use(sessions: Sequence[Session]) -> float:
    total_s = sum(session.job.gpus * session.held_s for session in sessions)
    return sum(session.job.gpus * session.work_s for session in sessions) / total_s


def parts(session: Session, outcome: Totals, *, reclaim: bool) -> list[Part]:
    """Return the starts of a session: several if reclaim stops it in a pause and its user returns."""
    if not reclaim:
        return [Part(session.held_s, session.work_s)]
    idle, clock = [], 0
    for place, seconds in enumerate(session.turns):
        if place % 2:
            idle.append(Period(clock, clock + seconds))
        clock += seconds
    end_s = session.held_s
    pieces, began_s = [], 0
    for stop in replay(RecordedRun(0, end_s, tuple(idle)), DEFAULT):
        at_s = round(stop.at_s)
        gap = next((period for period in idle if period.begin_s <= at_s < period.end_s), None)
        outcome.stops += 1
        if gap is None or stop.interrupted or at_s - gap.begin_s < 2 * HOUR_S - 1:
            outcome.stops_of_work += 1
        last = gap is None or gap is idle[-1]
        outcome.stops_in_gaps += not last
        until_s = end_s if gap is None else round(gap.end_s)
        work_s = _work_between(session.turns, began_s, at_s)
        pieces.append(Part(at_s - began_s, work_s, 0 if last else until_s - at_s))
        began_s = until_s
        if last:
            return pieces
    return [*pieces, Part(end_s - began_s, _work_between(session.turns, began_s, end_s))]


def _work_between(turns: Sequence[int], begin_s: int, end_s: int) -> int:
    total = clock = 0
    for place, seconds in enumerate(turns):
        if place % 2 == 0:
            total += max(0, min(end_s, clock + seconds) - max(begin_s, clock))
        clock += seconds
    return total


def run(every: Sequence[Session], gpus: int, *, reclaim: bool) -> Totals:
    """Run the whole trace through the scheduler until all requests have ended."""
    outcome = Totals(gpus=gpus)
    jobs = [session.job for session in every]
    teams = quotas(jobs, gpus)
    first_s = jobs[0].submit_s
    capacity = {GPU: gpus * MILLI_PER_GPU}
    policy = Policy(preemption=False)
    scheduler = Scheduler(Snapshot(first_s, teams, (Cohort("site"),), capacity=capacity, policy=policy))
    expect, learn = history_estimates()
    parts_of = {session.job.id: parts(session, outcome, reclaim=reclaim) for session in every}
    by_id = {job.id: job for job in jobs}
    requests = [(job.submit_s, job.id, 0) for job in jobs]
    heapq.heapify(requests)
    ends: list[tuple[int, str, int]] = []
    submitted: dict[str, int] = {}
    usage_s = first_s
    while requests or ends:
        soonest_s = min(requests[0][0] if requests else 1 << 62, ends[0][0] if ends else 1 << 62)
        now_s = -(-soonest_s // EVERY_S) * EVERY_S
        while ends and ends[0][0] <= now_s:
            _, name, number = ends.pop(0)
            scheduler.finish(f"{name}.{number}")
            part, job = parts_of[name][number], by_id[name]
            learn(Job(name, job.team, job.gpus, job.submit_s, part.held_s))
            outcome.last_s = now_s - first_s
            if number + 1 < len(parts_of[name]):
                heapq.heappush(requests, (now_s + part.next_after_s, name, number + 1))
        while requests and requests[0][0] <= now_s:
            at_s, name, number = heapq.heappop(requests)
            job = by_id[name]
            submitted[f"{name}.{number}"] = at_s
            scheduler.submit(
                Workload(
                    f"{name}.{number}",
                    job.team,
                    {GPU: job.gpus * MILLI_PER_GPU},
                    created_s=at_s,
                    duration_s=expect(job),
                    loses_work=True,
                )
            )
        if now_s - usage_s >= USAGE_EVERY_S:
            _age_usage(scheduler, now_s - usage_s)
            usage_s = now_s
        cycle = scheduler.cycle(now_s)
        scheduler.apply(cycle, now_s)
        for key in cycle.starts:
            name, _, text = key.rpartition(".")
            number = int(text)
            part, job = parts_of[name][number], by_id[name]
            (outcome.returns if number else outcome.waits).append(now_s - submitted.pop(key))
            outcome.held += job.gpus * part.held_s / HOUR_S
            outcome.used += job.gpus * part.work_s / HOUR_S
            insort(ends, (now_s + max(1, part.held_s), name, number))
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.idle_replay", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="has philly/philly_first_half.csv.gz")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--use", type=float, default=20.0, help="percent of the held time that is used")
    parser.add_argument("--load", type=float, default=0.7, help="what is held without reclaim, of all GPUs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, help="only the first so many")
    options = parser.parse_args()
    jobs = load(options.data / "philly" / "philly_first_half.csv.gz", options.jobs)
    every = sessions(jobs, options.use, options.seed)
    span_s = jobs[-1].submit_s - jobs[0].submit_s
    held_s = sum(session.job.gpus * session.held_s for session in every)
    gpus = max(max(job.gpus for job in jobs), math.ceil(held_s / span_s / options.load))
    idle_s = sorted(session.turns[-1] for session in every)
    result: dict[str, Any] = {
        "jobs": len(jobs),
        "gpus": gpus,
        "use_percent": options.use,
        "left_open_median_h": round(idle_s[len(idle_s) // 2] / HOUR_S, 2),
        "gaps_over_two_hours": sum(gap > 2 * HOUR_S for session in every for gap in session.turns[1:-1:2]),
        "runs": {},
    }
    failed = False
    for name, reclaim in (("without", False), ("with", True)):
        began = time.perf_counter()
        outcome = run(every, gpus, reclaim=reclaim)
        failed |= bool(outcome.stops_of_work)
        result["runs"][name] = {**outcome.row(), "replay_s": round(time.perf_counter() - began, 1)}
        print(name, result["runs"][name], flush=True)
    without, having = result["runs"]["without"], result["runs"]["with"]
    result["gpu_hours_recovered"] = without["gpu_hours_held"] - having["gpu_hours_held"]
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print({name: value for name, value in result.items() if name != "runs"})
    if options.svg:
        from bench.idle_chart import draw

        options.svg.write_text(draw(result))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
