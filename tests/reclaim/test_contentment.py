"""How content a workspace is: what was measured counts, what was not is content."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portal.common.reasons.codes import RebalanceCode
from portal.common.reasons.wording import message_of
from portal.reclaim.engine.contentment import (
    CONTENT,
    Contentment,
    DeviceView,
    View,
    best_clocks,
    contentment,
    device_score,
    is_blameless,
    is_overcommitted,
)

HOT = DeviceView(
    model="H100", gpu_s=600, gpu_pct=90, watched_s=600, held_down_s=480, clock_mhz=1000, best_clock_mhz=1980
)
SHARED = DeviceView(model="H100", gpu_s=600, gpu_pct=99, share_milli=500, at_work=(True, True, True))


def codes(found: Contentment) -> list[RebalanceCode]:
    return [reason.code for reason in found.reasons]


def test_a_gpu_that_heat_holds_down_is_worth_its_part_of_the_best_clock():
    found = contentment(View((HOT,)))
    assert (found.score, codes(found)) == (50, [RebalanceCode.SLOWED])
    assert message_of(found.reasons[0]) == (
        "Heat or its hardware held its GPU down for 80 % of ten minutes: it ran at 1000 MHz, and others of "
        "its model reach 1980 MHz."
    )


@pytest.mark.parametrize(
    "change",
    [
        {"watched_s": None, "held_down_s": None},
        {"watched_s": 200, "held_down_s": 200},
        {"held_down_s": 299},
        {"clock_mhz": None},
        {"best_clock_mhz": None},
        {"gpu_s": None},
        {"gpu_s": 200},
        {"gpu_pct": None},
        {"gpu_pct": 20},
    ],
)
def test_what_is_not_known_or_not_so_is_no_reason(change):
    assert contentment(View((replace(HOT, **change),))) == Contentment()


def test_the_worst_of_several_gpus_counts():
    cool = replace(HOT, held_down_s=0, clock_mhz=1980)
    assert contentment(View((cool, HOT, cool))).score == 50


def test_held_down_by_little_is_content_and_says_nothing():
    found = contentment(View((replace(HOT, clock_mhz=1800),)))
    assert (found.score, found.reasons) == (90, ())


def test_neighbours_count_where_each_was_seen_at_work_on_a_full_gpu():
    found = contentment(View((SHARED,)))
    # A third of the time, of the half that it was given.
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
def test_neighbours_are_no_reason_where_it_gets_its_share_or_nobody_knows(change):
    assert contentment(View((replace(SHARED, **change),))).score == 100


def test_a_node_that_has_given_out_more_than_it_has():
    found = contentment(View((), "n", 32_000, 64_000, 100, 110))
    assert (found.score, codes(found)) == (50, [RebalanceCode.OVERCOMMITTED])
    assert message_of(found.reasons[0]) == "Its node has given out 64 cores and has 32 cores."
    assert contentment(View((), "n", 32_000, 32_000, None, None)) == Contentment()


def test_the_best_clock_is_of_busy_gpus_that_nothing_holds_down():
    cool = replace(HOT, held_down_s=0, clock_mhz=1900)
    idle = replace(cool, gpu_pct=1, clock_mhz=2100)
    assert best_clocks([HOT, cool, idle]) == {"H100": 1900}


def test_a_device_of_which_nothing_is_known_is_as_good_as_any():
    assert (device_score(DeviceView()), device_score(HOT)) == (100, 50)


def maybe(low: int, high: int):
    return st.none() | st.integers(low, high)


devices = st.builds(
    DeviceView,
    model=st.sampled_from(["A", "B"]),
    gpu_s=maybe(0, 660),
    gpu_pct=maybe(0, 100),
    watched_s=maybe(0, 660),
    held_down_s=maybe(0, 660),
    clock_mhz=maybe(0, 2500),
    best_clock_mhz=maybe(0, 2500),
    share_milli=st.integers(1, 1000),
    at_work=st.lists(st.none() | st.booleans(), max_size=4).map(tuple),
)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(devices, max_size=4), maybe(0, 100), maybe(0, 200))
def test_every_score_is_a_percentage_and_below_content_has_a_reason(seen, has, given_out):
    found = contentment(View(tuple(seen), "n", has, given_out))
    assert 0 <= found.score <= 100
    assert bool(found.reasons) == (found.score < CONTENT)
    assert found == contentment(View(tuple(reversed(seen)), "n", has, given_out)) or len(found.reasons) > 1


@settings(max_examples=500, deadline=None, derandomize=True)
@given(st.lists(devices, max_size=4), maybe(0, 100), maybe(0, 200))
def test_where_nothing_is_suspect_nothing_speaks_against_the_place(seen, has, given_out):
    """So nobody who runs there has to be looked at."""
    suspect = is_overcommitted(has, given_out) or any(
        not is_blameless(each, shared=each.share_milli < 1000) for each in seen
    )
    assert suspect or contentment(View(tuple(seen), "n", has, given_out)) == Contentment()


@settings(max_examples=400, deadline=None, derandomize=True)
@given(devices, st.sampled_from(["gpu_s", "gpu_pct", "watched_s", "held_down_s", "clock_mhz"]))
def test_measuring_less_never_makes_anybody_less_content(device, name):
    less = contentment(View((replace(device, **{name: None}),)))
    assert less.score >= contentment(View((device,))).score
