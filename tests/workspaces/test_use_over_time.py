"""Usage plots of workspaces and teams, and notes about missing data."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.fleet.inventory import use_history
from portal.fleet.inventory.models import AllocatedDevice, Allocation, Device, DeviceHour, DeviceSeries
from portal.web.home.presenters import team as team_presenters
from portal.workspaces import use_over_time
from portal.workspaces.models import Workspace
from tests.factories import WorkspaceFactory, local_pool_with, node_info

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)


@pytest.fixture
def workspace(team, bob) -> Workspace:
    """A workspace of two days in its second start."""
    row = WorkspaceFactory(team=team, owner=bob, state="stopped", generation=2)
    Workspace.objects.filter(pk=row.pk).update(created_at=timezone.now() - 2 * DAY)
    row.refresh_from_db()
    return row


def hold(workspace: Workspace, device: Device, *, milli: int = 1000) -> None:
    allocation = Allocation.objects.create(
        workspace=workspace, node=device.node, generation=2, cpu_milli=1, memory_mib=1,
        granted_at=timezone.now() - DAY,
    )  # fmt: skip
    AllocatedDevice.objects.create(allocation=allocation, device=device, milli=milli)


def measure(device: Device) -> None:
    now_s = int(timezone.now().timestamp())
    DeviceHour.objects.create(
        series=DeviceSeries.objects.create(device=device), start_s=now_s - now_s % 3600 - 7200,
        measured_s=3600, gpu_s=3600, gpu_pct_s=3600 * 40, memory_mib=20_480,
    )  # fmt: skip


def test_workspace_without_gpu_notes_missing_data(workspace):
    found = use_over_time.plots_of(workspace, timezone.now())
    assert found.plots == ()
    assert found.notes[0] == "The workspace has had no GPU." and "CPU and memory are not" in found.notes[1]


def test_whole_gpus_have_utilisation_and_memory_with_their_limit(workspace):
    device = local_pool_with(node_info(gpus=1)).nodes.get().devices.get()
    hold(workspace, device)
    assert "not measured" in use_over_time.plots_of(workspace, timezone.now()).notes[0]
    measure(device)
    found = use_over_time.plots_of(workspace, timezone.now())
    assert [plot.key for plot in found.plots] == ["use", "memory"]
    assert found.plots[1].limits[0].value == pytest.approx(device.memory_mib / 1024)
    assert len(found.notes) == 1


def test_gpu_share_has_no_memory_plot_and_a_note(workspace):
    device = local_pool_with(node_info(gpus=1)).nodes.get().devices.get()
    hold(workspace, device, milli=500)
    measure(device)
    found = use_over_time.plots_of(workspace, timezone.now())
    assert [plot.key for plot in found.plots] == ["use"] and "shared GPU" in found.notes[0]


def test_a_team_counts_simulated_gpus_only_without_real_ones(workspace, team, pool):
    window = use_history.window("week", timezone.now())
    simulated = Device.objects.filter(node__pool=pool).first()
    hold(workspace, simulated)
    found, marked = team_presenters.use_of(team, window)
    assert marked and max(found.plots[0].lines[0].values) == 1 and "Simulated" in found.notes[0]
    hold(workspace, local_pool_with(node_info(gpus=1)).nodes.get().devices.get(), milli=250)
    found, marked = team_presenters.use_of(team, window)
    assert not marked and max(found.plots[0].lines[0].values) == 0.25
