"""Plots of devices: titles, values with gaps, tables with equal values, small pages."""

from __future__ import annotations

import gzip
import re
from datetime import UTC, datetime, timedelta

import pytest
from django.urls import reverse

from portal.common import svg
from portal.common.plots import Plot
from portal.fleet.inventory import samples
from portal.fleet.inventory.models import Device, DeviceHour, DeviceSeries, Node, Pool
from portal.fleet.inventory.series import HOUR, MONTH, DeviceAllocation, Series, SeriesPoint
from portal.web.fleet.presenters.device_plots import device_plots
from provisioning.gpu.samples import Sample
from tests.factories import local_pool_with, node_info
from tests.inventory.sampled import NOON, apply, rollup

UUID = "GPU-node-1-0"


def device(**fields) -> Device:
    node = Node(name="node-1", pool=Pool(slug="p", name="P", driver="local"))
    return Device(**{"node": node, "uuid": UUID, "model": "H100", "memory_mib": 81_920, **fields})


def point(number: int, percent: int | None = 50, **fields) -> SeriesPoint:
    if percent is not None:
        fields = {
            "gpu_pct": float(percent), "gpu_max_pct": min(100, percent + 10), "gpu_p95_pct": percent,
            "gpu_s": 60, "gpu_used_s": 60 if percent else 0, **fields,
        }  # fmt: skip
    return SeriesPoint(NOON + 60 * number, 60, **fields)


def hour(points: dict[int, SeriesPoint], **fields) -> Series:
    return Series(HOUR, NOON, 60, tuple(points.get(number) for number in range(60)), **fields)


def drawn(series: Series, key: str = "use", held=(), **fields) -> Plot:
    return {plot.key: plot for plot in device_plots(device(**fields), series, held)}[key]


# --- findings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("percents", "title"),
    [
        ([50] * 30 + [0] * 10, "GPU use: 38 % on average, idle for 10 min"),
        ([100] * 60, "GPU use: 100 % on average, never idle"),
        ([0] * 60, "GPU use: 0 % in 1 h"),
        ([0] * 3, "GPU use: 0 % in 3 min"),
        ([1] + [0] * 9, "GPU use: under 1 % on average, idle for 9 min"),
        ([None] * 5, "GPU use: not measured in the last hour"),
    ],
)
def test_title_summarizes_gpu_use(percents, title):
    series = hour({number: point(number, percent) for number, percent in enumerate(percents)})
    assert drawn(series).title == title


def test_titles_of_other_plots():
    hot = {
        "memory_mib": 20_480, "memory_max_mib": 40_960, "power_mw": 400_000, "power_max_mw": 690_400,
        "temperature_c": 60, "temperature_max_c": 83, "throttle_s": 60, "thermal_s": 30, "power_s": 90,
    }  # fmt: skip
    series = hour({0: point(0, **hot)})
    titles = [plot.title for plot in device_plots(device(), series)]
    assert titles[1:] == [
        "GPU memory: up to 40 of 80 GiB, 20 GiB on average",
        "Power: 400 W on average, up to 690 W; throttled by power limits for 1 min 30 s",
        "Temperature: up to 83 °C, throttled by heat for 30 s",
    ]
    calm = hour({0: point(0, **{**hot, "thermal_s": 0, "power_s": 0})})
    titles = [plot.title for plot in device_plots(device(), calm)]
    assert titles[2:] == [
        "Power: 400 W on average, up to 690 W",
        "Temperature: up to 83 °C, no heat throttling",
    ]
    untold = hour({0: point(0, **{**hot, "throttle_s": None, "thermal_s": None})})
    assert "heat throttling not reported" in drawn(untold, "temperature").title
    nothing = device_plots(device(memory_mib=0), hour({0: point(0)}))
    assert all("not measured" in plot.title for plot in nothing[1:])


def test_no_samples_give_no_plots():
    assert device_plots(device(), hour({})) == []


# --- values ---------------------------------------------------------------------------------------


