"""Invariants of every site: limits, no starvation, no cycles, previews equal decisions."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.scheduling import previews
from portal.scheduling import decision
from portal.scheduling.engine import plan
from portal.scheduling.engine.cycle import OWN_RULES
from portal.scheduling.engine.model import FOREVER_S, Outcome, Policy
from portal.scheduling.engine.outlook import Outlook
from portal.scheduling.engine.scheduler import Scheduler, schedule
from portal.scheduling.engine.verdicts import decide, verdict
from tests.scheduling.engine.worlds import settle, sites
from tests.suite.choice import examples

FEW = settings(max_examples=examples(150), deadline=None, derandomize=True)


def run_on(scheduler: Scheduler, now_s: int, steps: int) -> dict[str, int]:
    """Advance time: expected ends happen and victims return. Returns the last start of each."""
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
            finished = scheduler.finish(name)
            if (
                finished.preempt_at_s is not None
                and now_s < finished.started_s + finished.workload.duration_s
            ):
                scheduler.submit(replace(finished.workload, nominated=False))
    return started


@FEW
@given(sites(reservations=True))
def test_limits_hold_and_decisions_are_deterministic(snapshot):
    assert schedule(snapshot) == schedule(snapshot)
    reversed_input = replace(
        snapshot, queued=snapshot.queued[::-1], teams=snapshot.teams[::-1], cohorts=snapshot.cohorts[::-1]
    )
    assert schedule(snapshot) == schedule(reversed_input)
    run_on(Scheduler(snapshot), snapshot.now_s, 60)


@FEW
@given(sites(reservations=True))
def test_every_feasible_workload_starts(snapshot):
    scheduler = Scheduler(snapshot)
    possible = {each.id for each in snapshot.queued if scheduler.usage.permanent_shortfall(each) is None}
    started = run_on(scheduler, snapshot.now_s, 400)
    assert possible <= set(started)
    assert not set(started) - possible


@FEW
@given(sites(preemption=False, turns=False))
def test_backfill_does_not_delay_a_reserved_head(snapshot):
    """At every event and at the start itself, if durations are kept.

    With member shares, a team member may overtake (`test_member_turns`).
    """
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
            shortfall = scheduler.usage.shortfall(scheduler.pending.items[head.workload], now_s)
            # A start of its own team may leave it limited by that team only; then nothing is reserved.
            if shortfall is None or shortfall[0] not in OWN_RULES:
                assert after[head.workload] <= head.start_s
        # Only requests earlier in the order, such as a higher priority limited so far, may move a
        # reservation, which is then recreated.
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
def test_preemption_always_converges(snapshot, later):
    """Without run time protection, and with every victim requeued at once."""
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
def test_preview_equals_the_decision(snapshot):
    *others, request = snapshot.queued
    scheduler = Scheduler(replace(snapshot, queued=tuple(others)))
    for before_s in (0, 0, 7):
        now_s = scheduler.now_s + before_s
        scheduler.apply(scheduler.cycle(now_s), now_s)
        said = verdict(scheduler, request)
        assert said == verdict(scheduler, request), "a preview leaves all as it was"
        assert_created_as(said, scheduler.clone(), request)


def assert_created_as(said, scheduler, request):
    """Create the request and assert that it gets the previewed result."""
    if said.outcome in (Outcome.IMPOSSIBLE, Outcome.NEEDS_APPROVAL):
        assert request.id not in submitted(scheduler, request).starts
        return
    made = submitted(scheduler, request)
    assert (said.outcome is Outcome.FITS_NOW) == (request.id in made.starts)
    assert said.victims == tuple(each for each in made.victims if each.beneficiary == request.id)
    if said.outcome is Outcome.QUEUED:
        outlook = Outlook(scheduler)
        outlook.compute_all()
        got = outlook.of(request.id)
        assert (said.position, said.eta_s, said.basis) == (got.position, got.eta.eta_s, got.eta.basis)
        assert said.blocker == got.blocker


def test_previews_hold_while_the_site_continues():
    asked, wrong = previews.probe(worlds=20)
    assert asked == 20 * previews.STEPS
    assert not wrong


def submitted(scheduler, request):
    scheduler.submit(request)
    cycle = scheduler.cycle(scheduler.now_s)
    scheduler.apply(cycle, scheduler.now_s)
    return cycle


@pytest.mark.parametrize("depth", [0, 2, 512])
@FEW
@given(snapshot=sites(reservations=True, queued=12))
def test_additional_request_in_a_plan_equals_a_new_plan(depth, snapshot):
    """Whether its slot is searched or it is behind all slots."""
    *others, request = snapshot.queued
    scheduler = Scheduler(replace(snapshot, queued=tuple(others)))
    scheduler.apply(scheduler.cycle(scheduler.now_s), scheduler.now_s)
    with_it = scheduler.clone()
    with_it.submit(request)
    without = Outlook(scheduler)
    whole = Outlook(with_it)
    if request.id in whole.cycle.starts or without.cycle.starts != whole.cycle.starts:
        return
    with mock.patch.object(plan, "DEPTH", depth):
        inserted = without.plan.etas_if_inserted(request, with_it.pending.key_of(request))
        if inserted is not None:
            assert inserted == whole.plan.by_choice(request.id)


@pytest.mark.parametrize("depth", [0, 2])
@FEW
@given(snapshot=sites(reservations=True, queued=12))
def test_etas_and_positions_are_equal_in_bulk_and_one_by_one(depth, snapshot):
    scheduler = Scheduler(snapshot)
    scheduler.apply(scheduler.cycle(scheduler.now_s), scheduler.now_s)
    with mock.patch.object(plan, "DEPTH", depth):
        single, all_at_once = Outlook(scheduler), Outlook(scheduler)
        all_at_once.compute_all()
        for name in scheduler.pending.items:
            assert single.of(name) == all_at_once.of(name)


@FEW
@given(sites(reservations=True))
def test_decision_without_changes_is_repeated(snapshot):
    """So the outlook reuses the decision."""
    scheduler = Scheduler(snapshot)
    for _ in range(6):
        decided = decision.decide(mock.Mock(scheduler=scheduler, now_s=snapshot.now_s, pending_workloads={}))
        if decided.unchanged_cycle is not None:
            assert Outlook(scheduler).cycle == decided.unchanged_cycle


@FEW
@given(sites(preemption=False))
def test_eta_holds_if_all_work_ends_as_expected(snapshot):
    request = snapshot.queued[-1]
    verdict = decide(replace(snapshot, queued=snapshot.queued[:-1]), request)
    if verdict.outcome is not Outcome.QUEUED:
        return
    started = run_on(Scheduler(snapshot), snapshot.now_s, 400)
    assert verdict.eta_s is not None
    wait = started[request.id] - snapshot.now_s
    # Look-ahead uses steps of a twentieth.
    assert abs(verdict.eta_s - started[request.id]) <= 2 + wait // 5
