"""Use of workspaces over time: readings, minutes and hours, spans, limits, gaps, page, REST."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.common.events import live
from portal.fleet.inventory.models import AllocatedDevice, Allocation, Device, DeviceMinute, DeviceSeries
from portal.reclaim import observing
from portal.workspaces import results, usage_history, usage_plots, usage_samples
from portal.workspaces.models import UsageHour, UsageMinute, Workspace
from portal.workspaces.usage_history import Span, UsagePoint
from portal.workspaces.usage_samples import UsageReading
from tests.factories import WorkspaceFactory, local_pool_with, node_info

pytestmark = pytest.mark.django_db
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
NOON_S = int(NOON.timestamp())


@pytest.fixture
def device(db: None) -> Device:
    return local_pool_with(node_info(gpus=1)).nodes.get().devices.get()


@pytest.fixture
def workspace(team, bob, device) -> Workspace:
    """Running, and created 100 days before noon."""
    row = WorkspaceFactory(team=team, owner=bob, state="running", generation=1, pool=device.node.pool)
    return aged(row, timedelta(days=100))


def aged(workspace: Workspace, age: timedelta) -> Workspace:
    Workspace.objects.filter(pk=workspace.pk).update(created_at=NOON - age)
    workspace.refresh_from_db()
    return workspace


def read(workspace: Workspace, at_s: float, *, previous_s: float | None = None, cpu_milli: int | None = 500):
    return UsageReading(
        workspace.pk, at_s, previous_s, cpu_milli, memory_mib=1024, gpu_pct=None, gpu_memory_mib=None
    )


def minutes(workspace: Workspace, cpu_by_start: dict[int, int | None]) -> None:
    UsageMinute.objects.bulk_create(
        UsageMinute(workspace=workspace, start_s=start_s, cpu_milli=cpu, memory_mib=cpu)
        for start_s, cpu in cpu_by_start.items()
    )


def cpu_of(workspace: Workspace, span: Span, now: datetime = NOON) -> list[tuple[float, float]]:
    points = usage_history.usage_of(workspace, span, now).points
    return [(point.cpu_milli, point.cpu_max_milli) for point in points if point.cpu_milli is not None]


# --- What is stored -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("previous_s", "at_s", "starts"),
    [
        (None, 130, [120]),
        (70, 130, [120]),
        (119, 121, [120]),
        (119, 245, [120, 180, 240]),
        (121, 179, []),
        (10, 1000, [960]),
        (500, 130, [120]),
    ],
)
def test_a_reading_covers_the_minutes_since_the_previous_one(workspace, previous_s, at_s, starts):
    """Late observations leave no gap, silent agents do."""
    usage_samples.record([read(workspace, at_s, previous_s=previous_s)])
    assert list(UsageMinute.objects.order_by("start_s").values_list("start_s", flat=True)) == starts


def test_readings_are_stored_once_by_one_statement(workspace, monkeypatch):
    published = []
    monkeypatch.setattr(live, "publish_measured", lambda: published.append(True))
    usage_samples.record([read(workspace, 60, cpu_milli=100)])
    with CaptureQueriesContext(
        connection,
    ) as queries:
        usage_samples.record(
            [read(workspace, 60, cpu_milli=900), read(workspace, 120), read(Workspace(pk=uuid4()), 60)]
        )
    assert sum("INSERT" in query["sql"] for query in queries) == 1
    assert list(UsageMinute.objects.filter(workspace=workspace).values_list("start_s", "cpu_milli")) == [
        (60, 100), (120, 500),
    ]  # fmt: skip
    nothing = UsageReading(workspace.pk, 180, 120, None, None, None, None)
    assert usage_samples.record([nothing]) == 0 and len(published) == 2


def test_minutes_become_hours_after_a_day_and_hours_expire(workspace):
    old_s = NOON_S - 25 * 3600
    minutes(workspace, {old_s: 100, old_s + 60: 300, NOON_S - 60: 700})
    minutes(WorkspaceFactory(), {old_s: 5})
    UsageHour.objects.create(workspace=workspace, start_s=NOON_S - 91 * 86_400)
    assert usage_samples.roll_up(now_s=NOON_S) == 2
    assert usage_samples.roll_up(now_s=NOON_S) == 0, "idempotent"
    (hour,) = UsageHour.objects.filter(workspace=workspace)
    assert (hour.start_s, hour.cpu_milli, hour.cpu_max_milli, hour.gpu_pct) == (old_s, 200, 300, None)
    assert list(UsageMinute.objects.values_list("start_s", flat=True)) == [NOON_S - 60]


def test_an_interrupted_roll_up_loses_nothing(workspace, monkeypatch):
    minutes(workspace, {NOON_S - 48 * 3600: 100})
    with monkeypatch.context() as patched, pytest.raises(RuntimeError):
        patched.setattr(UsageMinute.objects, "filter", _fail_on_delete(UsageMinute.objects.filter))
        usage_samples.roll_up(now_s=NOON_S)
    assert UsageMinute.objects.count() == 1 and not UsageHour.objects.exists()


def _fail_on_delete(original):
    def filtered(**conditions):
        if "start_s__gte" in conditions:
            raise RuntimeError("killed")
        return original(**conditions)

    return filtered


def test_cpu_is_the_difference_of_two_reports(workspace, clock):
    for cpu_seconds in (10.0, 100.0, 5.0):
        clock.shift(60)
        activity = {"cpu_seconds": cpu_seconds, "rss_mib": 900}
        results.agent_heartbeat(workspace_id=workspace.pk, generation=1, activity=activity)
        observing.run()
    assert [(row.cpu_milli, row.memory_mib) for row in UsageMinute.objects.order_by("start_s")] == [
        (None, 900), (1500, 900), (None, 900),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "stored"),
    [({}, (None, None)), ({"share_milli": 500}, (30, None)), ({"mig_profile": "1g.10gb"}, (30, 600))],
)
def test_agents_measure_shares_and_mig_instances_only(workspace, kind, stored):
    resources = workspace.resources
    resources["accelerators"] |= {"count": 2, **kind}
    Workspace.objects.filter(pk=workspace.pk).update(resources=resources)
    gpus = [{"utilization_percent": percent, "memory_used_mib": 300} for percent in (20, 40)]
    results.agent_heartbeat(workspace_id=workspace.pk, generation=1, activity={"rss_mib": 1, "gpus": gpus})
    observing.run()
    assert UsageMinute.objects.values_list("gpu_pct", "gpu_memory_mib").get() == stored


def test_forged_gpu_memory_is_not_stored_and_affects_no_other_workspace(workspace):
    workspace.resources["accelerators"] |= {"count": 2, "mig_profile": "1g.10gb"}
    workspace.save()
    gpus = [{"utilization_percent": 1, "memory_used_mib": 2**31 - 1}] * 2
    results.agent_heartbeat(workspace_id=workspace.pk, generation=1, activity={"rss_mib": 1, "gpus": gpus})
    observing.run()
    assert UsageMinute.objects.values_list("memory_mib", "gpu_pct", "gpu_memory_mib").get() == (1, 1, None)


# --- What is shown --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "span", "step_s", "points"),
    [
        (timedelta(minutes=5), Span.ALL, 60, 6),
        (timedelta(days=100), Span.HOUR, 60, 61),
        (timedelta(days=100), Span.DAY, 600, 145),
        (timedelta(days=100), Span.WEEK, 3600, 169),
        (timedelta(days=2), Span.ALL, 3600, 49),
        (timedelta(days=100), Span.ALL, 43_200, 181),
    ],
)
def test_points_are_bounded_and_begin_with_the_workspace(workspace, age, span, step_s, points):
    usage = usage_history.usage_of(aged(workspace, age), span, NOON)
    assert usage.step_s == step_s
    # Points that may still arrive are omitted only if something was measured.
    assert len(usage.points) == points and usage.start_s <= NOON_S - min(age.total_seconds(), 3600)


def test_spans_add_up_minutes_and_hours(workspace):
    UsageHour.objects.create(
        workspace=workspace, start_s=NOON_S - 30 * 3600, cpu_milli=100, cpu_max_milli=400
    )
    minutes(workspace, {NOON_S - 7200: 200, NOON_S - 7140: 600, NOON_S - 120: 50, NOON_S - 60: 150})
    assert cpu_of(workspace, Span.HOUR) == [(50, 50), (150, 150)]
    assert cpu_of(workspace, Span.DAY) == [(400, 600), (100, 150)]
    assert cpu_of(workspace, Span.WEEK) == [(100, 400), (400, 600), (100, 150)]
    assert cpu_of(workspace, Span.ALL) == [(100, 400), (250, 600)]
    # The newest minute was measured: what comes after it is not a gap yet.
    assert usage_history.usage_of(workspace, Span.HOUR, NOON).end_s == NOON_S
    later = usage_history.usage_of(workspace, Span.HOUR, NOON + timedelta(minutes=10))
    assert later.points[-5] == UsagePoint(), "a gap is a gap"


def hold(workspace: Workspace, device: Device, *, milli: int = 1000) -> None:
    allocation = Allocation.objects.create(
        workspace=workspace, node=device.node, generation=1, cpu_milli=1, memory_mib=1,
        granted_at=NOON - timedelta(seconds=150),
    )  # fmt: skip
    AllocatedDevice.objects.create(allocation=allocation, device=device, milli=milli)


def measure(device: Device, start_s: int, percent: int) -> None:
    series, _made = DeviceSeries.objects.get_or_create(device=device)
    DeviceMinute.objects.create(
        series=series, start_s=start_s, measured_s=60, gpu_s=60, gpu_pct_s=60 * percent,
        gpu_max_pct=percent + 5, memory_mib=20_480, memory_max_mib=30_720,
    )  # fmt: skip


def test_whole_gpus_have_their_devices_measurements(workspace, device):
    hold(workspace, device)
    for minute in (1, 2, 3):
        measure(device, NOON_S - 60 * minute, 40)
    minutes(workspace, {NOON_S - 60 * minute: 2000 for minute in (1, 2, 3)})
    usage = usage_history.usage_of(workspace, Span.HOUR, NOON)
    first, *_rest, last = (point for point in usage.points if point.gpu_pct is not None)
    assert (last.gpu_pct, last.gpu_max_pct, last.gpu_memory_mib, last.gpu_memory_max_mib) == (
        40, 45, 20_480, 30_720,
    )  # fmt: skip
    assert first.gpu_max_pct is None, "the previous holder had the device in the same minute"
    found = usage_plots.plots_of(workspace, usage)
    assert [plot.key for plot in found.plots] == ["cpu", "ram", "use", "memory"] and not found.notes
    limits = [limit.value for plot in found.plots for limit in plot.limits]
    resources = workspace.resources
    assert limits == [
        resources["cpu_milli"] / 1000, resources["memory_mib"] / 1024, device.memory_mib / 1024,
    ]  # fmt: skip
    assert all(plot.rows and len(plot.columns) == 2 for plot in found.plots)


def test_shares_have_no_gpu_memory_and_say_why(workspace, device):
    hold(workspace, device, milli=500)
    measure(device, NOON_S - 60, 90)
    UsageMinute.objects.create(workspace=workspace, start_s=NOON_S - 60, memory_mib=5, gpu_pct=25)
    usage = usage_history.usage_of(workspace, Span.HOUR, NOON)
    assert usage.points[-1].gpu_pct == 25, "its own processes, not the whole device"
    found = usage_plots.plots_of(workspace, usage)
    assert [plot.key for plot in found.plots] == ["ram", "use"] and "share" in found.notes[0]


def test_pages_say_what_was_not_measured(workspace, as_user, bob, pool):
    found = usage_plots.plots_of(workspace, usage_history.usage_of(workspace, Span.DAY, NOON))
    assert found.plots == () and "once a minute" in found.notes[0]
    page = as_user(bob).get(f"/workspaces/{workspace.pk}/use/?span=week").content.decode()
    assert "sse:measured" in page and 'aria-current="true">7 days' in page
    simulated = WorkspaceFactory(pool=pool)
    usage = usage_history.usage_of(simulated, Span.DAY, timezone.now())
    assert "Simulated" in usage_plots.plots_of(simulated, usage).notes[0]


def test_the_page_of_a_workspace_keeps_the_span_in_its_address(workspace, as_user, bob):
    browser, path = as_user(bob), f"/workspaces/{workspace.pk}/"
    assert f'hx-get="{path}use/?span=week"' in browser.get(f"{path}?span=week").content.decode()
    headers = {"HX-Request": "true", "HX-Target": "plots"}
    for shown_at in (path, f"{path}use/"):
        current = {"HX-Current-URL": f"http://testserver{shown_at}?open=1"}
        part = browser.get(f"{path}use/", headers={**headers, **current}).content.decode()
        assert f'hx-replace-url="{shown_at}?span=all"' in part


def test_rest_has_the_points_of_the_page(workspace, with_token, bob):
    now_s = int(timezone.now().timestamp()) // 60 * 60
    minutes(workspace, {now_s - 600: 1500, now_s - 540: None})
    UsageMinute.objects.filter(start_s=now_s - 540).update(memory_mib=7)
    api, path = with_token(bob, "workspaces:read"), f"/api/v1/workspaces/{workspace.pk}/usage"
    body = api.get(f"{path}?span=hour").json()
    assert (body["span"], body["step_s"], len(body["points"])) == ("hour", 60, 2)
    assert body["limits"] == {
        "cpu_milli": workspace.resources["cpu_milli"], "memory_mib": workspace.resources["memory_mib"],
        "gpu_memory_mib": None,
    }  # fmt: skip
    first, second = body["points"]
    assert (first["cpu_milli"], first["cpu_max_milli"], first["gpu_pct"]) == (1500, 1500, None)
    assert second["cpu_milli"] is None and second["memory_mib"] == 7
    unknown = api.get(f"{path}?span=year")
    assert unknown.status_code == 400 and "week" in unknown.json()["errors"]["span"][0]
