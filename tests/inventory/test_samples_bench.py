"""The capacity benchmark at a small scale: row counts, and its bound."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.db import connection

from bench import samples as bench
from portal.fleet.inventory.models import DeviceHour, DeviceMinute

GUIDE = Path(__file__).parents[2] / "docs/capacity.md"


@pytest.mark.django_db
def test_small_site_stays_within_the_bound(catalog, monkeypatch):
    result = bench.run(devices=6, days=65 / 1440, per_node=4)
    assert DeviceMinute.objects.count() == 6 * 65 and DeviceHour.objects.count() == 6 * 2
    last = result["by_day"][-1]
    assert last["rows"] == {"minute": 390, "hour": 12} and result["database"] == connection.vendor
    assert all(size > 0 for size in last["bytes"].values())
    assert set(DeviceHour.objects.values_list("measured_s", flat=True)) == {3600, 300}
    # A small table has pages that are not full; the bound is about many rows.
    monkeypatch.setattr(bench, "SPARE_BYTES", 40_000)
    assert bench.beyond(result) == []
    monkeypatch.setattr(bench, "SPARE_BYTES", 0)
    monkeypatch.setattr(bench, "BOUND_BYTES", {connection.vendor: {"minute": 10, "hour": 10**6}})
    (problem,) = bench.beyond(result)
    assert "390 minutes take" in problem


def test_guide_states_the_bound():
    text = GUIDE.read_text()
    for vendor, bound in bench.BOUND_BYTES.items():
        row = re.search(rf"\| {vendor} \|(.*)", text, re.IGNORECASE)
        assert row, vendor
        assert [cell.strip() for cell in row[1].split("|")[:3]] == [
            f"{bound['minute']} bytes",
            f"{bound['hour']} bytes",
            f"{bench.site_mb(vendor, 1000, 3, 400) / 1000:.1f} GB",
        ]
    assert "`BOUND_BYTES`" in text and f"{bench.SPARE_BYTES:,} bytes" in text
