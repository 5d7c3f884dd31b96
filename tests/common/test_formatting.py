"""Formatting and parsing of amounts and times."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from portal.common.formatting import (
    format_amount,
    format_clock,
    format_input,
    format_number,
    format_resource,
    format_resource_amount,
    format_unit,
    parse_input,
    units_per_whole,
)


@pytest.mark.parametrize(
    ("resource", "amount", "words"),
    [
        ("gpu:h100", 1500, "1.5 × H100"),
        ("gpu:simulated-h100", 1000, "1 × Simulated H100"),
        ("mig:1g.10gb", 2000, "2 × MIG 1g.10gb"),
        ("gpu", 1000, "1 GPU"),
        ("gpu", 500, "0.5 GPUs"),
        ("cpu_milli", 1000, "1 CPU core"),
        ("cpu_milli", 12_672_000, "12\u202f672 CPU cores"),
        ("memory_mib", 2048, "2 GiB memory"),
        ("simulated_cpu_milli", 4000, "4 simulated CPU cores"),
        ("memory_mib", 81_559, "79.6 GiB memory"),
        ("memory_mib", 512, "512 MiB memory"),
        ("workspaces", 1, "1 workspace"),
        ("gpu_hours", 43_200_000, "12 GPU-hours"),
        ("gpu_hours", -5_400_000, "-1.5 GPU-hours"),
    ],
)
def test_amounts_with_resource_name(resource: str, amount: int, words: str) -> None:
    assert format_resource_amount(resource, amount) == words


def test_amounts_without_resource_name() -> None:
    assert format_amount("gpu:h100", 1500) == "1.5"
    assert format_amount("gpu_hours", 43_200_000) == "12 h"
    assert format_amount("disk_mib", 0) == "0 GiB"
    assert format_number(1234.5, 1) == "1\u202f234.5" and format_number(3.0, 2) == "3"


def test_names_and_units() -> None:
    assert format_resource("simulated_cpu_milli") == "Simulated CPU cores"
    assert format_resource("simulated_memory_mib") == "Simulated memory"
    assert [format_unit(name) for name in ("gpu:h100", "mig:1g.10gb", "cpu_milli", "disk_mib")] == [
        "GPUs",
        "MIG instances",
        "cores",
        "GiB",
    ]


@pytest.mark.parametrize("resource", ["gpu:h100", "memory_mib", "workspaces", "cpu_milli"])
@pytest.mark.parametrize("amount", [0, 1, 81_559, 12_672_001])
def test_field_value_parses_to_the_same_amount(resource: str, amount: int) -> None:
    units = units_per_whole(resource)
    assert parse_input(format_input(resource, amount), units) == amount
    assert parse_input(format_number(1234567), 1) == 1_234_567, "and so does what a page shows"


@pytest.mark.parametrize("text", ["", "x", "-1", "1e30", "NaN", "Infinity", "1" * 40])
def test_invalid_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no amount"):
        parse_input(text, 1000)


def test_time_of_another_day_includes_the_date() -> None:
    now = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)
    assert format_clock(now.replace(hour=16, minute=40), now) == "16:40 UTC"
    assert format_clock(now.replace(day=3), now) == "3 Nov 09:00 UTC"
