"""Working and stop hours in their time zones and across clock changes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.reclaim.engine.ladder import (
    UNUSED_S,
    Cause,
    Notice,
    Policy,
    RunState,
    Step,
    decide,
    idle_limit_s,
)
from portal.reclaim.engine.replay import Period, RecordedRun, replay
from portal.reclaim.engine.terms import SETTINGS, ScopeKind, Source, Terms, merge
from portal.reclaim.engine.week import DAYS, Week

HOUR = 3600
WORKDAYS = frozenset(DAYS[:5])
BERLIN = Week("Europe/Berlin", WORKDAYS, time(8), time(18), 1800, time(19))


def at(text: str, zone: str = "Europe/Berlin") -> float:
    """Parse `2026-11-23 19:00` in that zone."""
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(
    ("now", "works"),
    [
        ("2026-11-23 07:59", False),
        ("2026-11-23 08:00", True),
        ("2026-11-23 17:59", True),
        ("2026-11-23 18:00", False),
        ("2026-11-22 12:00", False),
    ],
)
def test_working_hours_use_the_time_zone_of_the_week(now, works):
    assert BERLIN.is_working_time(at(now)) is works


def test_idle_stop_applies_on_holidays():
    week = Week("UTC", WORKDAYS, time(8), time(18), 1800, time(19), frozenset({date(2026, 12, 25)}))
    noon = datetime(2026, 12, 25, 12, tzinfo=UTC).timestamp()
    assert not week.is_working_time(noon)
    assert week.stop_near(noon + 6.9 * HOUR, 1800) == noon + 7 * HOUR


@pytest.mark.parametrize("day", ["2026-03-30", "2026-10-26", "2026-07-01", "2026-12-01"])
def test_stop_is_at_the_same_local_hour_in_summer_and_winter(day):
    stop = BERLIN.stop_near(at(f"{day} 18:45"), 1800)
    assert stop is not None
    assert datetime.fromtimestamp(stop, ZoneInfo("Europe/Berlin")).strftime("%H:%M") == "19:00"


def test_skipped_hour_runs_later_and_repeated_hour_runs_once_at_clock_changes():
    week = Week("Europe/Berlin", frozenset(DAYS), stop_at=time(2, 30))
    for day in ("2026-03-29", "2026-10-25"):
        found = week.stops(at(f"{day} 00:00"), at(f"{day} 23:00"))
        assert len(found) == 1
    assert week.stops(at("2026-03-29 00:00"), at("2026-03-29 23:00"))[0] == at("2026-03-29 03:30")


def test_stop_applies_until_the_next_working_hours():
    friday = at("2026-11-20 19:00")
    assert BERLIN.stop_near(at("2026-11-20 18:20"), 1800) is None
    assert BERLIN.stop_near(at("2026-11-20 18:40"), 1800) == friday
    assert BERLIN.stop_near(at("2026-11-22 12:00"), 1800) == friday
    assert BERLIN.stop_near(at("2026-11-23 08:00"), 1800) is None


def test_stop_without_working_hours_applies_for_the_night():
    week = Week("UTC", frozenset(DAYS), stop_at=time(19))
    stop = datetime(2026, 11, 23, 19, tzinfo=UTC).timestamp()
    assert week.stop_near(stop + 11 * HOUR, 1800) == stop
    assert week.stop_near(stop + 13 * HOUR, 1800) is None


RULES = Policy(gpu_idle_s=None, idle_s=8 * HOUR, notice_s=1800, weeks=(BERLIN,))


def test_shorter_idle_limit_applies_outside_working_hours():
    assert idle_limit_s(RULES, at("2026-11-23 12:00")) == 8 * HOUR
    assert idle_limit_s(RULES, at("2026-11-23 21:00")) == 1800


def test_schedule_stops_idle_workspaces_only():
    monday = at("2026-11-23 12:00")
    only_stop = Policy(None, None, 1800, weeks=(Week("Europe/Berlin", WORKDAYS, stop_at=time(19)),))
    evening = at("2026-11-23 18:45")
    for idle_s, step in (
        (None, Step.NONE),
        (0.0, Step.NONE),
        (UNUSED_S - 1, Step.NONE),
        (UNUSED_S, Step.WARN),
    ):
        verdict = decide(RunState(idle_s=idle_s, began_s=monday), only_stop, None, evening)
        assert verdict.step is step
    assert (verdict.cause, verdict.due_at_s) == (Cause.SCHEDULE, evening + 1800)
    told = Notice(Cause.SCHEDULE, evening, evening + 1800)
    after = evening + 1800
    assert decide(RunState(idle_s=2000, began_s=monday), only_stop, told, after).step is Step.STOP
    assert decide(RunState(idle_s=0.0, began_s=monday), only_stop, told, after).step is Step.WITHDRAW
    kept = RunState(idle_s=2000, began_s=monday, kept_until_s=after + 1)
    assert decide(kept, only_stop, told, after).step is Step.WITHDRAW


def test_workspace_started_after_the_stop_hour_runs_that_evening():
    late = RunState(idle_s=UNUSED_S, began_s=at("2026-11-23 19:30"))
    only_stop = Policy(None, None, 1800, weeks=(Week("Europe/Berlin", WORKDAYS, stop_at=time(19)),))
    assert decide(late, only_stop, None, at("2026-11-23 22:00")).step is Step.NONE


def test_exhausted_gpu_hours_stop_with_notice_and_limit_the_lifetime():
    rules = Policy(None, None, 1800, longest_s=10 * HOUR, stop_when_spent=True)
    spent = decide(RunState(spent=True, began_s=0), rules, None, 100)
    assert (spent.step, spent.cause, spent.due_at_s) == (Step.WARN, Cause.BUDGET, 1900)
    old = decide(RunState(began_s=0), rules, None, 9.6 * HOUR)
    assert (old.step, old.cause, old.due_at_s) == (Step.WARN, Cause.LONGEST, 9.6 * HOUR + 1800)


def team(**values: object) -> Terms:
    return Terms(Source(ScopeKind.TEAM, "vision"), **values)  # type: ignore[arg-type]


def flavor(**values: object) -> Terms:
    return Terms(Source(ScopeKind.FLAVOR, "a100-full"), **values)  # type: ignore[arg-type]


SITE = Terms(SETTINGS, idle_s=0, idle_gpu_s=7200, notice_s=1800)


def test_closest_policy_decides_and_is_named_as_source():
    found = merge([SITE, flavor(idle_gpu_s=3600)], accelerated=True)
    assert found.policy.idle_s == 3600
    assert found.sources["idle_s"] == (Source(ScopeKind.FLAVOR, "a100-full"),)
    assert found.sources["notice_s"] == (SETTINGS,)
    never = merge([SITE, flavor(idle_gpu_s=0)], accelerated=True)
    assert never.policy.idle_s is None
    assert merge([SITE, flavor(idle_gpu_s=3600)], accelerated=False).policy.idle_s is None


@pytest.mark.parametrize(("asked", "holds"), [(1800, 1800), (7200, 3600), (0, 3600), (None, 3600)])
def test_team_limit_is_never_looser(asked, holds):
    found = merge([SITE, flavor(idle_gpu_s=3600), team(idle_gpu_s=asked, notice_s=60)], accelerated=True)
    assert (found.policy.idle_s, found.policy.notice_s) == (holds, 1800)


def test_team_weeks_are_added_and_limits_are_at_least_the_notice():
    found = merge([SITE, flavor(week=BERLIN, idle_gpu_s=60), team(week=BERLIN)], accelerated=True)
    assert len(found.policy.weeks) == len(found.sources["weeks"]) == 2
    assert found.policy.idle_s == 1800


values = st.none() | st.integers(min_value=0, max_value=100_000)
layer = st.builds(
    dict, idle_gpu_s=values, gpu_unused_s=values, longest_s=values, stop_when_spent=st.booleans()
)


@given(layer, layer)
def test_any_team_policy_is_never_looser(wider, own):
    without = merge([SITE, flavor(**wider)], accelerated=True).policy
    with_team = merge([SITE, flavor(**wider), team(**own)], accelerated=True).policy
    for name in ("idle_s", "gpu_idle_s", "longest_s"):
        before, after = getattr(without, name), getattr(with_team, name)
        assert before is None or (after is not None and after <= before)
    assert with_team.stop_when_spent >= without.stop_when_spent
    assert with_team.notice_s == without.notice_s


def test_replay_stops_idle_runs_and_counts_the_freed_time():
    rules = Policy(None, 2 * HOUR, 1800)
    past = RecordedRun(0, 100 * HOUR, (Period(10 * HOUR, 20 * HOUR), Period(30 * HOUR, 31 * HOUR)))
    (stop,) = replay(past, rules)
    assert (stop.at_s, stop.cause, stop.interrupted) == (12 * HOUR, Cause.IDLE, False)
    assert stop.freed_s == 8 * HOUR


def test_replay_reports_interrupted_work():
    (stop,) = replay(RecordedRun(0, 100 * HOUR), Policy(None, None, 1800, longest_s=40 * HOUR))
    assert (stop.at_s, stop.interrupted, stop.freed_s) == (40 * HOUR, True, 60 * HOUR)
    assert replay(RecordedRun(0, 30 * HOUR), Policy(None, None, 1800, longest_s=40 * HOUR)) == []


def test_replay_applies_the_schedule():
    begin, end = at("2026-11-23 09:00"), at("2026-11-25 09:00")
    nights = (
        Period(at("2026-11-23 17:00"), at("2026-11-24 09:00")),
        Period(at("2026-11-24 20:00"), at("2026-11-25 08:30")),
    )
    week = Week("Europe/Berlin", WORKDAYS, time(8), time(18), stop_at=time(19))
    stops = replay(RecordedRun(begin, end, nights), Policy(None, None, 1800, weeks=(week,)))
    hours = [datetime.fromtimestamp(each.at_s, ZoneInfo("Europe/Berlin")).strftime("%H:%M") for each in stops]
    assert hours == ["19:00", "20:45"]
    assert not any(each.interrupted for each in stops)


periods = st.lists(st.tuples(st.integers(0, 400_000), st.integers(600, 100_000)), max_size=6).map(
    lambda found: tuple(Period(begin, begin + length) for begin, length in _apart(found))
)


def _apart(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return those that overlap none before them, in order."""
    kept: list[tuple[int, int]] = []
    for begin, length in sorted(found):
        if not kept or begin > sum(kept[-1]) + 60:
            kept.append((begin, length))
    return kept


