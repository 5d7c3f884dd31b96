"""Random small sites for property tests, and a clock that runs them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from portal.quota.limits.types import Cohort, Limit, Team
from portal.scheduling.engine.model import Policy, Reservation, Snapshot, Workload
from portal.scheduling.engine.scheduler import Scheduler

RESOURCES = ("gpu:a", "cpu_milli")
NAMES = ("t0", "t1", "t2")
optional = st.none() | st.integers(0, 6)


@st.composite
def sites(draw, *, preemption=None, reservations=False, queued=8, weights=(1000, 2000, 500), turns=True):
    nested = draw(st.booleans())
    cohorts = (
        Cohort("all"),
        Cohort("sub", "all" if nested else "", weight_milli=draw(st.sampled_from(weights))),
    )
    teams = tuple(
        Team(
            name,
            draw(st.sampled_from(["all", "sub", ""])),
            {
                resource: Limit(draw(st.integers(0, 6)), draw(optional), draw(optional))
                for resource in RESOURCES
                if draw(st.booleans())
            },
            weight_milli=draw(st.sampled_from(weights)),
            user_caps={"gpu:a": draw(st.integers(1, 5))} if draw(st.booleans()) else {},
            member_shares=turns and draw(st.booleans()),
            member_avg={"ann": draw(st.integers(0, 3))},
        )
        for name in NAMES
    )
    workloads = tuple(
        Workload(
            f"w{number}",
            draw(st.sampled_from(NAMES)),
            {resource: draw(st.integers(0, 4)) for resource in RESOURCES},
            user=draw(st.sampled_from(["ann", "bob"])),
            priority=draw(st.integers(0, 2)),
            created_s=number,
            duration_s=draw(st.integers(1, 30)),
            preemptible=draw(st.booleans()),
        )
        for number in range(draw(st.integers(1, queued)))
    )
    booked = ()
    if reservations and draw(st.booleans()):
        start = draw(st.integers(0, 40))
        booked = (
            Reservation(
                "b", draw(st.sampled_from(NAMES)), {"gpu:a": draw(st.integers(1, 6))}, start, start + 20
            ),
        )
    capacity = {resource: draw(st.integers(2, 10)) for resource in RESOURCES}
    limits = {"gpu:a": draw(st.integers(2, 10))} if draw(st.booleans()) else {}
    on = draw(st.booleans()) if preemption is None else preemption
    policy = Policy(preemption=on, min_run_s=draw(st.sampled_from([0, 5])), grace_s=1, max_wait_s=200)
    return Snapshot(20, teams, cohorts, (), workloads, booked, capacity, limits, policy)


def settle(scheduler: Scheduler, now_s: int) -> list[str]:
    """Run cycles at one moment, with victims ended and requeued at once, until nothing changes."""
    log = []
    for _ in range(200):
        cycle = scheduler.cycle(now_s)
        scheduler.apply(cycle, now_s)
        for victim in cycle.victims:
            finished = scheduler.finish(victim.workload)
            scheduler.submit(replace(finished.workload, nominated=False))
        log.extend(f"-{victim.workload}" for victim in cycle.victims)
        log.extend(f"+{name}" for name in cycle.starts)
        assert scheduler.usage.violation() == ""
        if not cycle.starts and not cycle.victims:
            return log
    raise AssertionError(f"never settles: {log[-20:]}")
