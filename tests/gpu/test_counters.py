"""Properties of counters: no negative difference, no jump at restarts, no decreasing total."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from provisioning.gpu.counters import NARROW, WIDE, WRAP_MARGIN_BITS, Rate, Total, step

WIDTHS = st.sampled_from([NARROW, WIDE])


@st.composite
def looks(draw: st.DrawFn) -> tuple[int, list[int | None], int]:
    """A counter with wraps and gaps: its width, readings and true count."""
    bits = draw(WIDTHS)
    little = st.integers(0, (1 << (bits - WRAP_MARGIN_BITS)) - 1)
    first = draw(st.integers(0, (1 << bits) - 1))
    seen: list[int | None] = [first]
    now, counted = first, first
    for by in draw(st.lists(little, max_size=20)):
        now, counted = (now + by) % (1 << bits), counted + by
        seen.append(now)
        seen += [None] * draw(st.integers(0, 1))
    return bits, seen, counted


@given(looks())
def test_total_is_correct_over_any_number_of_wraps(look: tuple[int, list[int | None], int]) -> None:
    bits, seen, counted = look
    total = Total(bits)
    told = [total.add_reading(value) for value in seen]
    known = [value for value in told if value is not None]
    assert known[-1] == counted
    assert [value is None for value in told] == [value is None for value in seen]


@given(WIDTHS, st.lists(st.integers(0, (1 << WIDE) - 1) | st.integers(0, 1000) | st.none(), min_size=2))
def test_total_never_decreases(bits: int, seen: list[int | None]) -> None:
    total = Total(bits)
    known = [value for each in seen if (value := total.add_reading(each)) is not None]
    assert all(after >= before for before, after in pairwise(known))


@given(WIDTHS, st.data())
def test_restarted_counter_counts_its_value(bits: int, data: st.DataObject) -> None:
    """From any value except near the end of its range, which looks like a wrap."""
    end = (1 << bits) - (1 << (bits - WRAP_MARGIN_BITS))
    before = data.draw(st.integers(1, end))
    after = data.draw(st.integers(0, before - 1))
    done = step(before, after, bits=bits)
    assert (done.by, done.restarted) == (after, True)


@given(WIDTHS, st.integers(0, (1 << WIDE) + 9), st.integers(0, (1 << WIDE) + 9))
def test_step_is_never_negative_or_near_the_full_range(bits: int, before: int, after: int) -> None:
    done = step(before, after, bits=bits)
    assert done.by >= 0
    assert after >= before or done.by <= max(after, (1 << (bits - WRAP_MARGIN_BITS)) - 1)


@given(looks(), st.floats(0.1, 60))
def test_rate_is_never_negative(look: tuple[int, list[int | None], int], every_s: float) -> None:
    bits, seen, _ = look
    rate = Rate(bits)
    told = [rate.add_reading(value, number * every_s) for number, value in enumerate(seen)]
    assert told[0] is None and all(value is None or value >= 0 for value in told)