@given(periods, st.integers(1800, 50_000), st.booleans())
def test_replay_never_stops_active_workspaces_or_stops_early(idle, limit_s, scheduled):
    weeks = (BERLIN,) if scheduled else ()
    past = RecordedRun(0, 500_000, idle)
    for stop in replay(past, Policy(None, limit_s, 1800, weeks=weeks)):
        (within,) = [each for each in idle if each.begin_s <= stop.at_s < each.end_s]
        assert not stop.interrupted
        assert stop.at_s + stop.freed_s <= within.end_s
        least_s = UNUSED_S if stop.cause is Cause.SCHEDULE else min(limit_s, 1800 if scheduled else limit_s)
        assert stop.at_s - within.begin_s >= least_s


@given(
    st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "UTC"]),
    st.frozensets(st.sampled_from(DAYS), min_size=1),
    st.times().map(lambda each: each.replace(second=0, microsecond=0)),
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31)),
)
def test_every_day_has_one_stop_in_every_time_zone(zone, days, stop_at, now):
    week = Week(zone, days, stop_at=stop_at)
    now_s = now.replace(tzinfo=UTC).timestamp()
    found = week.stops(now_s, now_s + 28 * 86_400)
    local = [datetime.fromtimestamp(each, ZoneInfo(zone)) for each in found]
    assert len({each.date() for each in local}) == len(found)
    assert abs(len(found) - 4 * len(days)) <= 1
    near = week.stop_near(now_s, 1800)
    assert near is None or near <= now_s + 1801
    assert near is None or timedelta(seconds=now_s - near) < timedelta(hours=12)


