"""Replay a trace once through the portal's queue (`site`). Checks reserved starts at every event."""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from bench.scheduling.site import QueueSite
from bench.scheduling.trace import Job
from portal.quota.limits.types import Cohort, Limit, Team
from portal.scheduling.engine.model import BackfillReservation, Cycle, Policy
from portal.scheduling.engine.scheduler import Scheduler
from portal.scheduling.share_averages import borrowed_average
from portal.scheduling.verdicts import Verdict

GPU = "gpu"
MILLI_PER_GPU = 1000
"""Amounts are in milli-GPU, as in the portal: whole GPUs are too coarse for the decayed use of an hour."""
HISTORY = 50
USAGE_EVERY_S = 3600
PREVIEW_EVERY = 500
"""Interval of previewed arrivals: each of these must get its previewed result."""


@dataclass(slots=True)
class Outcome:
    """Result of a replay. Waits are in seconds by job, from submission to the last start."""

    waits: dict[str, int] = field(default_factory=dict)
    busy_gpu_s: int = 0
    events: int = 0
    violations: list[str] = field(default_factory=list)
    reservations_checked: int = 0
    reservations_delayed: list[str] = field(default_factory=list)
    late_starts: list[str] = field(default_factory=list)
    backfilled: int = 0
    preempted: int = 0
    max_preempted: int = 0
    lost_gpu_s: int = 0
    eta_errors: list[tuple[int, int]] = field(default_factory=list)
    etas_unknown: int = 0
    previews: int = 0
    naive_errors: list[int] = field(default_factory=list)
    cycle_s: list[float] = field(default_factory=list)


