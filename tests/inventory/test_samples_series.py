"""Reads of samples: gaps, live samples, idle devices, and GPU use of teams."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import pytest

from portal.common.events import live
from portal.fleet.inventory import samples, series
from portal.fleet.inventory.models import AllocatedDevice, Allocation, Device
from provisioning.gpu.samples import Sample
from tests.factories import TeamFactory, WorkspaceFactory, local_pool_with, node_info
from tests.inventory.sampled import NOON, SamplesInRedis, apply, rollup

pytestmark = pytest.mark.django_db
UUID = "GPU-node-1-0"


@pytest.fixture(autouse=True)
def gpu_pool(catalog):
    return local_pool_with(node_info(gpus=2))


def device(index: int = 0) -> Device:
    return Device.objects.select_related("node__pool").get(uuid=f"GPU-node-1-{index}")


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(NOON + seconds, UTC)


def measured(percent: int, *minutes: int, index: int = 0) -> None:
    apply(
        *(rollup(f"GPU-node-1-{index}", NOON + 60 * number, [percent] * 60) for number in minutes),
        now_s=NOON + 7200,
    )


# --- series ---------------------------------------------------------------------------------------


def test_gaps_are_kept_and_the_window_ends_at_the_last_full_minute():
    measured(70, 0, 1, 5, 59, 60)
    found = series.device_series(device(), series.HOUR, now=at(3630))
    assert (found.start_s, found.end_s, len(found.points)) == (NOON, NOON + 3600, 60)
    assert [number for number, point in enumerate(found.points) if point] == [0, 1, 5, 59]
    assert {point.gpu_pct for point in found.measured} == {70.0}
    assert series.device_series(device(1), series.HOUR, now=at(3630)).measured == ()


def test_month_is_hourly_and_includes_the_current_hour():
    measured(10, 0)
    measured(90, 61)
    samples.roll_up_hours()
    found = series.device_series(device(), series.MONTH, now=at(3780))
    assert (len(found.points), found.end_s) == (720, NOON + 7200)
    assert [point and point.gpu_pct for point in found.points[-3:]] == [None, 10.0, 90.0]
    with pytest.raises(KeyError):
        series.device_series(device(), "year")


def redis_with(monkeypatch, **values: object) -> None:
    monkeypatch.setattr(live, "connection", lambda: SamplesInRedis({"node-1": values}))


def test_recent_live_sample_comes_from_redis(monkeypatch):
    sample = Sample(NOON + 3629.0, gpu_util_pct=42)
    redis_with(monkeypatch, **{UUID: asdict(sample), "GPU-node-1-1": {"at_s": "never"}})
    assert series.device_series(device(), series.HOUR, now=at(3630)).live == sample
    assert series.device_series(device(), series.HOUR, now=at(3700)).live is None, "too old to be now"
    assert series.device_series(device(), series.MONTH, now=at(3630)).live is None
    assert series.device_series(device(1), series.HOUR, now=at(3630)).live is None, "not a sample"
    assert (
        series.newest([device(), device(1)], now_s=NOON + 3630) == {UUID: sample} and series.newest([]) == {}
    )


def test_no_live_sample_without_redis():
    assert series.newest([device()]) == {}


# --- idle -----------------------------------------------------------------------------------------


def test_idle_time_counts_recent_measured_minutes():
    measured(50, 0)
    measured(0, 1, 2, 3)
    measured(0, 3, index=1)
    assert series.idle_s(device(), at(250)) == 180
    assert series.idle_times(at(250)) == {device().pk: 180, device(1).pk: 60}
    assert series.idle_s(device(), at(240 + series.FRESH_S)) == 180
    assert series.idle_s(device(), at(241 + series.FRESH_S)) == 0, "nobody knows any more"
    measured(1, 4)
    assert series.idle_s(device(), at(310)) == 0


# --- use by teams ---------------------------------------------------------------------------------


def hold(team, owner, index: int, begun: float, ended: float | None, milli: int = 1000) -> None:
    workspace = WorkspaceFactory(team=team, owner=owner)
    found = device(index)
    allocation = Allocation.objects.create(
        workspace=workspace, node=found.node, generation=1, cpu_milli=1, memory_mib=1,
        granted_at=at(begun), released_at=None if ended is None else at(ended),
    )  # fmt: skip
    AllocatedDevice.objects.create(allocation=allocation, device=found, milli=milli, active=ended is None)


def test_use_is_attributed_to_holders_of_the_device(team, bob):
    measured(50, *range(60))
    measured(100, *range(60, 90))
    samples.roll_up_hours()
    other = TeamFactory()
    hold(team, bob, 0, 0, 1800)
    hold(other, bob, 0, 1800, None)
    hold(team, bob, 1, 0, 3600)  # nothing measured there
    now = at(5400)
    assert series.gpu_use(team, at(-86_400), now=now) == series.GpuUse(5400, 900, 1800)
    assert series.gpu_use(other, at(-86_400), now=now) == series.GpuUse(3600, 900 + 1800, 3600)
    assert series.gpu_use(other, at(-86_400), now=now).percent == 75
    assert series.gpu_use(other, at(3600), now=now) == series.GpuUse(1800, 1800, 1800)
    assert series.gpu_use(TeamFactory(), at(0), now=now) == series.GpuUse()
    assert series.GpuUse(held_s=5).percent is None


def test_shares_and_partly_measured_hours_count_proportionally(team, bob):
    measured(100, *range(30))
    samples.roll_up_hours()
    hold(team, bob, 0, 0, 3600, milli=500)
    assert series.gpu_use(team, at(0), now=at(9000)) == series.GpuUse(1800, 900, 900)


def test_simulated_devices_are_not_counted(team, bob, pool):
    simulated = Device.objects.filter(node__pool=pool).first()
    workspace = WorkspaceFactory(team=team, owner=bob)
    allocation = Allocation.objects.create(
        workspace=workspace, node=simulated.node, generation=1, cpu_milli=1, memory_mib=1, granted_at=at(0)
    )
    AllocatedDevice.objects.create(allocation=allocation, device=simulated)
    assert series.gpu_use(team, at(0), now=at(3600)) == series.GpuUse()


def test_use_of_many_teams_takes_two_queries(team, bob, django_assert_num_queries):
    measured(10, 0)
    samples.roll_up_hours()
    teams = [team, *(TeamFactory() for _ in range(3))]
    for number, one in enumerate(teams):
        hold(one, bob, 0, 100 * number, 100 * number + 100)
    with django_assert_num_queries(2):
        assert len(series.gpu_uses([one.pk for one in teams], at(0), now=at(3600))) == 4


def test_holders_within_the_time_range(team, bob):
    hold(team, bob, 0, 0, 100)
    hold(team, bob, 0, 200, None)
    assert [held.since for held in series.holders(device(), at(50), at(300))] == [at(0), at(200)]
    assert [held.since for held in series.holders(device(), at(100), at(300))] == [at(200)]
    assert [held.until for held in series.holders(device(), at(0), at(200))] == [at(100)]
    assert series.holders(device(1), at(0), at(300)) == []
    assert series.holders(device(), at(100), at(100) + timedelta(seconds=1)) == []
