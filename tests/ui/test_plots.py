"""Plots in a real browser: accessible, narrow and wide, both themes, the reader's zone, open tables."""

from __future__ import annotations

import math
import os
import time
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone

from portal.common.events import live
from portal.fleet.inventory import samples
from portal.fleet.inventory.models import AllocatedDevice, Allocation, Device, DeviceHour, DeviceSeries
from portal.workspaces import use_views
from portal.workspaces.models import UsageHour, UsageMinute, Workspace
from tests.factories import local_pool_with, node_info
from tests.inventory.sampled import apply, rollup
from tests.ui.test_browser import DESKTOP, NARROW, PHONE, overflows, too_small, violations
from tests.workspaces.gateway.gateway_support import redis, redis_url

__all__ = ["redis", "redis_url"]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators"),
]
SHOTS = os.environ.get("BERTH_SCREENSHOTS")


@pytest.fixture
def busy(workspace_in, alice, catalog, transactional_db) -> Device:
    """A GPU with work, an idle time, a gap, and somebody who holds it."""
    node = local_pool_with(node_info("gpu-01", gpus=1), slug="lab").nodes.get()
    device = node.devices.get()
    now_s = int(time.time()) // 60 * 60
    minutes = []
    for back in range(60, 0, -1):
        if 30 <= back < 36:
            continue
        busy = 0 if back < 12 else 62 + round(24 * math.sin(back / 3))
        values = {
            "gpu_util_pct": busy, "memory_used_mib": 61_000 if busy else 4200,
            "throttle": 0x20 * (back == 40),
            "power_mw": 90_000 + busy * 5600, "temperature_c": 34 + busy // 2, "sm_clock_mhz": 1700,
        }  # fmt: skip
        seconds = {second: dict(values) for second in range(60)}
        for second in range(0, 60, 9):
            seconds[second]["gpu_util_pct"] = min(100, busy + 9 * (busy > 0))
        minutes.append(rollup(device.uuid, now_s - 60 * back, seconds))
    apply(*minutes, node="gpu-01", pool="lab", now_s=now_s + 1)
    samples.roll_up_hours()
    series = DeviceSeries.objects.get()
    hour_s = now_s // 3600 * 3600
    DeviceHour.objects.bulk_create(
        DeviceHour(
            series=series, start_s=hour_s - 3600 * back, measured_s=3600, gpu_s=3600,
            gpu_pct_s=3600 * (level := max(0, round(55 + 45 * math.sin(back / 9)))),
            gpu_used_s=3600 if level else 0, gpu_max_pct=min(100, level + 12), memory_mib=600 * level + 2000,
            memory_max_mib=700 * level + 2500, power_mw=90_000 + 5600 * level,
            power_max_mw=110_000 + 5700 * level, temperature_c=34 + level // 2,
            temperature_max_c=38 + level // 2, throttle_s=3600, thermal_s=0, power_s=0, slowed_s=0,
        )
        for back in range(2, 600)
        if not 200 < back < 260
    )  # fmt: skip
    allocation = Allocation.objects.create(
        workspace=workspace_in("running", alice), node=node, generation=1, cpu_milli=1, memory_mib=1,
        granted_at=timezone.now() - timedelta(minutes=50),
    )  # fmt: skip
    AllocatedDevice.objects.create(allocation=allocation, device=device)
    return device


@pytest.fixture
def measured(busy) -> Workspace:
    """The workspace on it, two days old and measured since, with a gap."""
    workspace = Workspace.objects.get(allocations__devices__device=busy)
    now_s = int(time.time()) // 60 * 60
    workspace.resources |= {"cpu_milli": 4000, "memory_mib": 8192}
    workspace.created_at = timezone.now() - timedelta(days=2)
    workspace.save(update_fields=["resources", "created_at"])
    UsageMinute.objects.bulk_create(
        UsageMinute(
            workspace=workspace, start_s=now_s - 60 * back, cpu_milli=1400 + round(900 * math.sin(back / 40)),
            memory_mib=2200 + 2 * (1500 - back) // 3,
        )
        for back in range(1, 1500)
        if not 500 < back < 700
    )  # fmt: skip
    UsageHour.objects.bulk_create(
        UsageHour(
            workspace=workspace, start_s=now_s // 3600 * 3600 - 3600 * back, cpu_milli=800,
            cpu_max_milli=2600, memory_mib=2000, memory_max_mib=2600,
        )
        for back in range(26, 49)
    )  # fmt: skip
    return workspace