def test_start_is_due_on_the_next_working_morning():
    week = replace(BERLIN, start_at=time(8), holidays=frozenset({date(2026, 12, 25)}))
    friday = at("2026-11-20 19:10")
    assert not week.start_due(friday, at("2026-11-20 23:00"))
    assert not week.start_due(friday, at("2026-11-21 09:00"))
    assert not week.start_due(friday, at("2026-11-23 07:59"))
    assert week.start_due(friday, at("2026-11-23 08:00"))
    assert not week.start_due(at("2026-12-24 19:10"), at("2026-12-25 08:30"))
    assert week.next_start(at("2026-12-24 19:10")) == at("2026-12-28 08:00")


def test_missed_start_is_made_up_until_the_stop_hour():
    week = replace(BERLIN, start_at=time(8))
    stopped = at("2026-11-23 19:10")
    assert week.start_due(stopped, at("2026-11-24 15:00"))
    assert not week.start_due(stopped, at("2026-11-24 19:00"))
    assert not week.start_due(stopped, at("2026-11-25 03:00"))
    assert week.start_due(stopped, at("2026-11-27 08:05"))


@pytest.mark.parametrize("day", ["2026-03-30", "2026-10-26", "2026-07-01"])
def test_start_is_at_the_same_local_hour_in_summer_and_winter(day):
    week = replace(BERLIN, start_at=time(8))
    stopped = at(f"{day} 08:00") - 5 * 86_400
    assert week.start_due(stopped, at(f"{day} 08:00"))
    assert not week.start_due(at(f"{day} 07:00") - 11 * HOUR, at(f"{day} 07:59"))


