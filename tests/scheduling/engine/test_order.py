"""The order of the queue: due time, and the effect of a team's share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from portal.quota.limits.types import Cohort, Limit, Team
from portal.scheduling.engine.fair_share_order import FairShareOrder
from portal.scheduling.engine.model import Policy, Running, Snapshot, Workload
from portal.scheduling.engine.scheduler import Scheduler, schedule
from tests.scheduling.engine.worlds import sites
from tests.suite.choice import examples

GPU = "gpu:a"
HOUR, DAY = 3600, 86400
FEW = settings(max_examples=examples(150), deadline=None, derandomize=True)
TEAMS = tuple(Team(name, "c", {GPU: Limit(2)}) for name in "abc")


def ask(
    name: str, team: str = "a", *, made_s: int = 0, lasts_s: int = HOUR, gpus: int = 1, **more
) -> Workload:
    return Workload(name, team, {GPU: gpus}, created_s=made_s, duration_s=lasts_s, **more)


def order(*queued: Workload, running=(), teams=TEAMS, now_s: int = 8 * DAY, **rules) -> list[str]:
    policy = Policy(preemption=False, **rules)
    site = Snapshot(now_s, teams, (Cohort("c"),), tuple(running), queued, capacity={GPU: 6}, policy=policy)
    scheduler = Scheduler(site)
    scheduler.pending.promote(now_s - policy.max_wait_s)
    found = [each.id for each in scheduler.pending.pick(scheduler.usage, set())]
    assert [scheduler.pending.position(name, scheduler.usage) for name in found] == [
        place + 1 for place in range(len(found))
    ]
    return found


def test_shorter_of_two_recent_requests_is_first():
    made_s = 7 * DAY
    assert order(ask("long", made_s=made_s, lasts_s=5 * HOUR), ask("short", made_s=made_s + HOUR)) == [
        "short",
        "long",
    ]


@pytest.mark.parametrize(("later_s", "first"), [(19 * HOUR, "short"), (21 * HOUR, "long")])
def test_shorter_request_overtakes_within_the_duration_difference(later_s, first):
    """Two hours against one: twenty times an hour."""
    made_s = 2 * DAY
    queued = (ask("long", made_s=made_s, lasts_s=2 * HOUR), ask("short", made_s=made_s + later_s))
    assert order(*queued)[0] == first


def test_overdue_request_precedes_shorter_ones():
    old = ask("old", made_s=0, lasts_s=30 * DAY)
    assert order(ask("short", made_s=8 * DAY - 60, lasts_s=60), old)[0] == "old"
    assert order(ask("short", made_s=8 * DAY - 60, lasts_s=60), replace(old, created_s=2 * DAY))[0] == "short"


def test_requests_are_ordered_by_age_if_the_rule_is_off():
    queued = (ask("long", made_s=7 * DAY, lasts_s=5 * HOUR), ask("short", made_s=7 * DAY + 1))
    assert order(*queued, due_after=0) == ["long", "short"]


def test_borrowing_team_is_later_among_equal_requests():
    running = [Running(ask(f"r{number}", "b"), 0) for number in range(3)]
    assert order(ask("x", "b", made_s=7 * DAY), ask("y", "c", made_s=7 * DAY), running=running) == ["y", "x"]


def test_borrowed_share_delays_by_days():
    """b borrows one of six, half of its third: a delay of half of `share_delay_s`."""
    running = [Running(ask(f"r{number}", "b"), 0) for number in range(3)]
    older = ask("x", "b", made_s=2 * DAY)
    half_s = Policy().share_delay_s // 2
    assert order(older, ask("y", "c", made_s=2 * DAY + half_s - 60), running=running) == ["y", "x"]
    assert order(older, ask("y", "c", made_s=2 * DAY + half_s + 60), running=running) == ["x", "y"]


def test_order_does_not_depend_on_the_scale_of_weights():
    running = [Running(ask(f"r{number}", "b"), 0) for number in range(3)]
    queued = [ask("x", "b", made_s=2 * DAY)]
    queued += [ask(f"y{hours}", "c", made_s=2 * DAY + hours * HOUR) for hours in (6, 24, 48, 96)]
    heavy = tuple(replace(team, weight_milli=50_000) for team in TEAMS)
    assert order(*queued, running=running) == order(*queued, running=running, teams=heavy)
    # A team contributing more has a larger fair share and is earlier.
    favoured = tuple(replace(team, weight_milli=9000 if team.name == "b" else 1000) for team in TEAMS)
    assert order(*queued, running=running).index("x") > order(*queued, running=running, teams=favoured).index(
        "x"
    )


def test_borrowing_team_with_zero_weight_is_last():
    teams = (*TEAMS[:2], replace(TEAMS[2], weight_milli=0))
    running = [Running(ask(f"r{number}", "c"), 0) for number in range(3)]
    queued = (ask("x", "c", made_s=2 * DAY), ask("y", "a", made_s=8 * DAY - 1, lasts_s=DAY))
    assert order(*queued, running=running, teams=teams) == ["y", "x"]


def test_small_request_precedes_a_large_one_but_not_a_reserved_start():
    """The large one got its reserved start when it was alone; a short one may only fit beside it."""
    running = (Running(ask("r", "a", gpus=4, lasts_s=10 * HOUR), 0),)
    large = ask("large", "b", gpus=4, lasts_s=HOUR, backfill_seq=1)
    queued = (large, ask("short", "b", made_s=60, lasts_s=HOUR), ask("long", "b", made_s=60, lasts_s=DAY))
    site = Snapshot(
        60, TEAMS, (Cohort("c"),), running, queued, capacity={GPU: 5}, policy=Policy(preemption=False)
    )
    assert schedule(site).starts == ("short",)


@FEW
@given(sites(reservations=True, queued=12))
def test_the_plan_begins_with_the_order_of_the_queue(snapshot):
    """Both use the same order, also with nested cohorts."""
    scheduler = Scheduler(snapshot)
    scheduler.apply(scheduler.cycle(scheduler.now_s), scheduler.now_s)
    expected = [each.id for each in scheduler.pending.pick(scheduler.usage, set())]
    places = scheduler.pending.positions(scheduler.usage)
    assert sorted(places, key=places.__getitem__) == expected
    planned = FairShareOrder(scheduler, frozenset())
    picked = []
    while (workload := planned.pick()) is not None:
        picked.append(workload.id)
    assert picked == expected