def quotas(jobs: Sequence[Job], gpus: int) -> tuple[Team, ...]:
    """Return teams in one cohort. Quotas divide all GPUs in proportion to the use of each group."""
    demand: dict[str, int] = {}
    for job in jobs:
        demand[job.team] = demand.get(job.team, 0) + job.gpus * job.duration_s
    total = sum(demand.values())
    nominal = {team: amount * gpus // total for team, amount in demand.items()}
    spare = gpus - sum(nominal.values())
    for team in sorted(demand, key=lambda name: (-(demand[name] * gpus % total), name))[:spare]:
        nominal[team] += 1
    return tuple(
        # The weight is the team's quota, at least one GPU: with 0 a team would borrow at infinite cost.
        Team(
            team,
            "site",
            {GPU: Limit(nominal[team] * MILLI_PER_GPU)},
            weight_milli=1000 * max(1, nominal[team]),
        )
        for team in sorted(demand)
    )


def history_estimates() -> tuple[Callable[[Job], int], Callable[[Job], None]]:
    """Return an estimator: the median duration of the group's last finished jobs of that size."""
    past: dict[tuple[str, int], tuple[deque[int], list[int]]] = {}

    def expect(job: Job) -> int:
        seen = past.get((job.team, job.gpus))
        return max(60, seen[1][len(seen[1]) // 2]) if seen else 3600

    def learn(job: Job) -> None:
        order, ranked = past.setdefault((job.team, job.gpus), (deque(), []))
        order.append(job.duration_s)
        insort(ranked, job.duration_s)
        if len(order) > HISTORY:
            del ranked[bisect_left(ranked, order.popleft())]

    return expect, learn


def replay(
    jobs: Sequence[Job],
    gpus: int,
    policy: Policy,
    *,
    teams: Sequence[Team] = (),
    known_durations: bool = True,
    eta_every: int = 0,
    preview_every: int = PREVIEW_EVERY,
) -> Outcome:
    """Run the trace. Without `teams` there is one queue without shares, as in plain FIFO or EASY.

    With `known_durations`, the expected duration of every job is its real one (a wall-time limit that it uses
    up); otherwise it is estimated from history. Every `eta_every`-th job that has to wait gets a forecast at
    submission. A preempted job starts again from its beginning. Raises `AssertionError` if a job does not get
    its previewed result.
    """
    shared = tuple(teams) or (Team("all"),)
    cohorts = (Cohort("site"),) if teams else ()
    first_s = jobs[0].submit_s
    site = QueueSite(gpus, shared, cohorts, policy, first_s)
    scheduler = site.scheduler
    expect, learn = (_duration, _nothing) if known_durations else history_estimates()
    # Jobs submitted in the same second are ordered by id.
    by_id = {str(UUID(int=place)): job for place, job in enumerate(jobs)}
    ids = iter(by_id)
    outcome = Outcome()
    ends: list[tuple[int, str]] = []
    ends_of: dict[str, int] = {}
    began: dict[str, int] = {}
    etas: dict[str, int] = {}
    naive: dict[str, int] = {}
    last_waits: dict[str, deque[int]] = {}
    reserved: tuple[str, int] | None = None
    next_job = waited = 0
    usage_s = first_s
    last_submit_s = jobs[-1].submit_s

    while next_job < len(jobs) or ends:
        now_s = min(
            jobs[next_job].submit_s if next_job < len(jobs) else 1 << 62, ends[0][0] if ends else 1 << 62
        )
        site.at(now_s)
        while ends and ends[0][0] <= now_s:
            _, name = ends.pop(0)
            job = by_id[name]
            outcome.busy_gpu_s += job.gpus * max(0, min(now_s, last_submit_s) - began[name])
            del ends_of[name]
            preempted = now_s < began[name] + job.duration_s
            if not preempted:
                learn(job)
            else:
                # It is queued again from its beginning.
                outcome.lost_gpu_s += job.gpus * (now_s - began[name])
                times = scheduler.running[name].workload.preempted + 1
                outcome.max_preempted = max(outcome.max_preempted, times)
            site.finish(name, preempted=preempted)
        if teams and now_s - usage_s >= USAGE_EVERY_S:
            _age_usage(scheduler, now_s - usage_s)
            usage_s = now_s
        arrived: list[str] = []
        verdict: Verdict | None = None
        while next_job < len(jobs) and jobs[next_job].submit_s <= now_s:
            job, name = jobs[next_job], next(ids)
            next_job += 1
            start_request = site.build_request(job.team if teams else "all", job.gpus, expect(job))
            # Later arrivals of the same second are decided on together: only the last is as previewed.
            last = next_job == len(jobs) or jobs[next_job].submit_s > now_s
            asked = last and next_job % preview_every <= len(arrived)
            verdict = site.preview(start_request) if asked else None
            site.submit(name, start_request, job.submit_s)
            arrived.append(name)
        began_at = time.perf_counter()
        cycle = site.decide()
        outcome.cycle_s.append(time.perf_counter() - began_at)
        outcome.events += 1
        if verdict is not None:
            _require_kept(verdict, cycle, arrived[-1])
            outcome.previews += 1
        for name in arrived:
            if eta_every and name not in cycle.starts:
                waited += 1
                if waited % eta_every == 0:
                    eta = site.eta(name)
                    if eta is None:
                        outcome.etas_unknown += 1
                    else:
                        etas[name] = eta
                        # Naive estimate: the usual wait of the team's last jobs.
                        past = sorted(last_waits.get(by_id[name].team, ()))
                        naive[name] = now_s + (past[len(past) // 2] if past else 0)
        usual = len(cycle.starts) - len(cycle.backfilled)
        started_head = reserved is not None and reserved[0] in cycle.starts
        if reserved is not None and known_durations:
            if started_head and now_s > reserved[1]:
                outcome.late_starts.append(f"{reserved[0]} at {now_s}, reserved {reserved[1]}")
            head = _first(cycle)
            # Only requests before the head in the order, or a preemption, may delay it.
            if head and head.workload == reserved[0] and not usual and not cycle.victims:
                outcome.reservations_checked += 1
                if head.start_s > reserved[1]:
                    outcome.reservations_delayed.append(f"{head.workload}: {reserved[1]} → {head.start_s}")
        head = _first(cycle)
        if head is not None and cycle.backfilled and known_durations:
            # Compute the same reservation again after the back-fill: its start must not be later.
            repeated = _first(site.decide_again())
            outcome.reservations_checked += 1
            if repeated is None or repeated.workload != head.workload:
                if not cycle.victims:
                    outcome.reservations_delayed.append(f"{head.workload}: no longer the head")
            elif repeated.start_s > head.start_s:
                outcome.reservations_delayed.append(f"{head.workload}: by back-fill at {now_s}")
        reserved = (head.workload, head.start_s) if head is not None else None
        outcome.backfilled += len(cycle.backfilled)
        for name in cycle.starts:
            job = by_id[name]
            began[name] = now_s
            outcome.waits[job.id] = now_s - job.submit_s
            last_waits.setdefault(job.team, deque(maxlen=HISTORY)).append(now_s - job.submit_s)
            ends_of[name] = now_s + job.duration_s
            insort(ends, (ends_of[name], name))
            if name in etas:
                outcome.eta_errors.append((etas.pop(name) - now_s, now_s - job.submit_s))
                outcome.naive_errors.append(abs(naive.pop(name) - now_s))
        for victim in cycle.victims:
            outcome.preempted += 1
            old = ends_of[victim.workload]
            del ends[bisect_left(ends, (old, victim.workload))]
            ends_of[victim.workload] = min(old, now_s + policy.grace_s)
            insort(ends, (ends_of[victim.workload], victim.workload))
        wrong = scheduler.usage.violation()
        if wrong:
            outcome.violations.append(f"at {now_s}: {wrong}")
    return outcome


def _require_kept(verdict: Verdict, cycle: Cycle, name: str) -> None:
    assert verdict.starts_now == (name in cycle.starts), "a preview is what a creation gets"
    victims = tuple(victim.workload for victim in cycle.victims if victim.beneficiary == name)
    assert verdict.makes_room == victims, "a preview is what a creation gets"


def _age_usage(scheduler: Scheduler, elapsed_s: int) -> None:
    for name, team in scheduler.usage.teams.items():
        node = scheduler.usage.tree.teams[name]
        scheduler.set_average(name, borrowed_average(node, team.borrowed_avg, elapsed_s))


def _first(cycle: Cycle) -> BackfillReservation | None:
    return cycle.backfill_reservations[0] if cycle.backfill_reservations else None


def _duration(job: Job) -> int:
    return job.duration_s


def _nothing(_: Job) -> None:
    return None