@given(
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"]),
    days=st.frozensets(st.sampled_from(DAYS), min_size=1),
    start=st.times(),
    stop=st.times(),
    holidays=st.frozensets(st.dates(date(2026, 3, 1), date(2026, 3, 20)), max_size=4),
    stopped=st.integers(0, 15 * 86_400),
    looks=st.lists(st.integers(-3 * HOUR, 2 * 86_400), min_size=1, max_size=40),
)
def test_no_start_is_early_on_a_holiday_or_twice(zone, days, start, stop, holidays, stopped, looks):
    """Passes at any time, hours apart, days late, and with a clock set back."""
    week = Week(zone, days, stop_at=stop, start_at=start, holidays=holidays)
    stopped_s = datetime(2026, 3, 1, tzinfo=UTC).timestamp() + stopped
    now_s, starts = stopped_s, 0
    for by in looks:
        now_s += by
        if by < 0:
            stopped_s += by  # as in `passes._extend_for_outage`
        if week.start_due(stopped_s, now_s):
            starts += 1
            moments = week.starts(stopped_s, now_s + 1)
            assert moments and stopped_s < moments[-1] <= now_s
            local = datetime.fromtimestamp(moments[-1], ZoneInfo(zone))
            assert DAYS[local.weekday()] in days and local.date() not in holidays
            assert not week.stops(moments[-1] + 1, now_s + 1)
            break  # the row is deleted by the start
        assert not any(
            moment <= now_s < moment + 60 and moment > stopped_s
            for moment in week.starts(stopped_s + 1, now_s + 1)
            if not week.stops(moment + 1, now_s + 1)
        )
    assert starts <= 1
