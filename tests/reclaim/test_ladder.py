"""The reclaim decision as a pure function: invariants of every sequence of passes."""

from __future__ import annotations

from dataclasses import replace
from datetime import time

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from portal.reclaim.engine.ladder import (
    UNUSED_S,
    Cause,
    Notice,
    Policy,
    RunState,
    Step,
    decide,
    notice_of,
    threshold_readings,
)
from portal.reclaim.engine.week import DAYS, Week

HOUR = 3600
RULES = Policy(gpu_idle_s=2 * HOUR, idle_s=8 * HOUR, notice_s=1800)


def test_no_step_is_due_far_from_every_threshold():
    run_state = RunState(ends_at_s=90_000, lifetime_s=80_000, gpu_idle_s=60, idle_s=60)
    assert decide(run_state, RULES, None, 10_000).step is Step.NONE


def test_workspace_near_its_end_is_warned_and_stops_at_its_end():
    run_state = RunState(ends_at_s=10_000, lifetime_s=80_000)
    verdict = decide(run_state, RULES, None, 9_000)
    assert (verdict.step, verdict.cause, verdict.due_at_s) == (Step.WARN, Cause.LIFETIME, 10_800)


def test_timely_notice_stops_at_the_end():
    run_state = RunState(ends_at_s=10_000, lifetime_s=80_000)
    assert decide(run_state, RULES, None, 8_200).due_at_s == 10_000


def test_short_lifetime_has_a_short_notice():
    run_state = RunState(ends_at_s=1_600, lifetime_s=600)
    assert notice_of(RULES, run_state) == 150
    assert decide(run_state, RULES, None, 1_449).step is Step.NONE
    assert decide(run_state, RULES, None, 1_450).due_at_s == 1_600


@pytest.mark.parametrize("unknown", [None])
def test_unknown_values_cause_no_reclaim(unknown):
    assert threshold_readings(RunState(gpu_idle_s=unknown, idle_s=unknown), RULES, 1e9) == ()


def test_idleness_without_a_limit_causes_no_step():
    rules = Policy(gpu_idle_s=None, idle_s=None, notice_s=1800)
    assert decide(RunState(gpu_idle_s=1e9, idle_s=1e9), rules, None, 5.0).step is Step.NONE


def test_idle_gpus_are_reported_before_their_limit():
    verdict = decide(RunState(gpu_idle_s=5_400), RULES, None, 0)
    assert (verdict.step, verdict.cause, verdict.due_at_s) == (Step.WARN, Cause.GPU_IDLE, 1800)


def test_reading_has_value_and_threshold():
    (reading,) = decide(RunState(gpu_idle_s=6_000), RULES, None, 0).readings
    assert (reading.value_s, reading.threshold_s, reading.reached) == (6_000, 7_200, False)


def test_ended_notice_stops_only_above_the_limit():
    told = Notice(Cause.GPU_IDLE, 0, 1800)
    assert decide(RunState(gpu_idle_s=7_199), RULES, told, 2_000).step is Step.WAIT
    assert decide(RunState(gpu_idle_s=7_200), RULES, told, 2_000).step is Step.STOP
    assert decide(RunState(gpu_idle_s=7_200), RULES, told, 1_799).step is Step.WAIT


def test_notice_for_one_cause_does_not_stop_for_another():
    told = Notice(Cause.GPU_IDLE, 0, 1800)
    both = RunState(ends_at_s=1_000, lifetime_s=80_000, gpu_idle_s=0.0)
    assert decide(both, RULES, told, 5_000).step is Step.WITHDRAW


def test_kept_workspace_is_stopped_only_at_its_end():
    kept = RunState(ends_at_s=1_000, lifetime_s=80_000, gpu_idle_s=1e6, idle_s=1e6, kept_until_s=5_000)
    assert [each.cause for each in threshold_readings(kept, RULES, 900)] == [Cause.LIFETIME]


def test_readings_are_ordered_by_time():
    run_state = RunState(ends_at_s=1_000, lifetime_s=80_000, gpu_idle_s=6_000)
    assert [each.cause for each in threshold_readings(run_state, RULES, 500)] == [
        Cause.LIFETIME,
        Cause.GPU_IDLE,
    ]


seconds = st.integers(min_value=0, max_value=200_000)
limits = st.none() | st.integers(min_value=60, max_value=100_000)


any_week = st.builds(
    Week,
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]),
    days=st.frozensets(st.sampled_from(DAYS), min_size=1),
    begins=st.just(time(8)),
    ends=st.just(time(18)),
    after_hours_s=st.none() | st.integers(min_value=60, max_value=20_000),
    stop_at=st.none() | st.just(time(19)),
)


