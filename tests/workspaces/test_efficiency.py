"""GPU efficiency of a workspace: used share and one hint, only from samples."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from portal.fleet.inventory.models import AllocatedDevice, Device, DeviceHour, DeviceSeries
from portal.workspaces.codes import EfficiencyCode
from portal.workspaces.efficiency import DeviceUse, efficiency_of, judge
from portal.workspaces.lifecycle import State
from tests.factories import FlavorFactory, WorkspaceFactory, local_pool_with, node_info
from tests.reports.test_gpu_use import DAY, hold, measured

HOURS = 10
HELD_S = HOURS * 3600


def use(used: float, *, memory: float | None = 0.5, seconds: int = HELD_S) -> DeviceUse:
    share = None if memory is None else round(memory * 80_000)
    return DeviceUse("GPU", seconds, used * seconds, share, 80_000)


@pytest.mark.parametrize(
    ("devices", "code"),
    [
        ([use(0.9)], None),
        ([use(0.0)], EfficiencyCode.NONE_USED),
        ([use(0.005), use(0.0)], EfficiencyCode.NONE_USED),
        ([use(0.9), use(0.0)], EfficiencyCode.SOME_UNUSED),
        # Little use differs from none.
        ([use(0.03), use(0.0)], EfficiencyCode.MOSTLY_IDLE),
        ([use(0.3, memory=0.1)], EfficiencyCode.SMALLER_WOULD_DO),
        ([use(0.9, memory=0.1)], None),
        ([use(0.3, memory=0.1), use(0.3, memory=0.6)], None),
        ([use(0.1)], EfficiencyCode.MOSTLY_IDLE),
        # Unmeasured memory gives no hint.
        ([use(0.3, memory=None)], None),
        ([use(0.1, memory=None)], EfficiencyCode.MOSTLY_IDLE),
        ([use(0.2)], None),
    ],
)
def test_hint_matches_the_usage(devices, code):
    _used, measured_share, hint = judge(devices, HELD_S)
    assert measured_share == 1.0
    assert (hint.code if hint is not None else None) == code


def test_too_few_measurements_give_no_result():
    assert judge([], HELD_S) == (None, 0.0, None)
    assert judge([use(0.0)], 0) == (None, 0.0, None)
    # Less than three hours of one device.
    used, _share, hint = judge([use(0.0), use(0.0, seconds=3 * 3600 - 1)], HELD_S)
    assert (used, hint) == (None, None)
    # Enough for a figure, too short for a hint.
    used, share, hint = judge([use(0.0, seconds=HELD_S // 2)], HELD_S)
    assert (used, share, hint) == (0.0, 0.5, None)


# --- samples --------------------------------------------------------------------------------------


@pytest.fixture
def gpus(db: None) -> list[Device]:
    pool = local_pool_with(node_info(gpus=2))
    return list(Device.objects.filter(node__pool=pool).order_by("index"))


@pytest.fixture
def runs(gpus, bob, team):
    flavor = FlavorFactory(accelerator_count=2)
    pool = gpus[0].node.pool
    workspace = WorkspaceFactory(
        owner=bob, team=team, flavor=flavor, pool=pool, state=State.RUNNING, generation=1
    )
    for gpu in gpus:
        hold(workspace, gpu, 2.5, None) if gpu is gpus[0] else _beside(workspace, gpu)
    return workspace


def _beside(workspace, gpu):
    AllocatedDevice.objects.create(allocation=workspace.allocations.get(), device=gpu)


AT = DAY + timedelta(hours=12)


def test_efficiency_uses_whole_hours_of_the_workspace(runs, gpus):
    # The hour of its start and that of another workspace before are excluded.
    for hour in (1, 2):
        measured(gpus[0], hour, percent=0)
        measured(gpus[1], hour, percent=0)
    DeviceHour.objects.update(memory_max_mib=10**6)
    for hour in range(3, 12):
        measured(gpus[0], hour, percent=80)
        measured(gpus[1], hour, percent=0)
    found = efficiency_of(runs, now=AT)
    assert (found.since, found.used, found.measured) == (
        DAY + timedelta(hours=3),
        pytest.approx(0.4),
        1.0,
    )
    assert found.hint.code == EfficiencyCode.SOME_UNUSED
    assert found.hint.params == {"held": 2, "used": 1}


def test_no_efficiency_for_shares_simulated_stopped_or_new_workspaces(runs, gpus):
    assert efficiency_of(runs, now=DAY + timedelta(hours=2, minutes=40)).used is None
    found = efficiency_of(runs, now=AT)
    assert (found.used, found.measured, found.hint) == (None, 0.0, None)
    AllocatedDevice.objects.filter(device=gpus[0]).update(milli=500)
    assert efficiency_of(runs, now=AT) is None
    AllocatedDevice.objects.update(milli=1000)
    Device.objects.filter(pk=gpus[0].pk).update(kind="mig")
    assert efficiency_of(runs, now=AT) is None
    Device.objects.update(kind="gpu")
    runs.state = State.STOPPED
    assert efficiency_of(runs, now=AT) is None


def test_efficiency_covers_seven_days_in_two_queries(runs, gpus, django_assert_num_queries):
    late = AT + timedelta(days=30)
    for gpu in gpus:
        series, _ = DeviceSeries.objects.get_or_create(device=gpu)
        DeviceHour.objects.bulk_create(
            DeviceHour(
                series=series,
                start_s=int(late.timestamp()) // 3600 * 3600 - 3600 * hour,
                measured_s=3600,
                gpu_s=3600,
                gpu_pct_s=3600 * (90 if hour <= 168 else 0),
                memory_max_mib=100,
            )
            for hour in range(1, 400)
        )
    with django_assert_num_queries(2):
        found = efficiency_of(runs, now=late)
    assert found.used == pytest.approx(0.9)
    assert found.since == late - timedelta(days=7)


def test_efficiency_is_shown_on_the_page_and_over_rest(runs, gpus, bob, as_user, with_token, clock):
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    runs.allocations.update(granted_at=now - timedelta(hours=10))
    api = with_token(bob, "workspaces:read")
    there = f"/api/v1/workspaces/{runs.pk}"
    assert api.get(f"{there}/efficiency").json()["used"] is None
    assert 'id="efficiency"' not in as_user(bob).get(f"/workspaces/{runs.pk}/").content.decode()
    for hour in range(-10, 0):
        for gpu in gpus:
            measured(gpu, hour, percent=0, day=now)
    body = api.get(f"{there}/efficiency").json()
    assert (body["used"], body["hint"]["reason"]["code"]) == (0.0, "no_gpu_used")
    page = as_user(bob).get(f"/workspaces/{runs.pk}/").content.decode()
    assert "The workspace did not use its GPUs (2)." in page
    runs.state = State.STOPPED
    runs.save()
    assert api.get(f"{there}/efficiency").json() == {
        "since": None, "until": None, "used": None, "measured": 0.0, "hint": None,
    }  # fmt: skip
