"""Samples of device states and starts: counts, one per interval, limited retention."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from portal.fleet.inventory import counting
from portal.fleet.inventory.counting import StateCounts
from portal.fleet.inventory.device_states import DeviceState
from portal.fleet.inventory.models import Device, Node, Pool
from portal.reports import state_samples
from portal.reports.models import Figure, PoolSample, StartCount, StartSample
from portal.web.fleet.presenters import state_plot
from tests.factories import TeamFactory, local_pool_with, node_info

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 20, 12, 7, tzinfo=UTC)
QUARTER = timedelta(minutes=15)


@pytest.fixture
def lab(db: None) -> Pool:
    pool = local_pool_with(node_info("gpu-01", gpus=3), node_info("gpu-02", gpus=2), slug="lab")
    Device.objects.filter(node__name="gpu-01", index=0).update(cordoned=True)
    Node.objects.filter(name="gpu-02").update(online=False)
    return pool


def test_state_groups_sum_to_all_devices():
    counts = counting.summarize(dict.fromkeys(DeviceState, 1))
    assert counts.total == len(DeviceState)
    assert (counts.in_use, counts.idle, counts.out_of_service) == (2, 1, 3)
    assert counts + StateCounts(free=2) == counting.summarize({**dict.fromkeys(DeviceState, 1), "free": 3})


def test_each_interval_is_sampled_once_and_samples_expire(lab):
    assert state_samples.run(NOW) and not state_samples.run(NOW + timedelta(minutes=7))
    assert PoolSample.objects.count() == StartSample.objects.count() == 1
    history = state_samples.history([lab.pk], days=1, now=NOW)
    assert history.points[-1] == StateCounts(free=2, out_of_service=3)
    assert history.points[:-1] == (None,) * 95 and history.recorded
    assert not state_samples.history([], days=1, now=NOW).recorded, "another pool"
    later = NOW + timedelta(days=state_samples.KEEP_DAYS, minutes=15)
    assert state_samples.run(later)
    assert PoolSample.objects.count() == StartSample.objects.count() == 1


def test_disabled_pools_are_not_sampled(lab):
    Pool.objects.update(enabled=False)
    state_samples.run(NOW)
    assert not PoolSample.objects.exists() and StartSample.objects.exists()


def test_starts_are_counter_increases(lab):
    team = TeamFactory()
    assert state_samples.started_since([NOW]) == [None], "nothing was recorded yet"
    StartCount.objects.create(figure=Figure.STARTS, team=team, count=10)
    StartCount.objects.create(figure=Figure.FAILURES, team=team, key="crashed", count=3)
    state_samples.run(NOW)
    StartCount.objects.filter(figure=Figure.STARTS).update(count=17)
    StartCount.objects.create(figure=Figure.FAILURES, team=team, key="lost", count=1)
    day, week = state_samples.started_since(state_samples.periods(NOW + QUARTER))
    assert (day.starts, day.failures, day.since.minute) == (7, 1, 0)
    assert week == day


def test_the_plot_has_all_states_and_leaves_gaps(lab):
    empty = state_samples.history([lab.pk], days=1, now=NOW)
    assert state_plot.plot_of(empty) is None
    state_samples.run(NOW - 2 * QUARTER)
    state_samples.run(NOW)
    plot = state_plot.plot_of(state_samples.history([lab.pk], days=1, now=NOW))
    assert plot is not None and plot.stacked and plot.has_gaps
    assert [line.values[-3:] for line in plot.lines] == [(n, None, n) for n in (0, 0, 2, 0, 0, 3)]
    assert plot.title == "0 of 5 GPUs in use on average"
    assert plot.rows[0].texts == ("0", "0", "2", "0", "0", "3")
