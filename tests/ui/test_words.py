"""Formatted numbers, sizes and times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from portal.common import formatting
from portal.common.htmx import local_path
from portal.common.templatetags import berth

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "–"),
        (-3, "0.0 s"),
        (0.04, "0.0 s"),
        (0.36, "0.4 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (3599, "59 min"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (172_800, "2 d"),
        (356_400, "4 d 3 h"),
    ],
)
def test_durations_are_formatted(seconds: float | None, words: str) -> None:
    assert formatting.format_duration(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-60, "0 s"), (9, "9 s"), (59.6, "1 min"), (3600, "1 h"), (3 * 86_400 - 1, "2 d 23 h")],
)
def test_remaining_time_is_formatted(seconds: float, words: str) -> None:
    assert formatting.format_time_left(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (3600, "1 hour"),
        (86_400, "24 hours"),
        (259_200, "3 days"),
        (1_209_600, "14 days"),
        (5400, "1 h 30 min"),
    ],
)
def test_duration_in_a_sentence_is_formatted(seconds: float, words: str) -> None:
    assert formatting.format_span(seconds) == words


@pytest.mark.parametrize(
    ("mib", "words"),
    [
        (None, "–"),
        (0, "0 GiB"),
        (512, "512 MiB"),
        (1536, "1.5 GiB"),
        (32_768, "32 GiB"),
        (1_258_291, "1.2 TiB"),
    ],
)
def test_memory_amounts_are_formatted(mib: int | None, words: str) -> None:
    assert formatting.format_memory(mib) == words


@pytest.mark.parametrize(
    ("milli", "words"),
    [(500, "0.5 cores"), (1000, "1 core"), (2250, "2.25 cores"), (12_672_000, "12 672 cores")],
)
def test_core_counts_are_formatted(milli: int, words: str) -> None:
    assert formatting.format_cores(milli) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "now"),
        (12.5, "12 seconds ago"),
        (61, "a minute ago"),
        (7200, "2 hours ago"),
        (-90_000, "from now"),
    ],
)
def test_time_is_relative_without_javascript(seconds: float, words: str, clock: object) -> None:
    html = berth.when(datetime.now(UTC) - timedelta(seconds=seconds))
    assert words in " ".join(html.split())


def test_time_is_escaped_absolute_and_in_utc() -> None:
    html = berth.when(NOW.astimezone())
    assert 'datetime="2026-11-21T09:00:00+00:00"' in html
    assert 'title="21 Nov 2026, 09:00 UTC"' in html
    assert berth.when(None, "not yet") == "not yet"


def test_bar_is_full_at_ninety_percent_and_capped_at_its_width() -> None:
    assert 'width="50%"' in berth.bar(1, 2)
    assert 'class="bar full"' in berth.bar(9, 10)
    assert 'width="100%"' in berth.bar(20, 10)
    assert 'width="0%"' in berth.bar(1, 0)


def test_labels_are_escaped() -> None:
    assert "<script>" not in berth.icon("x", "<script>")
    assert "<script>" not in berth.badge("<script>", "x")
    assert "<script>" not in berth.state_badge("<script>")


def test_an_unknown_state_shows_its_own_name() -> None:
    assert "Half done" in berth.state_badge("half_done")


def test_size_texts_name_relevant_amounts() -> None:
    size = {
        "cpu_milli": 8000,
        "memory_mib": 65_536,
        "disk_mib": 102_400,
        "nodes": 2,
        "accelerators": {"count": 4, "model": "H100", "share_milli": 1000},
    }
    assert formatting.format_size(size) == "4 × H100, 8 cores, 64 GiB, 100 GiB disk, on each of 2 nodes"
    shared = {
        "cpu_milli": 1000,
        "memory_mib": 512,
        "accelerators": {"count": 1, "model": "", "share_milli": 250},
    }
    assert formatting.format_size(shared) == "1 × GPU (0.25 of one, not isolated), 1 core, 512 MiB"


@pytest.mark.parametrize(
    ("accelerators", "words"),
    [
        ({"count": 2, "model": "H100", "within": "numa"}, "2 × H100 on one NUMA node"),
        ({"count": 4, "model": "", "within": "island"}, "4 × GPU in one NVLink island"),
        ({"count": 2, "model": "H100", "within": "node"}, "2 × H100"),
        ({"count": 1, "model": "H100", "within": "numa"}, "1 × H100"),
        ({"count": 1, "model": "", "mig_profile": "1g.10gb"}, "1 × MIG 1g.10gb"),
    ],
)
def test_size_texts_name_locality_and_profile(accelerators, words) -> None:
    size = {"cpu_milli": 1000, "memory_mib": 1024, "accelerators": accelerators}
    assert formatting.format_size(size) == f"{words}, 1 core, 1 GiB"


@pytest.mark.parametrize(
    ("address", "goes"),
    [
        ("/teams/?q=a#b", "/teams/?q=a#b"),
        ("", "/home"),
        ("teams", "/home"),
        ("//evil.example", "/home"),
        ("/\\evil.example", "/home"),
        ("///evil.example", "/home"),
        ("https://evil.example/", "/home"),
        ("/a\r\nSet-Cookie: x", "/home"),
        ("\t//evil.example", "/home"),
    ],
)
def test_return_path_stays_on_the_portal(address: str, goes: str) -> None:
    assert local_path(address, default="/home") == goes
