"""Placement health of a workspace: only measured values lower the score."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portal.common.reasons.wording import message_of
from portal.reclaim.engine.codes import RebalanceCode
from portal.reclaim.engine.placement_health import (
    HEALTHY_PCT,
    DeviceView,
    Headroom,
    PlacementHealth,
    PlacementView,
    Work,
    best_clocks,
    concerns_node,
    device_score,
    has_shortage,
    is_good_for_any,
    is_overcommitted,
    node_score,
    placement_health,
)
from tests.suite.choice import examples

HOT = DeviceView(
    model="H100", gpu_s=600, gpu_pct=90, watched_s=600, throttled_s=480, clock_mhz=1000, best_clock_mhz=1980
)
SHARED = DeviceView(model="H100", gpu_s=600, gpu_pct=99, share_milli=500, at_work=(True, True, True))


def codes(found: PlacementHealth) -> list[RebalanceCode]:
    return [reason.code for reason in found.reasons]


def test_throttled_gpu_scores_its_fraction_of_the_best_clock():
    found = placement_health(PlacementView((HOT,)))
    assert (found.score, codes(found)) == (50, [RebalanceCode.SLOWED])
    assert message_of(found.reasons[0]) == (
        "Heat or hardware slowed the GPU for 80 % of 10 minutes: 1000 MHz instead of 1980 MHz."
    )


@pytest.mark.parametrize(
    "change",
    [
        {"watched_s": None, "throttled_s": None},
        {"watched_s": 200, "throttled_s": 200},
        {"throttled_s": 299},
        {"clock_mhz": None},
        {"best_clock_mhz": None},
        {"gpu_s": None},
        {"gpu_s": 200},
        {"gpu_pct": None},
        {"gpu_pct": 20},
    ],
)
def test_unmeasured_or_harmless_values_give_no_reason(change):
    assert placement_health(PlacementView((replace(HOT, **change),))) == PlacementHealth()


def test_worst_of_several_gpus_decides_the_score():
    cool = replace(HOT, throttled_s=0, clock_mhz=1980)
    assert placement_health(PlacementView((cool, HOT, cool))).score == 50


def test_slight_throttling_gives_a_good_score_without_reasons():
    found = placement_health(PlacementView((replace(HOT, clock_mhz=1800),)))
    assert (found.score, found.reasons) == (90, ())


def test_active_neighbours_on_a_full_gpu_lower_the_score():
    found = placement_health(PlacementView((SHARED,)))
    # A third of the time, of its half.
    assert (found.score, codes(found)) == (66, [RebalanceCode.CROWDED])


@pytest.mark.parametrize(
    "change",
    [
        {"at_work": (True, None, True)},
        {"at_work": (True, False, True)},
        {"at_work": (True,)},
        {"gpu_pct": 94},
        {"gpu_pct": None},
        {"share_milli": 1000},
        {"share_milli": 250},
    ],
)
def test_neighbours_give_no_reason_if_the_share_is_met_or_unknown(change):
    assert placement_health(PlacementView((replace(SHARED, **change),))).score == 100


def test_overcommitted_node_lowers_the_score():
    found = placement_health(PlacementView((), "n", 32_000, 64_000, 100, 110))
    assert (found.score, codes(found)) == (50, [RebalanceCode.OVERCOMMITTED])
    assert message_of(found.reasons[0]) == "The node has allocated 64 cores but has only 32 cores."
    assert placement_health(PlacementView((), "n", 32_000, 32_000, None, None)) == PlacementHealth()


def test_best_clock_is_taken_from_busy_unthrottled_gpus():
    cool = replace(HOT, throttled_s=0, clock_mhz=1900)
    idle = replace(cool, gpu_pct=1, clock_mhz=2100)
    assert best_clocks([HOT, cool, idle]) == {"H100": 1900}


def test_device_without_data_has_full_score():
    assert (device_score(DeviceView()), device_score(HOT)) == (100, 50)


NO_CPU = Headroom(300, 32, 64.0, 0.5, 95.0)
NO_MEMORY = Headroom(300, memory_left_pct=1.5, memory_stalled_pct=30.0)
COMPUTES = Work(2_000, 8_000)
SLOWER = Work(2_000, 8_000, 55, "tokens", 55.0, 100.0)


def test_node_short_of_cpu_scores_the_fraction_received():
    found = placement_health(PlacementView((), "n", headroom=NO_CPU, work=COMPUTES))
    assert (found.score, codes(found), node_score(NO_CPU)) == (50, [RebalanceCode.SHORT_OF_CPU], 50)
    assert concerns_node(found.reasons[0])
    assert message_of(found.reasons[0]) == (
        "The node is short of CPU: 0.5 % idle over 5 minutes, 64 runnable processes on 32 cores."
    )


@pytest.mark.parametrize(
    "change",
    [
        {"watched_s": 200}, {"watched_s": None}, {"cores": None}, {"runnable": None}, {"cpu_idle_pct": None},
        {"cpu_waited_pct": None}, {"cpu_idle_pct": 2.1}, {"cpu_waited_pct": 49.0}, {"runnable": 32.0},
        {"cpu_limited": True},
    ],
)  # fmt: skip
def test_cpu_is_not_short_without_contention(change):
    seen = replace(NO_CPU, **change)
    assert placement_health(PlacementView((), "n", headroom=seen, work=COMPUTES)) == PlacementHealth()
    assert not has_shortage(seen)


@pytest.mark.parametrize(
    "work", [Work(), Work(None, 8_000), Work(2_000, None), Work(499, 8_000), Work(7_200, 8_000)]
)
def test_idle_or_fully_served_workspace_has_a_good_score_on_a_full_node(work):
    assert placement_health(PlacementView((), "n", headroom=NO_CPU, work=work)) == PlacementHealth()


def test_node_short_of_memory_scores_the_unstalled_time():
    found = placement_health(PlacementView((), "n", headroom=NO_MEMORY))
    assert (found.score, codes(found), node_score(NO_MEMORY)) == (70, [RebalanceCode.SHORT_OF_MEMORY], 70)
    assert message_of(found.reasons[0]) == (
        "The node is short of memory: at most 1.5 % free over 5 minutes, stalled 30 % of the time."
    )


@pytest.mark.parametrize(
    "change",
    [
        {"watched_s": 200}, {"memory_left_pct": None}, {"memory_stalled_pct": None}, {"memory_left_pct": 3.1},
        {"memory_stalled_pct": 9.9},
    ],
)  # fmt: skip
def test_free_or_uncontended_memory_is_enough(change):
    assert (
        placement_health(PlacementView((), "n", headroom=replace(NO_MEMORY, **change))) == PlacementHealth()
    )


LITTLE_HOT = replace(HOT, throttled_s=60, clock_mhz=1900)
HALF_BUSY = replace(SHARED, gpu_pct=60, at_work=(True, True, None))


@pytest.mark.parametrize(
    ("view", "sign", "of_node"),
    [
        (PlacementView((LITTLE_HOT,)), "held_down", False),
        (PlacementView((HALF_BUSY,)), "neighbours", False),
        (PlacementView((), "n", 100, 101), "overcommitted", True),
        (PlacementView((), "n", headroom=NO_CPU), "node_short", True),
        (PlacementView((), "n", headroom=replace(NO_MEMORY, memory_stalled_pct=11.0)), "node_short", True),
    ],
)
def test_slow_work_counts_only_with_a_cause_at_its_place(view, sign, of_node):
    alone = placement_health(replace(view, work=replace(SLOWER, percent=None, cpu_milli=None)))
    assert alone.score >= HEALTHY_PCT, "the sign is a reason by itself"
    found = placement_health(replace(view, work=replace(SLOWER, cpu_milli=None)))
    assert (found.score, codes(found)) == (55, [RebalanceCode.WORK_SLOWER])
    assert (found.reasons[0].params["sign"], concerns_node(found.reasons[0])) == (sign, of_node)


@pytest.mark.parametrize(
    "view",
    [
        PlacementView(),
        PlacementView((replace(LITTLE_HOT, throttled_s=59),)),
        PlacementView((replace(LITTLE_HOT, watched_s=200),)),
        PlacementView((replace(LITTLE_HOT, throttled_s=None),)),
        PlacementView((replace(HALF_BUSY, at_work=(True, None, False)),)),
        PlacementView((replace(HALF_BUSY, share_milli=1000),)),
        PlacementView((), "n", 100, 100),
        PlacementView((), "n", headroom=replace(NO_CPU, cpu_limited=True)),
    ],
)
def test_slow_work_without_a_cause_is_no_reason(view):
    assert placement_health(replace(view, work=SLOWER)) == PlacementHealth()


def maybe(low: int, high: int):
    return st.none() | st.integers(low, high)


devices = st.builds(
    DeviceView,
    model=st.sampled_from(["A", "B"]),
    gpu_s=maybe(0, 660),
    gpu_pct=maybe(0, 100),
    watched_s=maybe(0, 660),
    throttled_s=maybe(0, 660),
    clock_mhz=maybe(0, 2500),
    best_clock_mhz=maybe(0, 2500),
    share_milli=st.integers(1, 1000),
    at_work=st.lists(st.none() | st.booleans(), max_size=4).map(tuple),
)


headrooms = st.builds(
    Headroom,
    watched_s=maybe(0, 400),
    cores=maybe(1, 64),
    runnable=st.none() | st.floats(0, 1e6),
    cpu_idle_pct=st.none() | st.floats(0, 4),
    cpu_waited_pct=st.none() | st.floats(0, 100),
    cpu_limited=st.booleans(),
    memory_left_pct=st.none() | st.floats(0, 6),
    memory_stalled_pct=st.none() | st.floats(0, 100),
)
works = st.builds(
    Work,
    cpu_milli=maybe(0, 100_000),
    cpu_granted_milli=maybe(0, 100_000),
    percent=maybe(0, 79),
    name=st.just("tokens"),
    rate=st.floats(1, 100),
    best=st.floats(1, 100),
)


@settings(max_examples=examples(600), deadline=None, derandomize=True)
@given(st.lists(devices, max_size=2), headrooms, works)
def test_scores_of_nodes_and_work_are_percentages_with_reasons_as_text(seen, headroom, work):
    view = PlacementView(tuple(seen), "n", headroom=headroom, work=work)
    found = placement_health(view)
    assert 0 <= found.score <= 100 and 0 <= node_score(headroom) <= 100
    assert bool(found.reasons) == (found.score < HEALTHY_PCT)
    assert all(message_of(each) for each in found.reasons)
    quiet = placement_health(replace(view, work=replace(work, percent=None)))
    assert found.score >= min(quiet.score, 100 if work.percent is None else work.percent)
    # Only workspaces slower than elsewhere need their node to be read here.
    if not has_shortage(headroom):
        assert quiet == placement_health(PlacementView(tuple(seen), "n"))


@settings(max_examples=examples(400), deadline=None, derandomize=True)
@given(headrooms, works, st.sampled_from([*Headroom.__dataclass_fields__.keys() - {"cpu_limited"}]))
def test_missing_node_figures_never_lower_a_score(headroom, work, name):
    less = placement_health(PlacementView((), "n", headroom=replace(headroom, **{name: None}), work=work))
    assert less.score >= placement_health(PlacementView((), "n", headroom=headroom, work=work)).score


@settings(max_examples=examples(400), deadline=None, derandomize=True)
@given(st.lists(devices, max_size=4), maybe(0, 100), maybe(0, 200))
def test_every_score_is_a_percentage_and_a_low_one_has_a_reason(seen, has, given_out):
    found = placement_health(PlacementView(tuple(seen), "n", has, given_out))
    assert 0 <= found.score <= 100
    assert bool(found.reasons) == (found.score < HEALTHY_PCT)
    assert (
        found == placement_health(PlacementView(tuple(reversed(seen)), "n", has, given_out))
        or len(found.reasons) > 1
    )


@settings(max_examples=examples(500), deadline=None, derandomize=True)
@given(st.lists(devices, max_size=4), maybe(0, 100), maybe(0, 200))
def test_place_without_suspects_has_full_score(seen, has, given_out):
    """So workspaces there need not be examined."""
    suspect = is_overcommitted(has, given_out) or any(
        not is_good_for_any(each, shared=each.share_milli < 1000) for each in seen
    )
    assert suspect or placement_health(PlacementView(tuple(seen), "n", has, given_out)) == PlacementHealth()


@settings(max_examples=examples(400), deadline=None, derandomize=True)
@given(devices, st.sampled_from(["gpu_s", "gpu_pct", "watched_s", "throttled_s", "clock_mhz"]))
def test_missing_device_figures_never_lower_a_score(device, name):
    less = placement_health(PlacementView((replace(device, **{name: None}),)))
    assert less.score >= placement_health(PlacementView((device,))).score