def test_gaps_are_not_interpolated():
    series = hour({number: point(number) for number in [*range(10), *range(20, 30), 40]})
    plot = drawn(series)
    mean, peak = plot.lines
    measured = {*range(10), *range(20, 30), 40}
    assert [place for place, value in enumerate(mean.values) if value is not None] == sorted(measured)
    assert [value is None for value in peak.values] == [value is None for value in mean.values]
    assert (plot.start_s, plot.step_s, plot.top) == (NOON + 30, 60, 100)
    assert [row.texts[0] for row in plot.rows[:20]] == [""] * 19 + ["50 %"], "the newest first"
    assert len(plot.rows) == 60 and plot.has_gaps


def test_missing_metric_is_a_gap_in_its_plot_only():
    series = hour({0: point(0, power_mw=1000, power_max_mw=1000), 1: point(1)})
    assert [value is None for value in drawn(series, "power").lines[0].values[:2]] == [False, True]
    assert None not in drawn(series).lines[0].values[:2]
    assert not drawn(series, "memory").measured


def test_month_has_few_points_weighted_by_measured_time():
    points = [SeriesPoint(NOON + 3600 * n, 3600 if n % 4 else 60, gpu_pct=float(n % 4), gpu_max_pct=n % 4)
              for n in range(720)]  # fmt: skip
    plot = device_plots(device(), Series(MONTH, NOON, 3600, tuple(points)))[0]
    mean, peak = plot.lines
    assert (len(mean.values), plot.step_s, plot.start_s) == (180, 4 * 3600, NOON + 2 * 3600)
    assert mean.values[0] == pytest.approx(6 * 3600 / (3 * 3600 + 60)) and peak.values[0] == 3
    assert str(mean.name) == "mean of 4 hours" and len(plot.rows) in (30, 31) and plot.dated


def test_concurrent_holders_count_once():
    def at(minute: int) -> datetime:
        return datetime.fromtimestamp(NOON, UTC) + timedelta(minutes=minute)

    device_id = team = device().pk
    held = [
        DeviceAllocation(device_id, team, 500, at(-90), at(15)),
        DeviceAllocation(device_id, team, 500, at(10), at(30)),
        DeviceAllocation(device_id, team, 1000, at(45), None),
        DeviceAllocation(device_id, team, 1000, at(-20), at(-10)),
    ]
    assert drawn(hour({0: point(0)}), held=held).held == ((NOON, NOON + 1800), (NOON + 2700, NOON + 3600))
    assert drawn(hour({0: point(0)}), "power", held).held == ()


def test_newest_sample_is_shown():
    live = Sample(NOON + 3690.0, gpu_util_pct=43, memory_used_mib=40_960, temperature_c=None)
    found = device_plots(device(), hour({0: point(0)}, live=live))
    assert [plot.now for plot in found] == ["43 %", "40 GiB", "", ""]
    assert device_plots(device(), hour({}, live=live))[0].title.startswith("GPU use: not measured")


def test_power_axis_ends_above_the_limit():
    assert drawn(hour({0: point(0)}), "power", facts={"power_limit_mw": 700_000}).top == 800


@pytest.mark.parametrize(
    ("value", "top"),
    [(0, 1), (1, 1), (1.1, 2), (250, 300), (690, 800), (700.1, 800), (810, 1000), (0.3, 0.3)],
)
def test_axes_end_at_round_numbers(value, top):
    assert svg.round_up(value) == pytest.approx(top) if value else svg.round_up(value) > 0


# --- sparklines -----------------------------------------------------------------------------------


def test_sparkline_shows_the_floor_and_marks_values_below():
    good = svg.sparkline([4100.0, None, 4300.0, 4200.0], floor=4000, unit="GB/s", name="Copy")
    assert good is not None and not good.below and good.floor_y is not None and good.last is not None
    assert good.line.count("M") == 2 and good.last[1] < good.floor_y, "above the floor is higher up"
    assert good.label == "Copy: 4\u202f100 to 4\u202f200 GB/s in 3 values, floor 4\u202f000"
    bad = svg.sparkline([4100.0, 3900.0], floor=4000)
    assert bad is not None and bad.below and bad.last is not None and bad.floor_y is not None
    assert bad.last[1] > bad.floor_y and bad.label.endswith("below the floor 4\u202f000")
    one = svg.sparkline([7])
    assert one is not None and one.line.endswith("h0") and one.label == "Trend: 7"
    assert svg.sparkline([]) is None and svg.sparkline([None]) is None
    flat = svg.sparkline([0, 0, 0], floor=0)
    assert flat is not None and not flat.below


