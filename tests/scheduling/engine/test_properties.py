"""What must hold on every site: no over-run, no starvation, no cycles, preview is the decision."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from portal.scheduling.engine.model import FOREVER_S, Outcome, Policy
from portal.scheduling.engine.scheduler import Scheduler, schedule
from portal.scheduling.engine.verdicts import decide
from tests.scheduling.engine.worlds import settle, sites

FEW = settings(max_examples=150, deadline=None, derandomize=True)


def run_on(scheduler: Scheduler, now_s: int, steps: int) -> dict[str, int]:
    """Let time pass: what is expected to end does, victims come back. When each started last."""
    started: dict[str, int] = {}
    for _ in range(steps):
        cycle = scheduler.cycle(now_s)
        scheduler.apply(cycle, now_s)
        assert scheduler.usage.violation() == ""
        started.update(dict.fromkeys(cycle.starts, now_s))
        moments = [scheduler.next_end()]
        moments += [
            moment
            for each in scheduler.usage.calendar.reservations
            for moment in (each.start_s, each.end_s)
            if moment > now_s
        ]
        now_s = max(now_s + 1, min(moments))
        if now_s >= FOREVER_S:
            break
        for name in scheduler.ended_by(now_s):
            gone = scheduler.finish(name)
            if gone.preempt_at_s is not None and now_s < gone.started_s + gone.workload.duration_s:
                scheduler.submit(replace(gone.workload, nominated=False))
    return started


@FEW
@given(sites(reservations=True))
def test_no_limit_is_overrun_and_the_answer_is_the_same_each_time(snapshot):
    assert schedule(snapshot) == schedule(snapshot)
    reversed_input = replace(
        snapshot, queued=snapshot.queued[::-1], teams=snapshot.teams[::-1], cohorts=snapshot.cohorts[::-1]
    )
    assert schedule(snapshot) == schedule(reversed_input)
    run_on(Scheduler(snapshot), snapshot.now_s, 60)


@FEW
@given(sites(reservations=True))
def test_whoever_can_ever_start_does(snapshot):
    scheduler = Scheduler(snapshot)
    possible = {each.id for each in snapshot.queued if scheduler.usage.never(each) is None}
    started = run_on(scheduler, snapshot.now_s, 400)
    assert possible <= set(started)
    assert not set(started) - possible


@FEW
@given(sites(preemption=False))
def test_back_fill_moves_no_reserved_head(snapshot):
    """Event by event, and at the start itself, when durations are kept."""
    scheduler = Scheduler(snapshot)
    now_s = snapshot.now_s
    promised: dict[str, int] = {}
    for _ in range(60):
        cycle = scheduler.cycle(now_s)
        for name in cycle.starts[:1]:
            assert now_s <= promised.get(name, now_s)
        without = Scheduler.cycle(_no_backfill(scheduler), now_s)
        assert [head.start_s for head in cycle.backfill_reservations[:1]] == [
            head.start_s for head in without.backfill_reservations[:1]
        ]
        scheduler.apply(cycle, now_s)
        after = {head.workload: head.start_s for head in scheduler.cycle(now_s).backfill_reservations}
        for head in cycle.backfill_reservations[:1]:
            assert after[head.workload] <= head.start_s
        # Only what comes first by the order, such as a higher priority whose own limit kept it so far,
        # may move a promise; then it is made anew.
        if len(cycle.starts) > len(cycle.backfilled):
            promised.clear()
        for head in cycle.backfill_reservations[:1]:
            assert head.start_s <= promised.get(head.workload, head.start_s)
            promised = {head.workload: head.start_s}
        now_s = scheduler.next_end()
        if now_s >= FOREVER_S:
            break
        for name in scheduler.ended_by(now_s):
            scheduler.finish(name)


def _no_backfill(scheduler: Scheduler) -> Scheduler:
    twin = scheduler.clone()
    twin.policy = replace(twin.policy, backfill=False)
    return twin


@FEW
@given(sites(preemption=True, queued=10), st.integers(0, 10))
def test_preemption_always_comes_to_rest(snapshot, later):
    """With no protection by run time at all, and every victim back in the queue at once."""
    snapshot = replace(snapshot, policy=Policy(min_run_s=0, grace_s=1))
    early = tuple(each for each in snapshot.queued if each.created_s < later)
    scheduler = Scheduler(replace(snapshot, queued=early))
    settle(scheduler, snapshot.now_s)
    for each in snapshot.queued:
        if each not in early:
            scheduler.submit(each)
            settle(scheduler, snapshot.now_s)


@FEW
@given(sites(reservations=True))
def test_the_preview_is_the_decision(snapshot):
    *others, request = snapshot.queued
    snapshot = replace(snapshot, queued=tuple(others))
    verdict = decide(snapshot, request)
    assert verdict == decide(snapshot, request)
    created = schedule(replace(snapshot, queued=(*others, request)))
    assert (verdict.outcome is Outcome.FITS_NOW) == (request.id in created.starts)
    assert verdict.victims == tuple(each for each in created.victims if each.beneficiary == request.id)
    if verdict.outcome is Outcome.QUEUED:
        assert 1 <= verdict.position <= len(snapshot.queued) + 1
        assert verdict.blocker is not None
        assert verdict.eta_s is None or verdict.eta_s >= snapshot.now_s


@FEW
@given(sites(preemption=False))
def test_an_eta_comes_true_when_all_ends_as_expected(snapshot):
    request = snapshot.queued[-1]
    verdict = decide(replace(snapshot, queued=snapshot.queued[:-1]), request)
    if verdict.outcome is not Outcome.QUEUED:
        return
    started = run_on(Scheduler(snapshot), snapshot.now_s, 400)
    assert verdict.eta_s is not None
    wait = started[request.id] - snapshot.now_s
    # A look ahead goes in steps of a twentieth.
    assert abs(verdict.eta_s - started[request.id]) <= 2 + wait // 5
