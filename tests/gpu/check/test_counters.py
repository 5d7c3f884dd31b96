"""Differences of counters at exact values; general properties are in `tests/gpu/test_counters.py`."""

from __future__ import annotations

import pytest

from provisioning.gpu.check.health import changes
from provisioning.gpu.counters import NARROW, WIDE, CounterStep, Rate, Total, step

NARROW_END, WIDE_END = 1 << 32, 1 << 64


@pytest.mark.parametrize(
    ("before", "after", "bits", "expected"),
    [
        (0, 0, WIDE, CounterStep(0)),
        (5, 5, WIDE, CounterStep(0)),
        (5, 9, NARROW, CounterStep(4)),
        (5, 4, WIDE, CounterStep(4, restarted=True)),
        (5, 0, NARROW, CounterStep(0, restarted=True)),
        (NARROW_END - 1, 0, NARROW, CounterStep(1)),
        (NARROW_END - 1, 0, WIDE, CounterStep(0, restarted=True)),
        (WIDE_END - 2, 1, WIDE, CounterStep(3)),
        # The largest increment over a wrap, and one more.
        (NARROW_END - 1, (1 << 24) - 2, NARROW, CounterStep((1 << 24) - 1)),
        (NARROW_END - 1, (1 << 24) - 1, NARROW, CounterStep((1 << 24) - 1, restarted=True)),
        (WIDE_END - 1, (1 << 56) - 2, WIDE, CounterStep((1 << 56) - 1)),
        (WIDE_END - 1, (1 << 56) - 1, WIDE, CounterStep((1 << 56) - 1, restarted=True)),
        # Wider than assumed.
        (NARROW_END + 7, 7, NARROW, CounterStep(7, restarted=True)),
        (NARROW_END + 7, 8, NARROW, CounterStep(1)),
        (NARROW_END + 9, 7, NARROW, CounterStep(7, restarted=True)),
    ],
)
def test_difference_of_two_readings(before: int, after: int, bits: int, expected: CounterStep) -> None:
    assert step(before, after, bits=bits) == expected


def test_counter_widths() -> None:
    assert (NARROW, WIDE) == (32, 64)
    assert step(WIDE_END - 1, 1) == CounterStep(2)
    assert (Total().add_reading(WIDE_END - 1), Rate().add_reading(1, 1.0)) == (WIDE_END - 1, None)


def test_total_starts_at_the_first_reading_and_continues() -> None:
    total = Total(NARROW)
    told = [total.add_reading(value) for value in (NARROW_END - 3, NARROW_END - 1, 2, None, 5, 1)]
    assert told == [NARROW_END - 3, NARROW_END - 1, NARROW_END + 2, None, NARROW_END + 5, NARROW_END + 6]


def test_rate_between_readings() -> None:
    rate = Rate(NARROW)
    looks = ((10, 1.0), (30, 3.0), (NARROW_END - 4, 4.0), (4, 6.0), (3, 7.0), (9, 7.0), (9, 8.0))
    told = [rate.add_reading(value, at_s) for value, at_s in (*looks, (None, 9.0), (9, 10.0))]
    assert told == [None, 10, NARROW_END - 34, 4, None, None, 0, None, None]


@pytest.mark.parametrize(
    ("before", "after", "grown"),
    [(NARROW_END - 1, 8, "9"), (NARROW_END - 1, 7, ""), (NARROW_END // 2, 9, "9"), (NARROW_END // 2, 8, "")],
)
def test_replays_during_a_check_with_wrap_and_restart(before: int, after: int, grown: str) -> None:
    found = changes({"pcie_replays": before}, {"pcie_replays": after})
    assert [each.text for each in found] == ([f"The PCIe link replayed {grown} packets."] if grown else [])


def test_errors_during_a_check_with_restart() -> None:
    """A 64-bit counter does not wrap at 32 bits."""
    found = changes({"ecc_corrected": NARROW_END - 1}, {"ecc_corrected": 65})
    assert [each.text for each in found] == ["65 ECC errors were corrected during the check."]
    assert changes({"ecc_corrected": NARROW_END - 1}, {"ecc_corrected": 64}) == []
