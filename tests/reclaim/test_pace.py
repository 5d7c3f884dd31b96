"""Pace of work compared with other places: only reports of the same work, and only over a sufficient time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portal.reclaim.engine import pace
from portal.reclaim.engine.pace import MAX_KEPT, Location, Pace, has_to_be_written, slow_work, update_paces
from portal.reclaim.pacing import _encode, parse_paces
from tests.suite.choice import examples

HERE = Location("n0", frozenset({"g0"}), "kind")
THERE = Location("n1", frozenset({"g1"}), "kind")
START = 1_800_000_000.0


def walk(steps, before=None, at_s=START) -> tuple[dict[str, Pace], float]:
    """Apply minutes of (place, rates) in sequence."""
    kept = dict(before or {})
    for place, told in steps:
        kept = update_paces(kept, told, place, at_s)
        at_s += 60
    return kept, at_s - 60


def minutes(count: int, place: Location, **told: float):
    return [(place, told)] * count


def test_ten_minutes_slower_than_elsewhere_is_slow():
    steps = [*minutes(3, HERE, tokens=100), *minutes(11, THERE, tokens=60)]
    for length in range(len(steps)):
        kept, at_s = walk(steps[:length])
        assert slow_work(kept, at_s) is None
    kept, at_s = walk(steps)
    name, found = slow_work(kept, at_s)
    assert (name, found.percent, found.rate, found.elsewhere.rate, found.elsewhere.node) == (
        "tokens", 60, 60, 100, "n0"
    )  # fmt: skip
    # A rate no longer reported is unknown.
    assert slow_work(kept, at_s + 2 * pace.MAX_GAP_S + 1) is None
    assert slow_work(kept, at_s - 1) is None


@pytest.mark.parametrize(
    "steps",
    [
        # At the same place at another time: the job does something else.
        [*minutes(3, HERE, tokens=100), *minutes(20, HERE, tokens=10)],
        # Another name, or other amounts of resources.
        [*minutes(3, HERE, tokens=100), *minutes(20, THERE, steps=10)],
        [*minutes(3, replace(HERE, kind="twice"), tokens=100), *minutes(20, THERE, tokens=10)],
        # Too small a difference.
        [*minutes(3, HERE, tokens=100), *minutes(20, THERE, tokens=80)],
        # One of two counters continues as before.
        [*minutes(3, HERE, tokens=100, steps=5), *minutes(20, THERE, tokens=10, steps=5)],
        # Back at the best place.
        [*minutes(3, HERE, tokens=100), *minutes(3, THERE, tokens=90), *minutes(20, HERE, tokens=91)],
        # Only sporadically.
        [*minutes(3, HERE, tokens=100), *(minutes(9, THERE, tokens=50) + minutes(1, THERE, tokens=99)) * 3],
    ],
)
def test_other_differences_are_not_slow_work(steps):
    kept, at_s = walk(steps)
    assert slow_work(kept, at_s) is None


def test_best_of_several_places_is_the_reference():
    third = Location("n2", frozenset({"g2"}), "kind")
    for one, two in ((100.0, 70.0), (70.0, 100.0)):
        steps = [*minutes(3, HERE, tokens=one), *minutes(3, THERE, tokens=two)]
        kept, at_s = walk([*steps, *minutes(11, third, tokens=60)])
        assert slow_work(kept, at_s)[1].percent == 60


def test_return_to_the_first_place_is_compared_with_the_second():
    steps = [*minutes(3, HERE, tokens=50), *minutes(3, THERE, tokens=100), *minutes(11, HERE, tokens=50)]
    kept, at_s = walk(steps)
    assert slow_work(kept, at_s)[1].elsewhere.node == "n1"


def test_gap_in_observation_resets_the_pace():
    kept, at_s = walk([*minutes(3, HERE, tokens=100), *minutes(11, THERE, tokens=60)])
    later = at_s + pace.MAX_GAP_S + 1
    assert slow_work(update_paces(kept, {"tokens": 60.0}, THERE, later), later) is None


@pytest.mark.parametrize("days", [8, -1])
def test_old_or_future_best_pace_is_dropped(days):
    kept, at_s = walk(minutes(3, HERE, tokens=100))
    kept, at_s = walk(minutes(20, THERE, tokens=60), kept, at_s + days * 86_400)
    assert slow_work(kept, at_s) is None and kept["tokens"].elsewhere is None


def test_unchanged_paces_are_not_written():
    kept, at_s = walk(minutes(3, HERE, tokens=100))
    for rate in (100.0, 99.0, 60.0, 100.5):
        assert not has_to_be_written(kept, update_paces(kept, {"tokens": rate}, HERE, at_s + 60))
    for after in ({"tokens": 102.0}, {"tokens": 100.0, "steps": 1.0}):
        assert has_to_be_written(kept, update_paces(kept, after, HERE, at_s + 60))
    slow, at_s = walk(minutes(1, THERE, tokens=60), kept, at_s + 60)
    assert has_to_be_written(slow, update_paces(slow, {"tokens": 60.0}, THERE, at_s + 60))
    fast = update_paces(slow, {"tokens": 100.0}, THERE, at_s + 60)
    assert has_to_be_written(slow, fast)
    assert not has_to_be_written(fast, update_paces(fast, {"tokens": 99.5}, THERE, at_s + 120))


names = st.sampled_from(["a", "b", "c", *(f"n{number}" for number in range(20))])
places = st.sampled_from(
    [HERE, THERE, Location("n0", frozenset({"g2"}), "kind"), Location("n2", frozenset(), "other")]
)
told = st.dictionaries(names, st.floats(1e-6, 1e15), min_size=1, max_size=4)
walks = st.lists(
    st.tuples(places, told, st.sampled_from([60, 60, 60, 60, 200, 9 * 86_400, -3600])), max_size=30
)


@settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(walks)
def test_stored_paces_are_bounded_and_round_trip(steps):
    kept: dict[str, Pace] = {}
    at_s = START
    for place, rates, gap in steps:
        kept = update_paces(kept, rates, place, at_s)
        assert rates.keys() <= kept.keys() and len(kept) <= MAX_KEPT
        assert parse_paces(_encode(kept).decode()) == kept
        assert len(_encode(kept)) < 8000
        for name in rates:
            found = kept[name]
            assert found.here.rate * pace.BETTER_FACTOR >= found.rate
            if found.elsewhere is not None:
                assert (found.elsewhere.node, found.elsewhere.devices) != (place.node, place.devices)
        slow = slow_work(kept, at_s)
        if slow is not None:
            assert slow[1].percent < pace.SLOW_PCT
            assert at_s - slow[1].slow_since_s >= pace.SLOW_FOR_S
        at_s += gap


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(st.lists(st.tuples(places, st.floats(0.9, 1.0)), min_size=1, max_size=60), st.floats(1e-3, 1e12))
def test_equal_pace_everywhere_is_never_slow(steps, rate):
    kept, at_s = walk([(place, {"tokens": rate * noise}) for place, noise in steps])
    assert slow_work(kept, at_s) is None


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(walks, walks)
def test_paces_of_different_names_are_independent(steps, others):
    """Paces are independent, except that one normal pace keeps the work from being slow."""
    alone: dict[str, Pace] = {}
    together: dict[str, Pace] = {}
    at_s = START
    for (place, _rates, gap), (_place, more, _gap) in zip(steps, others, strict=False):
        beside = {name: rate for name, rate in list(more.items())[:3] if name != "mine"}
        alone = update_paces(alone, {"mine": 5.0}, place, at_s)
        together = update_paces(together, {"mine": 5.0, **beside}, place, at_s)
        one, two = alone["mine"], together["mine"]
        assert (one.rate, one.here, one.elsewhere) == (two.rate, two.here, two.elsewhere)
        assert two.slow_since_s is None or one.slow_since_s is not None
        at_s += gap
