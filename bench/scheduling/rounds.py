"""Published policies that work in rounds, on the trace alone: nothing here comes from Berth's engine.

Re-implemented from the papers for jobs that ask for a fixed number of equal GPUs:

- **Gavel's max-min fairness** (Narayanan et al., OSDI 2020, sections 4.1 and 5): time on the GPUs is divided
  so that the least anyone gets (part of the time, times the GPUs asked for) is as large as it can be. In
  each round those come first whose part is largest beside what they have had. Durations are not known to it.
- **Themis' finish-time fairness** (Mahajan et al., NSDI 2020, section 3): how long a job is in the system,
  over how long it would be on its own with an equal part of the GPUs. In each round those come first for whom
  that is worst. Its auction decides who of those gets which GPUs where more or other ones make a job faster;
  jobs of a fixed size on equal GPUs either run or do not. Durations are known to it.

Whoever does not fit is passed over. Who comes back after a pause loses `restart_s` of its round; 0 is kinder
than the papers are. What ends within a round leaves its GPUs idle until the next one, as in Gavel's own
simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.scheduling.peers import PeerOutcome
from bench.scheduling.trace import Job

ROUND_S = 360
"""How long a round takes: six minutes, Gavel's default."""
Floats = npt.NDArray[np.float64]


@dataclass(slots=True)
class Active:
    """The jobs in the system, in order of submission; one entry for each in all arrays. Times in seconds."""

    gpus: Floats
    submit_s: Floats
    duration_s: Floats
    done_s: Floats
    """How long each has run."""
    rounds: Floats
    """How many rounds each has had."""
    seen: Floats
    """How many rounds each has been there for."""


def gavel(jobs: Sequence[Job], gpus: int, restart_s: int = 0, round_s: int = ROUND_S) -> PeerOutcome:
    """Max-min fairness by rounds."""
    return _replay(jobs, gpus, restart_s, round_s, _by_part)


def themis(jobs: Sequence[Job], gpus: int, restart_s: int = 0, round_s: int = ROUND_S) -> PeerOutcome:
    """Finish-time fairness by rounds."""
    return _replay(jobs, gpus, restart_s, round_s, _by_finish)


def level(demand: Floats, capacity: float) -> float:
    """The most that each may have at most so that all together get no more than there is (water-filling)."""
    ranked = np.sort(demand)
    if ranked.sum() <= capacity:
        return float(ranked[-1])
    before = np.concatenate(([0.0], np.cumsum(ranked)[:-1]))
    # With the level at the n-th smallest, all from it on would have as much as it.
    filled = before + ranked * np.arange(len(ranked), 0, -1)
    first = int(np.searchsorted(filled, capacity, side="right"))
    return float((capacity - before[first]) / (len(ranked) - first))


def _by_part(active: Active, gpus: int, _: float) -> Floats:
    """What is due over what was had; who has had nothing yet comes first."""
    part = np.minimum(1.0, level(active.gpus, gpus) / active.gpus)
    had = active.rounds / np.maximum(1.0, active.seen)
    with np.errstate(divide="ignore"):
        return np.where(had > 0, part / had, np.inf)


def _by_finish(active: Active, gpus: int, now_s: float) -> Floats:
    """Time in the system if it runs from now on, over the time with an equal part of the GPUs."""
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
            # Rounds in which nobody is there are left out.
            now_s += -(-(jobs[following].submit_s - now_s) // round_s) * round_s
        new = following
        while new < len(jobs) and jobs[new].submit_s <= now_s:
            new += 1
        if new > following:
            come = jobs[following:new]
            ids = np.concatenate((ids, np.arange(following, new)))
            ran = np.concatenate((ran, np.zeros(len(come), dtype=bool)))
            fresh = np.zeros(len(come))
            active = Active(
                np.concatenate((active.gpus, [job.gpus for job in come])),
                np.concatenate((active.submit_s, [job.submit_s for job in come])),
                np.concatenate((active.duration_s, [job.duration_s for job in come])),
                np.concatenate((active.done_s, fresh)),
                np.concatenate((active.rounds, fresh)),
                np.concatenate((active.seen, fresh)),
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
    """Who runs: the highest rank first, of equal ones who came first; whoever does not fit is passed over."""
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
