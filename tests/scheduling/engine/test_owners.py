"""Owners within their quota, and queue heads of their teams that would borrow."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from portal.quota.limits.types import Cohort, Limit, Team
from portal.scheduling.engine.model import FOREVER_S, Cycle, Policy, Running, Snapshot, Workload
from portal.scheduling.engine.scheduler import Scheduler, schedule
from portal.scheduling.engine.usage import within_nominal
from tests.scheduling.engine.worlds import sites
from tests.suite.choice import examples

GPU, HOUR, DAY = "gpu:h100", 3600, 86400
TEAMS = tuple(Team(name, "all", {GPU: Limit(nominal)}) for name, nominal in (("a", 1), ("b", 1), ("c", 0)))


def ask(name: str, gpus: int, created_s: int, hours: int = 1, **more) -> Workload:
    """A request of the team named by its first letter."""
    return Workload(name, name[0], {GPU: gpus}, created_s=created_s, duration_s=hours * HOUR, **more)


def site(*queued: Workload, running: tuple[Running, ...] = (), teams=TEAMS, now_s: int = 100) -> Snapshot:
    return Snapshot(now_s, teams, (Cohort("all"),), running, queued)


LENT = (Running(ask("c-runs", 1, 0, hours=22), 100),)


def heads(cycle: Cycle) -> dict[str, int]:
    return {head.workload: head.start_s for head in cycle.backfill_reservations}


def test_owner_overtakes_a_borrowing_head():
    """One of two is free. b wants both, one above its quota; a wants its own for longer."""
    cycle = schedule(site(ask("b", 2, 1), ask("a", 1, 2, hours=30), running=LENT))
    assert cycle.starts == ("a",)
    assert cycle.backfilled == frozenset()
    assert heads(cycle) == {"b": 100 + 30 * HOUR}


def test_borrower_does_not_overtake_a_borrowing_head():
    cycle = schedule(site(ask("b", 2, 1), ask("c", 1, 2, hours=30), running=LENT))
    assert cycle.starts == ()
    assert heads(cycle) == {"b": 100 + 22 * HOUR}


def test_requests_of_one_team_do_not_overtake_its_head():
    cycle = schedule(site(ask("b1", 2, 1), ask("b2", 1, 2, hours=30), running=LENT))
    assert cycle.starts == ()
    assert heads(cycle) == {"b1": 100 + 22 * HOUR}


def test_blocked_head_of_a_team_does_not_hide_its_owner_request_behind_another_team():
    """b1 waits for more than is free soon; the reserved start of c does not block b2 within b's quota."""
    teams = (*TEAMS, Team("d", "all", {"cpu_milli": Limit(1)}))
    running = (*LENT, Running(replace(ask("d-runs", 0, 0, hours=9), amounts={"cpu_milli": 1}), 100))
    b1 = replace(ask("b1", 1, 2), amounts={GPU: 1, "cpu_milli": 1})
    cycle = schedule(site(ask("c", 2, 1), b1, ask("b2", 1, 3, hours=2), running=running, teams=teams))
    assert cycle.starts == ("b2",)
    cycle = schedule(site(ask("c", 2, 1), b1, ask("b2", 1, 3, hours=30), running=running, teams=teams))
    # It would delay b1, which precedes it in its own team.
    assert cycle.starts == ()


def test_no_request_overtakes_an_overdue_one():
    cycle = schedule(site(ask("b", 2, 1), ask("a", 1, 2, hours=30), running=LENT, now_s=8 * DAY))
    assert (cycle.starts, list(heads(cycle))) == ((), ["b"])


def test_owners_overtake_even_without_backfill():
    snapshot = site(ask("b", 2, 1), ask("a", 1, 2, hours=30), ask("c", 1, 3), running=LENT)
    assert schedule(replace(snapshot, policy=Policy(backfill=False))).starts == ("a",)


@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(sites(preemption=False))
def test_owner_never_waits_for_free_nominal_quota(snapshot):
    """Except behind older or more urgent requests of its own team."""
    scheduler = Scheduler(snapshot)
    now_s = snapshot.now_s
    for _ in range(30):
        cycle = scheduler.cycle(now_s)
        scheduler.apply(cycle, now_s)
        waiting = {scheduler.pending.items[head].team for head in heads(cycle)}
        for workload in scheduler.pending.items.values():
            band = scheduler.pending.key_of(workload)[0]
            overdue = any(
                scheduler.pending.key_of(scheduler.pending.items[head])[0] < band for head in heads(cycle)
            )
            if overdue or workload.team in waiting or not within_nominal(scheduler.usage, workload):
                continue
            owners = [
                head
                for head in heads(cycle)
                if within_nominal(scheduler.usage, scheduler.pending.items[head])
            ]
            assert owners or scheduler.usage.shortfall(workload, now_s) is not None
        now_s = scheduler.next_end()
        if now_s >= FOREVER_S:
            break
        for name in scheduler.ended_by(now_s):
            scheduler.finish(name)
