"""Published preemptive policies on the trace alone, without Berth's engine.

Tiresias' discretised 2D-LAS (Gu et al., NSDI 2019) needs no durations. Requests move down a series of queues
as their attained service (GPUs times seconds) grows. Within a queue, running requests come first, then
waiting ones in the order in which they entered it. SRSF (shortest remaining service first) knows all
durations. Both follow their authors' simulator with placement left out ("count"): a request that fits in the
order runs. All others are preempted at once, lose nothing and return at no cost.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.scheduling.trace import Job

LIMITS = (3250, 7200)
"""Attained service in GPU seconds up to which a request stays in the first and second queue (Tiresias)."""
Rank = tuple[float, int, int, str]
_NEVER_S = float("inf")


@dataclass(slots=True)
class _State:
    job: Job
    level: int = 0
    number: int = 0
    done_s: float = 0.0
    """Total run time in seconds."""
    since_s: float = -1.0
    """Since when it has been running; below zero: it waits."""
    rank: Rank = (0.0, 0, 0, "")


@dataclass(slots=True)
class PeerOutcome:
    """Result of a policy. `waits` by job: seconds from submission to the end, without its run time.

    `preempted` counts preemptions, and `lost_gpu_s` is the GPU time that they cost.
    """

    waits: dict[str, float] = field(default_factory=dict)
    preempted: int = 0
    lost_gpu_s: int = 0


def tiresias(jobs: Sequence[Job], gpus: int, limits: Sequence[int] = LIMITS) -> PeerOutcome:
    """Run discretised 2D-LAS, which does not know durations."""
    return _Simulation(jobs, gpus, tuple(limits)).run()


def srsf(jobs: Sequence[Job], gpus: int) -> PeerOutcome:
    """Run shortest remaining service (GPUs times seconds) first, which knows durations."""
    return _Simulation(jobs, gpus, None).run()


class _Simulation:
    """Rank all jobs at each event and run those that fit, in that order."""

    def __init__(self, jobs: Sequence[Job], gpus: int, limits: tuple[int, ...] | None) -> None:
        self._jobs, self._gpus, self._limits = jobs, gpus, limits
        self._now_s = 0.0
        self._count = 0
        self._states: dict[str, _State] = {}
        self._waiting: list[Rank] = []
        self._running: dict[str, _State] = {}
        self._outcome = PeerOutcome()

    def run(self) -> PeerOutcome:
        following = 0
        while following < len(self._jobs) or self._running:
            self._now_s = min(
                self._jobs[following].submit_s if following < len(self._jobs) else _NEVER_S,
                min((self._changes_s(state) for state in self._running.values()), default=_NEVER_S),
            )
            for state in list(self._running.values()):
                self._advance(state)
            while following < len(self._jobs) and self._jobs[following].submit_s <= self._now_s:
                self._join(_State(self._jobs[following]))
                following += 1
            self._divide()
        return self._outcome

    def _changes_s(self, state: _State) -> float:
        """Return when a running request ends, or has attained the service that moves it to the next queue."""
        left_s = state.job.duration_s - state.done_s
        if self._limits is not None and state.level < len(self._limits):
            left_s = min(left_s, self._limits[state.level] / state.job.gpus - state.done_s)
        return state.since_s + left_s

    def _advance(self, state: _State) -> None:
        if self._changes_s(state) > self._now_s:
            return
        state.done_s += self._now_s - state.since_s
        state.since_s = self._now_s
        if state.done_s >= state.job.duration_s - 1e-6:
            del self._running[state.job.id], self._states[state.job.id]
            self._outcome.waits[state.job.id] = self._now_s - state.job.submit_s - state.job.duration_s
        else:
            state.level += 1
            state.number = self._next()

    def _join(self, state: _State) -> None:
        state.number = self._next()
        state.rank = self._rank(state)
        self._states[state.job.id] = state
        insort(self._waiting, state.rank)

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _rank(self, state: _State) -> Rank:
        """Return the job's rank: in 2D-LAS by queue, running requests first; in SRSF by remaining service."""
        waits = int(state.since_s < 0)
        if self._limits is not None:
            return (state.level, waits, state.number, state.job.id)
        done_s = state.done_s if waits else state.done_s + self._now_s - state.since_s
        return ((state.job.duration_s - done_s) * state.job.gpus, waits, state.number, state.job.id)

    def _divide(self) -> None:
        """Allocate GPUs in order of rank. A request that does not fit is skipped."""
        free = self._gpus
        running = sorted(self._rank(state) for state in self._running.values())
        first = second = 0
        chosen: list[_State] = []
        while free and (first < len(running) or second < len(self._waiting)):
            if second >= len(self._waiting) or (
                first < len(running) and running[first] < self._waiting[second]
            ):
                name = running[first][3]
                first += 1
            else:
                name = self._waiting[second][3]
                second += 1
            state = self._states[name]
            if state.job.gpus <= free:
                free -= state.job.gpus
                chosen.append(state)
        running_ids = {state.job.id for state in chosen}
        for state in [state for state in self._running.values() if state.job.id not in running_ids]:
            state.done_s += self._now_s - state.since_s
            state.since_s = -1.0
            state.number = self._next()
            state.rank = self._rank(state)
            del self._running[state.job.id]
            insort(self._waiting, state.rank)
            self._outcome.preempted += 1
        for state in chosen:
            if state.since_s < 0:
                del self._waiting[bisect_left(self._waiting, state.rank)]
                state.since_s = self._now_s
                self._running[state.job.id] = state
