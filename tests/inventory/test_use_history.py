"""Use of GPUs over time: exact allocations, measurements with gaps, and shares."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from portal.fleet.inventory import use_history, use_plots
from portal.fleet.inventory.models import AllocatedDevice, Allocation, Device, DeviceHour, DeviceSeries
from portal.web.home.presenters import team as team_presenters
from tests.factories import WorkspaceFactory, local_pool_with, node_info

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)
WEEK = use_history.window("week", NOW)


@pytest.fixture
def gpus(db: None) -> list[Device]:
    return list(local_pool_with(node_info(gpus=2)).nodes.get().devices.order_by("index"))


def hold(
    device: Device, *, since_h: float, until_h: float | None = None, milli: int = 1000, **fields: Any
) -> None:
    """Allocate the device from that many hours ago, to a workspace with these fields."""
    allocation = Allocation.objects.create(
        workspace=WorkspaceFactory(**fields), node=device.node, generation=1, cpu_milli=1, memory_mib=1,
        granted_at=NOW - timedelta(hours=since_h),
        released_at=None if until_h is None else NOW - timedelta(hours=until_h),
    )  # fmt: skip
    AllocatedDevice.objects.create(allocation=allocation, device=device, milli=milli, active=until_h is None)


def measure(device: Device, hour: int, percent: int, *, memory_mib: int = 1024) -> None:
    """Create an hour of samples, that many steps before the current one."""
    series, _ = DeviceSeries.objects.get_or_create(device=device)
    DeviceHour.objects.create(
        series=series, start_s=WEEK.end_s - 3600 * (hour + 1), measured_s=3600, gpu_s=3600,
        gpu_pct_s=3600 * percent, memory_mib=memory_mib,
    )  # fmt: skip


def test_windows_end_with_the_current_step():
    assert (WEEK.step_s, WEEK.count, WEEK.end_s - WEEK.now_s) == (3600, 168, 1800)
    assert WEEK.elapsed_s(167) == 1800 and WEEK.elapsed_s(0) == 3600
    with pytest.raises(KeyError):
        use_history.window("year", NOW)


def test_allocations_count_for_their_duration(gpus):
    hold(gpus[0], since_h=1.25)
    hold(gpus[1], since_h=300, until_h=1, milli=500)
    values = use_history.allocated(AllocatedDevice.objects.all(), WEEK)
    # The current step is half over, and an active allocation fills it.
    assert values[-3:] == pytest.approx((0.5, 1.0, 1.0)), values[-3:]
    assert values[-2] == pytest.approx(0.75 + 0.5 * 0.5 - 0.0) or values[-2] == pytest.approx(1.0)
    assert values[0] == pytest.approx(0.5), "begun before the window"
    assert use_history.allocated(AllocatedDevice.objects.none(), WEEK) == (0.0,) * 168


def test_measured_use_covers_all_gpus_with_gaps(gpus):
    measure(gpus[0], 1, 80)
    measure(gpus[1], 1, 20, memory_mib=3072)
    use = use_history.measured_use(Device.objects.all(), WEEK)
    assert use.gpu_pct[-3:] == (None, 50, None) and use.memory_mib[-3:] == (None, 4096, None)
    assert use_history.measured_use(Device.objects.none(), WEEK).gpu_pct == (None,) * 168


def test_use_while_allocated_excludes_unallocated_time(gpus):
    hold(gpus[0], since_h=2.5, until_h=1.0)
    hold(gpus[1], since_h=2.5, milli=250)
    for hour in (1, 2):
        measure(gpus[0], hour, 90)
        measure(gpus[1], hour, 10)
    use = use_history.allocated_use(AllocatedDevice.objects.all(), WEEK)
    # In the last full hour the whole GPU counts for half of it, and the share for a quarter.
    assert use.gpu_pct[-2] == pytest.approx((90 * 0.5 + 10 * 0.25) / 0.75)
    assert use.memory_mib[-2] == pytest.approx(512), "the memory of a shared GPU is not this holder's"
    assert use.gpu_pct[-1] is None and use.gpu_pct[0] is None


def test_missing_data_is_stated_instead_of_plotted(gpus):
    use = use_history.measured_use(Device.objects.all(), WEEK)
    found = use_plots.use_plots(None, use, WEEK, total_mib=2048, simulated=False)
    assert found.plots == () and "not measured" in found.notes[0]
    assert "Simulated" in use_plots.use_plots(None, use, WEEK, total_mib=0, simulated=True).notes[0]
    measure(gpus[0], 1, 40)
    use = use_history.measured_use(Device.objects.all(), WEEK)
    found = use_plots.use_plots(None, use, WEEK, total_mib=2048, simulated=False)
    assert [plot.title for plot in found.plots] == [
        "GPU use: 40 % on average",
        "GPU memory: up to 1 of 2 GiB",
    ]
    assert found.plots[1].limits[0].value == 2 and not found.notes


def test_team_counts_simulated_gpus_only_without_real_ones(gpus, team, pool):
    hold(Device.objects.filter(node__pool=pool).first(), since_h=24, team=team)
    found, marked = team_presenters.use_of(team, WEEK)
    assert marked and max(found.plots[0].lines[0].values) == 1 and "Simulated" in found.notes[0]
    hold(gpus[0], since_h=24, milli=250, team=team)
    found, marked = team_presenters.use_of(team, WEEK)
    assert not marked and max(found.plots[0].lines[0].values) == 0.25
