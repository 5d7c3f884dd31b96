"""Published policies that work in rounds, on the trace alone, without Berth's engine.

Re-implemented from the papers for jobs that request a fixed number of equal GPUs:

- **Gavel's max-min fairness** (Narayanan et al., OSDI 2020, sections 4.1 and 5) divides GPU time so that the
  smallest share of any job (part of the time, times the requested GPUs) is as large as possible. In each
  round the jobs come first whose due share is largest relative to their received share. It does not know
  durations.
- **Themis' finish-time fairness** (Mahajan et al., NSDI 2020, section 3) compares the time of a job in the
  system with its time alone with an equal part of the GPUs. In each round the jobs with the worst ratio come
  first. Its auction also decides which GPUs a job gets, if more or other GPUs make it faster; jobs of a fixed
  size on equal GPUs either run or do not. It knows durations.

A job that does not fit is skipped. A job that returns after a pause loses `restart_s` of its round; 0 is more
favourable than in the papers. A job that ends within a round leaves its GPUs idle until the next round, as in
Gavel's own simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.scheduling.peers import PeerOutcome
from bench.scheduling.trace import Job

ROUND_S = 360
"""Length of a round: six minutes, Gavel's default."""
Floats = npt.NDArray[np.float64]


@dataclass(slots=True)
class Active:
    """The jobs in the system in order of submission, with one entry each in all arrays. Times in seconds."""

    gpus: Floats
    submit_s: Floats
    duration_s: Floats
    done_s: Floats
    """Run time of each job."""
    rounds: Floats
    """Rounds in which each job has run."""
    seen: Floats
    """Rounds for which each job has been in the system."""


def gavel(jobs: Sequence[Job], gpus: int, restart_s: int = 0, round_s: int = ROUND_S) -> PeerOutcome:
    """Run the trace with max-min fairness by rounds."""
    return _replay(jobs, gpus, restart_s, round_s, _by_part)


def themis(jobs: Sequence[Job], gpus: int, restart_s: int = 0, round_s: int = ROUND_S) -> PeerOutcome:
    """Run the trace with finish-time fairness by rounds."""
    return _replay(jobs, gpus, restart_s, round_s, _by_finish)


def level(demand: Floats, capacity: float) -> float:
    """Return the level for `demand` by water-filling: no job gets more, and the sum is within `capacity`."""
    ranked = np.sort(demand)
    if ranked.sum() <= capacity:
        return float(ranked[-1])
    before = np.concatenate(([0.0], np.cumsum(ranked)[:-1]))
    # Total if the n-th smallest demand were the level: this one and all larger ones get that much.
    filled = before + ranked * np.arange(len(ranked), 0, -1)
    first = int(np.searchsorted(filled, capacity, side="right"))
    return float((capacity - before[first]) / (len(ranked) - first))


def _by_part(active: Active, gpus: int, _: float) -> Floats:
    """Return the ratio of due to received time. Jobs that have received nothing come first."""
    part = np.minimum(1.0, level(active.gpus, gpus) / active.gpus)
    had = active.rounds / np.maximum(1.0, active.seen)
    with np.errstate(divide="ignore"):
        return np.where(had > 0, part / had, np.inf)


def _by_finish(active: Active, gpus: int, now_s: float) -> Floats:
    """Return the time in the system if it runs from now on, over the time with an equal part of the GPUs."""
    shared_s = now_s - active.submit_s + active.duration_s - active.done_s
    alone_s = active.duration_s * np.maximum(1.0, active.gpus * len(active.gpus) / gpus)
    return shared_s / alone_s


def _replay(
    jobs: Sequence[Job],
    gpus: int,
    restart_s: int,
    round_s: int,
    rank: Callable[[Active, int, float], Floats],
) -> PeerOutcome:
    outcome = PeerOutcome()
    ids = np.arange(0)
    active = Active(*(np.zeros(0) for _ in range(6)))
    ran = np.zeros(0, dtype=bool)
    now_s, following = jobs[0].submit_s, 0
    while following < len(jobs) or len(ids):
        if not len(ids) and jobs[following].submit_s > now_s:
            # Skip rounds without jobs.
            now_s += -(-(jobs[following].submit_s - now_s) // round_s) * round_s
        new = following
        while new < len(jobs) and jobs[new].submit_s <= now_s:
            new += 1
        if new > following:
            come = jobs[following:new]
            ids = np.concatenate((ids, np.arange(following, new)))
            ran = np.concatenate((ran, np.zeros(len(come), dtype=bool)))
            zeros = np.zeros(len(come))
            active = Active(
                np.concatenate((active.gpus, [job.gpus for job in come])),
                np.concatenate((active.submit_s, [job.submit_s for job in come])),
                np.concatenate((active.duration_s, [job.duration_s for job in come])),
                np.concatenate((active.done_s, zeros)),
                np.concatenate((active.rounds, zeros)),
                np.concatenate((active.seen, zeros)),
            )
            following = new
        runs = _chosen(rank(active, gpus, now_s), active.gpus, gpus)
        outcome.preempted += int(np.count_nonzero(ran & ~runs))
        again_s = np.where(runs & ~ran & (active.rounds > 0), restart_s, 0)
        outcome.lost_gpu_s += int((again_s * active.gpus).sum())
        left_s = active.duration_s - active.done_s + again_s
        ends = runs & (left_s <= round_s)
        for place in np.flatnonzero(ends):
            job = jobs[ids[place]]
            outcome.waits[job.id] = float(now_s + left_s[place]) - job.submit_s - job.duration_s
        active.done_s = active.done_s + np.where(runs, round_s - again_s, 0)
        active.rounds = active.rounds + runs
        active.seen = active.seen + 1
        now_s += round_s
        if ends.any():
            stay = ~ends
            ids, runs = ids[stay], runs[stay]
            active = Active(
                active.gpus[stay],
                active.submit_s[stay],
                active.duration_s[stay],
                active.done_s[stay],
                active.rounds[stay],
                active.seen[stay],
            )
        ran = runs
    return outcome


def _chosen(ranks: Floats, demand: Floats, gpus: int) -> npt.NDArray[np.bool_]:
    """Select running jobs by highest rank, then earliest submission. Jobs that do not fit are skipped."""
    order = np.argsort(-ranks, kind="stable")
    runs = np.zeros(len(order), dtype=bool)
    free = gpus
    sizes = demand[order].astype(int).tolist()
    for place, size in zip(order.tolist(), sizes, strict=True):
        if size <= free:
            runs[place] = True
            free -= size
            if not free:
                break
    return runs