# --- the page -------------------------------------------------------------------------------------


@pytest.fixture
def real(catalog, db) -> Device:
    local_pool_with(node_info(gpus=1))
    return Device.objects.get()


def url_of(found: Device, span: str = "hour") -> str:
    return reverse("fleet:device-use", args=[found.pk]) + f"?span={span}"


FULL = {"memory_used_mib": 31_234, "power_mw": 456_789, "temperature_c": 66, "throttle": 0}


def filled(minutes: int) -> int:
    """Create minutes up to now with varying values; return the end of the last."""
    now_s = int(datetime.now(UTC).timestamp()) // 60 * 60
    apply(
        *(
            rollup(
                UUID, now_s - 60 * (back + 1),
                {
                    second: {
                        name: value * (7 + (back * 37 + second) % 13) // 20 for name, value in FULL.items()
                    } | {"gpu_util_pct": (back * 31 + second) % 101}
                    for second in range(0, 60, 7)
                },
            )
            for back in range(minutes)
        )
    )  # fmt: skip
    samples.roll_up_hours()
    return now_s


def test_full_page_and_htmx_fragment(client, bob, real):
    client.force_login(bob)
    filled(30)
    page = client.get(url_of(real))
    assert page.status_code == 200 and "<html" in page.text and page.text.count("data-plot=") == 4
    part = client.get(url_of(real), headers={"HX-Request": "true", "HX-Target": "plots"})
    assert "<html" not in part.text and part.text.count("<figure") == 4
    assert "every 30s" in part.text and 'aria-current="true">Last hour' in part.text
    assert not re.search(r"\sstyle=|<script|<style", part.text)
    assert "up to the maximum" in part.text
    assert client.get(url_of(real, "year")).text.count("<figure") == 4, "another span is the hour"
    assert client.get(url_of(Device())).status_code == 404


def test_htmx_fragments_are_small(client, bob, real):
    client.force_login(bob)
    now_s = filled(61)
    series = DeviceSeries.objects.get()
    DeviceHour.objects.bulk_create(
        [
            DeviceHour(
                series=series, start_s=now_s // 3600 * 3600 - 3600 * back, measured_s=3600, gpu_s=3600,
                gpu_pct_s=back * 7919 % 360_000, gpu_used_s=back * 31 % 3600, gpu_max_pct=100 - back % 20,
                memory_mib=back * 7907 % 80_000, memory_max_mib=80_000 - back % 900,
                power_mw=back * 7901 % 600_000, power_max_mw=700_000 - back % 5000,
                temperature_c=30 + back * 7 % 50, temperature_max_c=85 - back % 9,
            )
            # 61 minutes end in this hour; within a minute of its beginning they began two hours before it.
            for back in range(3, 720)
        ]
    )  # fmt: skip
    for span in (HOUR, MONTH):
        part = client.get(url_of(real, span), headers={"HX-Request": "true", "HX-Target": "plots"})
        assert part.text.count("data-plot=") == 4
        size = len(gzip.compress(part.content, 6))
        assert size < 15_000, f"{span}: {size} bytes"


def test_page_has_a_bounded_query_count(client, bob, real, django_assert_max_num_queries):
    client.force_login(bob)
    filled(2)
    client.get(url_of(real))
    with django_assert_max_num_queries(8):
        client.get(url_of(real), headers={"HX-Request": "true", "HX-Target": "plots"})


def test_missing_samples_are_explained(client, bob, real, pool):
    client.force_login(bob)
    assert "No samples in the last hour" in client.get(url_of(real)).text
    assert "No samples in the last 30 days" in client.get(url_of(real, "month")).text
    simulated = Device.objects.filter(node__pool=pool).first()
    assert "Simulated GPUs are not measured" in client.get(url_of(simulated)).text
