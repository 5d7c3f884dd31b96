"""Invariants of a site running for weeks, with and without nodes: no repeated preemption."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from portal.quota.limits.types import Cohort, Limit, Team
from portal.scheduling.engine.model import Outcome, Policy, PreemptionCode, Running, Snapshot, Workload
from portal.scheduling.engine.preemption import protected_s
from portal.scheduling.engine.scheduler import Scheduler, schedule
from portal.scheduling.engine.verdicts import decide, verdict
from tests.scheduling.engine.nodes import GPU, Diary, NodePlacer, live
from tests.suite.choice import examples

HOUR, DAY = 3600, 86400
TEAMS = tuple(
    Team(name, "c", {GPU: Limit(nominal)}) for name, nominal in (("a", 4000), ("b", 4000), ("c", 0))
)
# Shrinking two weeks takes long, so a failing example is shown unchanged.
FEW = settings(
    max_examples=examples(25), deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate]
)
MOST = 5
"""Four times as long after each preemption: five are enough to outlast the longest run here."""


def site(*, policy: Policy | None = None, **more) -> Snapshot:
    return Snapshot(0, TEAMS, (Cohort("c"),), capacity={GPU: 8000}, policy=policy or Policy(), **more)


def ask(name: str, team: str, gpus: int, created_s: int = 0, **more) -> Workload:
    return Workload(name, team, {GPU: gpus * 1000}, created_s=created_s, **more)


@st.composite
def arrivals(draw, most=60):
    """Two weeks of requests that exceed the capacity."""
    return [
        ask(
            f"w{number}",
            draw(st.sampled_from("abc")),
            draw(st.sampled_from([1, 1, 2, 4])),
            draw(st.integers(0, 14 * DAY)),
            duration_s=draw(st.sampled_from([600, HOUR, 5 * HOUR, DAY, 3 * DAY])),
            priority=draw(st.sampled_from([0, 0, 0, 1])),
            loses_work=draw(st.booleans()),
        )
        for number in range(draw(st.integers(most // 2, most)))
    ]


def check(diary: Diary, workloads: list[Workload]) -> None:
    assert diary.ended == {each.id for each in workloads}
    assert max(diary.preempted.values(), default=0) <= MOST
    # Owners may reclaim from each other over time; borrowers never alternate.
    turns = {(taker, victim) for taker, victim, reason in diary.taken if reason is PreemptionCode.FAIR_SHARE}
    assert not any((victim, taker) in turns for taker, victim in turns)


@FEW
@given(arrivals())
def test_preemptions_per_workload_are_bounded_and_all_finish(workloads):
    check(live(Scheduler(site()), workloads), workloads)


@settings(FEW, max_examples=examples(12))
@given(arrivals(most=40))
def test_preemptions_are_bounded_and_nominations_kept_on_real_nodes(workloads):
    diary = live(Scheduler(site(), NodePlacer(4, 4)), workloads)
    check(diary, workloads)
    # Every beneficiary has started, so no preemption was in vain.
    assert diary.lapsed == []


def test_borrowers_do_not_preempt_each_other_repeatedly():
    """Both want all of it for days; a victim does not preempt its preemptor."""
    teams = (Team("own", "c", {GPU: Limit(8000)}), Team("x", "c"), Team("y", "c"))
    policy = Policy(min_run_s=0, patience_s=0, grace_s=1)
    scheduler = Scheduler(Snapshot(0, teams, (Cohort("c"),), capacity={GPU: 8000}, policy=policy))
    workloads = [ask(f"{team}{at}", team, 2, at, duration_s=2 * DAY) for team in "xy" for at in range(8)]
    diary = live(scheduler, workloads)
    assert len(diary.taken) <= 2
    check(diary, workloads)


def test_owner_reclaims_quota_after_the_minimum_run_time():
    running = tuple(Running(ask(f"v{at}", "c", 2, duration_s=9 * DAY), 0) for at in range(4))
    for now_s, victims in ((899, 0), (900, 2)):
        snapshot = Snapshot(
            now_s, TEAMS, (Cohort("c"),), running, (ask("mine", "a", 4),), capacity={GPU: 8000}
        )
        cycle = schedule(snapshot)
        assert [each.reason for each in cycle.victims] == [PreemptionCode.RECLAIM] * victims


def test_protection_grows_with_each_preemption():
    policy = Policy()
    times = [protected_s(ask("w", "a", 1, preempted=number), policy) for number in range(4)]
    assert times == [900, 3600, 4 * 3600, 16 * 3600]
    again = Running(ask("v", "c", 8, duration_s=9 * DAY, preempted=2), 0)
    snapshot = Snapshot(
        3 * HOUR, TEAMS, (Cohort("c"),), (again,), (ask("mine", "a", 4),), capacity={GPU: 8000}
    )
    assert schedule(snapshot).victims == ()


def test_no_preemption_when_capacity_is_freed_soon():
    soon = Running(ask("ends", "c", 4, duration_s=2 * HOUR), -2 * HOUR + 600)
    late = Running(ask("stays", "c", 4, duration_s=DAY), -HOUR)
    snapshot = site(running=(soon, late), queued=(ask("mine", "a", 4, -10),))
    assert schedule(snapshot).victims == ()
    # Overdue work is not waited for.
    overdue = Running(ask("ends", "c", 4, duration_s=HOUR), -2 * HOUR)
    assert len(schedule(site(running=(overdue, late), queued=snapshot.queued)).victims) == 1


@pytest.mark.parametrize(("loses_work", "asked"), [(True, 0), (False, 1)])
def test_lost_work_is_weighed_against_the_waiting_time(loses_work, asked):
    batch = Running(ask("batch", "c", 8, duration_s=10 * HOUR, loses_work=loses_work), -8 * HOUR)
    assert len(schedule(site(running=(batch,), queued=(ask("mine", "a", 4),))).victims) == asked


@pytest.mark.parametrize(
    ("others", "waited_h", "loses_work", "asked"),
    [(0, 0, True, 1), (1, 1, True, 0), (1, 2, True, 1), (20, 48, True, 0), (20, 0, False, 1)],
)
def test_lost_work_is_weighed_against_the_wait_of_all_requests(others, waited_h, loses_work, asked):
    """Half of the site would lose two hours; one more waiting request adds an hour, and growing."""
    running = tuple(
        Running(ask(f"batch{at}", "c", 4, duration_s=9 * DAY, loses_work=loses_work), -2 * HOUR)
        for at in range(2)
    )
    queued = [ask("mine", "a", 4, 0, duration_s=HOUR)]
    queued += [ask(f"other{at}", "c", 4, 0, duration_s=DAY) for at in range(others)]
    snapshot = replace(site(running=running, queued=tuple(queued)), now_s=waited_h * HOUR)
    assert [each.beneficiary for each in schedule(snapshot).victims] == ["mine"] * asked


@pytest.mark.parametrize(("loses_work", "ran_h", "asked"), [(True, 3, 0), (True, 9, 1), (False, 3, 1)])
def test_overdue_workload_is_expected_to_end_any_moment(loses_work, ran_h, asked):
    """Expected to run on as long as it has run: no work is lost for a shorter wait."""
    stays = Running(ask("stays", "c", 4, duration_s=DAY, loses_work=loses_work), -5 * HOUR)
    late = Running(ask("late", "c", 4, duration_s=HOUR, loses_work=loses_work), -ran_h * HOUR)
    snapshot = site(running=(stays, late), queued=(ask("mine", "a", 4),))
    assert [each.workload for each in schedule(snapshot).victims] == (["stays"] if ran_h > 5 else ["late"])[
        :asked
    ]


@pytest.mark.parametrize(
    ("wants_h", "waited_h", "loses_work", "asked"),
    [(8, 0, True, 1), (12, 0, True, 1), (72, 0, True, 0), (72, 7 * 24, True, 1), (72, 0, False, 1)],
)
def test_accepted_lost_work_of_a_borrower_grows_with_its_share(wants_h, waited_h, loses_work, asked):
    """Two hours would be lost, ten remain. The share puts it nine days behind: eleven hours of run."""
    held = [
        Running(ask(f"v{at}", "c", 4, duration_s=12 * HOUR, loses_work=loses_work), -2 * HOUR)
        for at in range(2)
    ]
    mine = ask("mine", "a", 4, -waited_h * HOUR, duration_s=wants_h * HOUR)
    assert len(schedule(site(running=tuple(held), queued=(mine,))).victims) == asked


@pytest.mark.parametrize(
    ("lasts_h", "loses_work", "asked"), [(9 * 24, True, 1), (20, True, 0), (20, False, 1)]
)
def test_preemption_between_borrowers_must_outweigh_the_lost_work(lasts_h, loses_work, asked):
    """The requester wants a day and one hour would be lost: only longer remaining work is preempted."""
    teams = (Team("own", "c", {GPU: Limit(8000)}), Team("x", "c"), Team("y", "c"))
    running = tuple(
        Running(ask(f"x{at}", "x", 2, duration_s=lasts_h * HOUR, loses_work=loses_work), -HOUR)
        for at in range(4)
    )
    taker = ask("y", "y", 2, duration_s=DAY)
    snapshot = Snapshot(0, teams, (Cohort("c"),), running, (taker,), capacity={GPU: 8000})
    assert len(schedule(snapshot).victims) == asked


def test_second_nomination_does_not_use_capacity_of_the_first():
    """Two are free; both owners need four, and one victim of two does not suffice for both."""
    running = tuple(Running(ask(f"v{at}", "c", 2, duration_s=9 * DAY), -DAY) for at in range(3))
    owners = (ask("first", "a", 4, -2, duration_s=DAY), ask("second", "b", 4, -1, duration_s=DAY))
    cycle = schedule(site(running=running, queued=owners))
    by_taker = {name: [v for v in cycle.victims if v.beneficiary == name] for name in ("first", "second")}
    assert {name: len(found) for name, found in by_taker.items()} == {"first": 1, "second": 2}


def test_wide_request_is_not_starved_on_fragmented_nodes():
    """Sufficient in total, but on no node: the node that frees first is reserved for it."""
    placer = NodePlacer(4, 4)
    scheduler = Scheduler(site(policy=Policy(preemption=False)), placer)
    narrow = [ask(f"n{at}", "ab"[at % 2], 1, at * 600, duration_s=5 * HOUR) for at in range(120)]
    diary = live(scheduler, [*narrow, ask("wide", "a", 4, 3 * HOUR, duration_s=HOUR)])
    # Nine older ones of its team get four at once; b's quota serves b's own requests.
    assert diary.began_s["wide"] <= 3 * HOUR + 3 * 5 * HOUR


@settings(FEW, max_examples=examples(15))
@given(arrivals(most=24), st.integers(0, 23))
def test_preview_and_creation_agree_on_real_nodes(workloads, when):
    def at_work() -> Scheduler:
        scheduler = Scheduler(site(), NodePlacer(4, 4))
        for each in workloads[: when + 1]:
            scheduler.submit(each)
        cycle = scheduler.cycle(15 * DAY)
        scheduler.apply(cycle, 15 * DAY)
        return scheduler

    request = ask("new", "b", 2, 15 * DAY)
    said = verdict(at_work(), request)
    scheduler = at_work()
    scheduler.submit(request)
    cycle = scheduler.cycle(15 * DAY)
    assert (said.outcome is Outcome.FITS_NOW) == ("new" in cycle.starts)
    assert said.victims == tuple(each for each in cycle.victims if each.beneficiary == "new")


def test_blocker_reports_the_idle_amount():
    running = (
        Running(ask("v1", "c", 1, duration_s=DAY), -HOUR, idle_s=7200),
        Running(ask("v2", "c", 1, duration_s=DAY), -HOUR, idle_s=60),
        Running(ask("v3", "c", 6, duration_s=DAY, preemptible=False), -HOUR),
    )
    said = decide(site(running=running, policy=Policy(preemption=False)), ask("n", "a", 1))
    (holder,) = said.blocker.holders
    assert (holder.amount, holder.idle, holder.idle_s) == (8000, 1000, 7200)
    assert holder.next_end_s == DAY - HOUR


@pytest.mark.parametrize(("average", "asked"), [({}, 1), ({GPU: 9000}, 0)])
def test_recent_borrowing_counts_between_borrowers(average, asked):
    """The requester uses nothing now, but used more than the other for days."""
    teams = (
        Team("own", "c", {GPU: Limit(8000)}),
        Team("x", "c"),
        Team("y", "c", borrowed_avg=average),
    )
    running = tuple(Running(ask(f"x{at}", "x", 2, duration_s=9 * DAY), -HOUR) for at in range(4))
    snapshot = Snapshot(
        0, teams, (Cohort("c"),), running, (ask("y", "y", 2, duration_s=DAY),), capacity={GPU: 8000}
    )
    assert len(schedule(snapshot).victims) == asked


def test_node_of_victims_is_reserved_for_the_nominated_request():
    placer = NodePlacer(4, 4)
    there = [Running(ask("wall", "a", 4, duration_s=DAY, preemptible=False), -HOUR)]
    there.append(Running(ask("leaves", "c", 2, duration_s=DAY), -HOUR, preempt_at_s=30, preempted_by="wide"))
    for each in there:
        placer.take(each.workload)
    queued = (ask("wide", "b", 4, nominated=True), ask("first", "b", 2, priority=1, nominated=True))
    assert schedule(site(running=tuple(there), queued=queued), placer).starts == ()