class Ladder(RuleBasedStateMachine):
    """Any history of use, silence, extensions, keeps, crashes and policy changes, decided by `decide`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self.run_state = RunState(
            ends_at_s=self.now + 50_000, lifetime_s=50_000, gpu_idle_s=0.0, idle_s=0.0, began_s=self.now
        )
        self.rules = RULES
        self.notice: Notice | None = None
        self.least_s = 0
        self.stopped = False
        self.released = 0

    @rule(by=st.integers(min_value=1, max_value=20_000), gpu=st.booleans(), other=st.booleans())
    def passes(self, by: int, gpu: bool, other: bool) -> None:
        """Time passes, observed as idle or not."""
        self.now += by
        was = self.run_state
        self.run_state = replace(
            was,
            gpu_idle_s=0.0 if gpu else (was.gpu_idle_s or 0.0) + by,
            idle_s=0.0 if gpu or other else (was.idle_s or 0.0) + by,
        )

    @rule()
    def nothing_is_known(self) -> None:
        self.run_state = replace(self.run_state, gpu_idle_s=None, idle_s=None)

    @rule(by=st.integers(min_value=900, max_value=100_000))
    def extended(self, by: int) -> None:
        assert self.run_state.ends_at_s is not None
        self.run_state = replace(self.run_state, ends_at_s=max(self.run_state.ends_at_s, self.now) + by)
        self.notice = None

    @rule(by=seconds)
    def kept(self, by: int) -> None:
        self.run_state = replace(self.run_state, kept_until_s=self.now + by)

    @rule(
        gpu=limits,
        all_=limits,
        notice=st.integers(min_value=60, max_value=7_200),
        longest=st.none() | st.integers(min_value=3_600, max_value=400_000),
        weeks=st.lists(any_week, max_size=2),
        spent=st.booleans(),
        release=limits,
    )
    def other_rules(
        self,
        gpu: int | None,
        all_: int | None,
        notice: int,
        longest: int | None,
        weeks: list[Week],
        spent: bool,
        release: int | None,
    ) -> None:
        self.rules = Policy(gpu, all_, notice, longest, tuple(weeks), spent, release)

    @rule(spent=st.booleans())
    def hours_are_spent(self, spent: bool) -> None:
        self.run_state = replace(self.run_state, spent=spent)

    @rule(by=st.integers(min_value=-500_000, max_value=500_000))
    def change_clock(self, by: int) -> None:
        """As in `passes._extend_for_outage`: the remaining time is kept."""
        self.now += by
        assert self.run_state.ends_at_s is not None
        began_s = (self.run_state.began_s or 0.0) + by
        self.run_state = replace(
            self.run_state, ends_at_s=self.run_state.ends_at_s + by, kept_until_s=None, began_s=began_s
        )
        if self.notice is not None:
            self.notice = replace(
                self.notice, warned_at_s=self.notice.warned_at_s + by, due_at_s=self.notice.due_at_s + by
            )

    @precondition(lambda self: not self.stopped)
    @rule(crashes=st.booleans())
    def walk(self, crashes: bool) -> None:
        verdict = decide(self.run_state, self.rules, self.notice, self.now)
        if crashes:
            return  # no write of it was committed
        if verdict.step is Step.WARN:
            assert self.notice is None
            assert verdict.cause is not None and verdict.due_at_s is not None
            self.least_s = notice_of(self.rules, self.run_state, verdict.cause)
            self.notice = Notice(verdict.cause, self.now, verdict.due_at_s)
        elif verdict.step is Step.WITHDRAW:
            self.notice = None
        elif verdict.step is Step.RELEASE:
            self.check_stop(verdict.cause)
            self.release_gpus()
        elif verdict.step is Step.STOP:
            # No step is skipped: a workspace with a GPU release is not stopped for idleness before it.
            assert self.rules.release_s is None or verdict.cause not in (Cause.IDLE, Cause.GPU_IDLE)
            self.check_stop(verdict.cause)
            self.stopped = True

    def release_gpus(self) -> None:
        """The app restarts without GPUs, for which `terms.merge` has neither limit."""
        self.released += 1
        self.rules = replace(self.rules, release_s=None, gpu_idle_s=None)
        self.notice = None
        began = {"began_s": self.now, "gpu_idle_s": None, "idle_s": 0.0}
        self.run_state = replace(self.run_state, **began)
        assert decide(self.run_state, self.rules, None, self.now).step is not Step.RELEASE

    @precondition(lambda self: self.rules.release_s is not None)
    @rule()
    def steps_apply_once(self) -> None:
        """A step with notice is applied once: the next pass, at once or after a crash, does nothing."""
        verdict = decide(self.run_state, self.rules, None, self.now)
        assert verdict.step in (Step.NONE, Step.WARN)

    def check_stop(self, cause: Cause | None) -> None:
        assert self.notice is not None and self.notice.cause == cause
        assert self.now - self.notice.warned_at_s >= self.least_s
        run_state = self.run_state
        if cause is Cause.LIFETIME:
            assert run_state.ends_at_s is not None and self.now >= run_state.ends_at_s
        elif cause is Cause.LONGEST:
            assert run_state.began_s is not None and self.rules.longest_s is not None
            assert self.now >= run_state.began_s + self.rules.longest_s
        elif cause is Cause.BUDGET:
            assert run_state.spent and self.rules.stop_when_spent
        else:
            assert run_state.kept_until_s is None or run_state.kept_until_s <= self.now
            self.check_idle(cause)

    def check_idle(self, cause: Cause | None) -> None:
        idle_s = self.run_state.idle_s
        if cause in (Cause.GPU_IDLE, Cause.RELEASE_GPU_IDLE):
            seen_s, limit_s = self.run_state.gpu_idle_s, self.rules.gpu_idle_s
            assert seen_s is not None and limit_s is not None and seen_s >= limit_s
        elif cause in (Cause.IDLE, Cause.RELEASE):
            assert (cause is Cause.RELEASE) == (self.rules.release_s is not None)
            outside = [each.after_hours_s for each in self.rules.weeks if not each.is_working_time(self.now)]
            every = [self.rules.idle_s, self.rules.release_s, *outside]
            assert idle_s is not None and idle_s >= min(each for each in every if each)
        else:
            assert idle_s is not None and idle_s >= UNUSED_S
            day = self.now - 8 * 86_400
            past = [stop for each in self.rules.weeks for stop in each.stops(day, self.now + 1)]
            assert any(stop > (self.run_state.began_s or 0.0) for stop in past)

    @invariant()
    def notice_period_is_respected(self) -> None:
        if self.notice is not None:
            assert self.notice.due_at_s - self.notice.warned_at_s >= self.least_s


TestLadder = Ladder.TestCase