def test_plots_of_a_workspace_follow_measurements(
    visit, measured, alice, settings, redis_url, redis, monkeypatch
):
    settings.BERTH_REDIS_URL = redis_url
    monkeypatch.setattr(use_views, "SPREAD_MS", 1)
    page = visit(alice, viewport=DESKTOP, color_scheme="light")
    page.goto(f"/workspaces/{measured.pk}/?open=0")
    page.wait_for_selector("#plots canvas >> nth=3")
    titles = [text.split(":")[0] for text in page.locator(".plot-title").all_inner_texts()]
    assert titles == ["CPU", "Memory", "GPU use", "GPU memory"]
    page.click("#span-week")
    page.wait_for_url(f"**/workspaces/{measured.pk}/?span=week")
    for viewport in (DESKTOP, PHONE):
        page.set_viewport_size(viewport)
        assert not overflows(page)
        for theme in ("light", "dark") if SHOTS else ():
            page.emulate_media(color_scheme=theme)
            for span in ("hour", "day", "week", "all"):
                page.goto(f"/workspaces/{measured.pk}/?span={span}")
                page.wait_for_selector("#plots canvas >> nth=3")
                name = f"workspace-{span}-{theme}-{viewport['width']}.png"
                page.locator("section:has(#plots)").screenshot(path=str(Path(SHOTS) / name))
    # A reload keeps the span. New measurements reload the plots alone, and keep an open table.
    page.reload()
    page.wait_for_selector("#span-week[aria-current]" if not SHOTS else "#span-all[aria-current]")
    page.click("#show-cpu")
    UsageMinute.objects.filter(workspace=measured).update(cpu_milli=3990)
    with page.expect_response(lambda response: "/use/" in response.url):
        redis.publish(live.MEASURED_CHANNEL, "measured")
    page.wait_for_function("document.querySelector('#table-cpu').open")
    page.wait_for_function("document.querySelector('#table-cpu').innerText.includes('3.99')")


@pytest.mark.thorough("more pages; `make test` has those of test_browser")
def test_plots_are_accessible(visit, busy, alice):
    path = f"/gpus/devices/{busy.pk}/use/"
    page = visit(alice, timezone_id="Australia/Adelaide", viewport=DESKTOP)
    page.goto(path)
    assert page.locator("figure canvas").count() == 4
    assert page.locator("figcaption").first.inner_text().startswith("GPU use: ")
    first = page.locator("[data-clock]").first
    shown = datetime.fromisoformat(first.get_attribute("data-clock")).astimezone(
        ZoneInfo("Australia/Adelaide")
    )
    assert first.text_content() == f"{shown:%H:%M}" and "Australia/Adelaide" in page.inner_text("[data-zone]")
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        for viewport in (DESKTOP, PHONE, NARROW):
            page.set_viewport_size(viewport)
            for span in ("hour", "month"):
                page.goto(f"{path}?span={span}")
                assert not overflows(page), (viewport, span)
                if SHOTS:
                    name = f"plots-{span}-{theme}-{viewport['width']}.png"
                    page.screenshot(path=str(Path(SHOTS) / name), full_page=True)
        assert not violations(page)
    assert not too_small(page)
    # An open table stays open, where it was, when the part is fetched again; a click changes the span.
    page.goto(path)
    page.click("#show-power")
    with page.expect_response(lambda response: "/use/" in response.url):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_function("document.querySelector('#table-power').open")
    assert page.locator("#table-power tbody tr").count() == 60
    page.click("#span-month")
    page.wait_for_selector("text=Day (UTC)", state="attached")
    assert page.locator("#span-month").get_attribute("aria-current") == "true"


def test_a_plot_is_drawn_and_follows_the_theme(visit, busy, alice):
    page = visit(alice, viewport=DESKTOP, color_scheme="light")
    page.goto(f"/gpus/devices/{busy.pk}/use/")
    colours = """() => {
      const figure = document.querySelector("figure"), canvas = figure.querySelector("canvas");
      const key = getComputedStyle(figure.querySelector(".plot-key.mean")).color.match(/\\d+/g).map(Number);
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      let pixels = 0;
      for (let at = 0; at < data.length; at += 4) {
        const near = key.every((part, band) => Math.abs(data[at + band] - part) < 3);
        if (data[at + 3] === 255 && near) pixels += 1;
      }
      return [key.join(), pixels];
    }"""
    light, drawn = page.evaluate(colours)
    assert drawn > 50, "the line has the colour of its legend"
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    dark, drawn = page.evaluate(colours)
    assert dark != light and drawn > 50
    width = "document.querySelector('figure canvas').clientWidth"
    wide = page.evaluate(width)
    page.set_viewport_size(PHONE)
    page.wait_for_function(f"{width} < {wide} && {width} <= document.querySelector('.plot-area').clientWidth")
    page.hover(".plot-area >> nth=0")
    page.wait_for_function("document.querySelector('.plot-legend .at').textContent")


def test_plots_without_javascript(visit, busy, alice):
    page = visit(alice, java_script_enabled=False)
    page.goto(f"/gpus/devices/{busy.pk}/use/")
    assert page.locator("figure").count() == 4 and "in UTC" in page.inner_text("[data-zone]")
    assert not page.locator(".plot-area").first.is_visible(), "no empty picture"
    page.click("#show-use")
    assert page.locator("#table-use tbody tr").count() == 60
    page.click("#span-month")
    page.wait_for_url("**span=month**")
    assert page.locator("figure").count() == 4
