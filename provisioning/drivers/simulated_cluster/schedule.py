"""The queue of a simulated cluster: strictly first come, first served, first fit by node, no back-fill.

All functions are pure. A `Cluster` is a checkpoint: its jobs that wait or run, and ended workspaces until
their deletion. Jobs of others are dropped at their end, so no history grows. `advance` replays only what
happened after the checkpoint. After more than `MAX_ARRIVALS` arrivals of others without any call, it leaves
out the earlier ones.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from heapq import heappop, heappush
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import replace

from provisioning.drivers.simulated_cluster.resources import FreeResources, Placed
from provisioning.drivers.simulated_cluster.script import Hardware, Others

MAX_ARRIVALS = 2000
MAX_WAITING_OTHERS = 200
"""No more jobs of others arrive while so many wait."""


class Event(StrEnum):
    """An event in the life of a job."""

    QUEUED = "queued"
    BEGAN = "began"
    READY = "ready"
    REQUEUED = "requeued"
    APP_EXITED = "app_exited"
    START_TIMEOUT = "start_timeout"
    TIME_LIMIT = "time_limit"
    STOPPED = "stopped"


class Job(Struct, frozen=True, omit_defaults=True):
    """A job of the cluster, without `name` one of others. Resources are per node.

    `number` is its order in the queue; a job queued again gets a new one. `limit_s`, `ready_after_s`,
    `fails_after_s` and `requeue_after_s` count from its last start; None means never. `placed` are indexes
    of nodes, each with indexes of GPUs. `stop_at` is when its end on request is due.
    """

    number: int
    name: str = ""
    nodes: int = 1
    gpus: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0
    disk_mib: int = 0
    limit_s: float | None = None
    ready_after_s: float | None = None
    fails_after_s: float | None = None
    failure: Event = Event.APP_EXITED
    requeue_after_s: float | None = None
    began_at: float | None = None
    placed: Placed = ()
    ready: bool = False
    stop_at: float | None = None
    ended_at: float | None = None
    history: tuple[tuple[float, Event], ...] = ()

    @property
    def waits(self) -> bool:
        return self.began_at is None and self.ended_at is None

    @property
    def runs(self) -> bool:
        return self.began_at is not None and self.ended_at is None

    @property
    def ends_at(self) -> float | None:
        """When its time limit ends it; None without one, or while it waits."""
        return None if self.began_at is None or self.limit_s is None else self.began_at + self.limit_s


class Cluster(Struct, frozen=True):
    """Jobs of a cluster after all events until `at`."""

    at: float
    next_number: int = 0
    jobs: tuple[Job, ...] = ()


def first_used(epoch: float, hardware: Hardware, others: Others) -> Cluster:
    """Return a cluster with the first jobs of others."""
    first = others.first if others.gpus else 0
    jobs = tuple(_job_of_others(number, others) for number in range(first))
    return advance(Cluster(epoch, first, jobs), hardware, others, epoch=epoch, until=epoch)


def submit(cluster: Cluster, job: Job, at: float) -> Cluster:
    """Return the cluster with `job` at the end of its queue, in place of an ended one of the same name."""
    job = replace(job, number=cluster.next_number, history=((at, Event.QUEUED),))
    others = tuple(other for other in cluster.jobs if other.name != job.name)
    return Cluster(at, cluster.next_number + 1, (*others, job))


def stop(job: Job, at: float, delay_s: float) -> Job:
    """Return `job` with its end requested. A waiting one ends at once, an ending one no later than before."""
    if job.waits:
        return replace(job, stop_at=at, ended_at=at, history=(*job.history, (at, Event.STOPPED)))
    if job.ended_at is not None:
        return job if job.stop_at is not None else replace(job, stop_at=at)
    due = at + delay_s
    return replace(job, stop_at=due if job.stop_at is None else min(job.stop_at, due))


def advance(cluster: Cluster, hardware: Hardware, others: Others, *, epoch: float, until: float) -> Cluster:
    """Return the cluster at `until`. Jobs of others arrive from `epoch` on."""
    replay = _Replay(cluster, hardware, _next_event)
    arrivals = others.every_s if others.gpus else 0

    def arrival_after(at: float) -> float:
        # The tolerance absorbs rounding: intervals are at least 1 s long.
        passed = math.floor((at - epoch) / arrivals + 1e-6) if arrivals else 0
        return epoch + (passed + 1) * arrivals if arrivals else math.inf

    arrival = arrival_after(max(cluster.at, until - MAX_ARRIVALS * arrivals))
    while True:
        at = min(arrival, replay.next_at())
        if at <= until:
            replay.apply_events(at)
            if arrival <= at:
                if replay.waiting_others() < MAX_WAITING_OTHERS:
                    replay.add(_job_of_others(replay.next_number, others))
                arrival = arrival_after(arrival)
            replay.start_waiting(at)
        elif not replay.start_waiting(until):
            return replay.cluster()


def forecast(cluster: Cluster, hardware: Hardware) -> dict[str, tuple[int, float | None]]:
    """Return position and expected start of waiting workspaces, by name.

    Uses time limits and requested ends only: nothing else is known before it happens. Later arrivals do not
    matter, since nothing overtakes.
    """
    waiting = sorted((job for job in cluster.jobs if job.waits), key=lambda job: job.number)
    replay = _Replay(cluster, hardware, _known_end)
    while replay.waiting and replay.next_at() < math.inf:
        at = replay.next_at()
        replay.apply_events(at)
        replay.start_waiting(at)
    return {
        job.name: (position, replay.starts.get(job.number))
        for position, job in enumerate(waiting, 1)
        if job.name
    }


def _job_of_others(number: int, others: Others) -> Job:
    return Job(number, gpus=others.gpus, limit_s=others.for_s or None)


def _next_event(job: Job) -> tuple[float, Event] | None:
    """Return the next event of a running job. Of simultaneous ones, ends are first."""
    began_at = job.began_at or 0.0
    due = [] if job.stop_at is None else [(job.stop_at, Event.STOPPED)]
    for after_s, event in (
        (job.fails_after_s, job.failure),
        (job.limit_s, Event.TIME_LIMIT),
        (job.requeue_after_s if job.stop_at is None else None, Event.REQUEUED),
        (None if job.ready else job.ready_after_s, Event.READY),
    ):
        if after_s is not None:
            due.append((began_at + after_s, event))
    return min(due, key=itemgetter(0), default=None)


def _known_end(job: Job) -> tuple[float, Event] | None:
    ends = [at for at in (job.stop_at, job.ends_at) if at is not None]
    return (min(ends), Event.STOPPED) if ends else None


class _Replay:
    """Applies events to a cluster. `next_event` returns the next event of a running job."""

    def __init__(
        self, cluster: Cluster, hardware: Hardware, next_event: Callable[[Job], tuple[float, Event] | None]
    ) -> None:
        self._before = cluster
        self._next_event = next_event
        self._at = cluster.at
        self._changed = False
        self.next_number = cluster.next_number
        self.jobs = {job.number: job for job in cluster.jobs}
        self.waiting = deque(sorted(number for number, job in self.jobs.items() if job.waits))
        self.starts: dict[int, float] = {}
        self._free = FreeResources(hardware)
        self._events: list[tuple[float, int, Event]] = []
        for job in cluster.jobs:
            if job.runs:
                self._take(job)

    def cluster(self) -> Cluster:
        """Return the cluster after the events so far; the same object if there were none."""
        if not self._changed:
            return self._before
        return Cluster(self._at, self.next_number, tuple(self.jobs.values()))

    def next_at(self) -> float:
        return self._events[0][0] if self._events else math.inf

    def waiting_others(self) -> int:
        return sum(not self.jobs[number].name for number in self.waiting)

    def add(self, job: Job) -> None:
        """Add `job`, numbered `next_number`, at the end of the queue."""
        self.next_number += 1
        self.jobs[job.number] = job
        self.waiting.append(job.number)

    def apply_events(self, at: float) -> None:
        """Apply the events that are due at `at`."""
        self._at, self._changed = at, True
        while self.next_at() <= at:
            _, number, event = heappop(self._events)
            job = self.jobs[number]
            job = replace(job, history=(*job.history, (at, event)))
            if event is Event.READY:
                self.jobs[number] = replace(job, ready=True)
                self._schedule(self.jobs[number])
                continue
            self._free.change(job, 1)
            if event is Event.REQUEUED:
                del self.jobs[number]
                queued = {"number": self.next_number, "requeue_after_s": None, "began_at": None}
                self.add(replace(job, **queued, placed=(), ready=False))
            elif job.name:
                self.jobs[number] = replace(job, ended_at=at)
            else:
                del self.jobs[number]

    def start_waiting(self, at: float) -> bool:
        """Start jobs in the order of the queue until one does not fit. Return whether any started."""
        started = False
        while self.waiting:
            job = self.jobs[self.waiting[0]]
            placed = self._free.place_for(job)
            if placed is None:
                break
            self.waiting.popleft()
            job = replace(job, began_at=at, placed=placed, history=(*job.history, (at, Event.BEGAN)))
            self.jobs[job.number] = job
            self.starts[job.number] = at
            self._take(job)
            self._at, self._changed, started = at, True, True
        return started

    def _take(self, job: Job) -> None:
        self._free.change(job, -1)
        self._schedule(job)

    def _schedule(self, job: Job) -> None:
        event = self._next_event(job)
        if event is not None:
            heappush(self._events, (event[0], job.number, event[1]))
