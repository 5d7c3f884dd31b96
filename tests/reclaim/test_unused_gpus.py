"""GPUs that a workspace leaves unused while it works on others: counted, shown, and notified once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.common.events.models import Notification
from portal.reclaim import observing, unused_gpus
from portal.reclaim.engine.devices import unused_count, unused_since
from portal.reclaim.models import WorkspaceActivity
from portal.workspaces import results
from portal.workspaces.lifecycle import State
from tests import sites
from tests.rows import reloaded

WORLD = sites.one_machine


def since(percents, before, at_s=60.0, before_s=0.0):
    return unused_since(percents, before, at_s=at_s, before_s=before_s, max_gap_s=150.0)


def test_each_gpu_has_its_own_idle_time():
    assert since((0, 5, None), ()) == (60.0, None, None)
    assert since((0, 0, 0), (10.0, None, 20.0)) == (10.0, 60.0, 20.0)
    # Unobserved time, or another number of GPUs, restarts it.
    assert since((0, 0), (10.0, 20.0), at_s=200.0) == (200.0, 200.0)
    assert since((0,), (10.0, 20.0)) == (60.0,)
    assert since((0,), (10.0,), at_s=60.0, before_s=60.0) == (60.0,)


def test_only_gpus_beside_one_in_use_are_counted():
    assert unused_count((0.0, None, 100.0), 1000.0) == 2
    assert unused_count((0.0, None, 200.0), 1000.0) == 1
    assert unused_count((0.0, 0.0), 1000.0) == 0
    assert unused_count((), 1000.0) == 0


@given(st.lists(st.tuples(st.sampled_from([0, 7, None]), st.sampled_from([0, 7, None])), min_size=1))
def test_unused_time_begins_after_last_work_or_unmeasured_time(looks):
    times: tuple[float | None, ...] = ()
    for number, percents in enumerate(looks, 1):
        times = since(percents, times, at_s=60.0 * number, before_s=60.0 * (number - 1))
    for place, begin in enumerate(times):
        history = [percents[place] for percents in looks]
        quiet = next((n for n, percent in enumerate(reversed(history)) if percent != 0), len(history))
        assert begin == (60.0 * (len(history) - quiet + 1) if quiet else None)


def activity(*percents: int) -> dict[str, object]:
    gpus = [{"uuid": f"GPU-{n}", "utilization_percent": percent} for n, percent in enumerate(percents)]
    return {"cpu_seconds": 1.0, "jobs": 0, "gpus": gpus, "gpus_stale_s": None}


@pytest.mark.django_db
def test_owner_is_notified_once_of_seven_unused_gpus(running, alice, clock, settings, as_user):
    settings.BERTH_IDLE_GPU_MINUTES = 20

    def live(minutes: int, *percents: int) -> None:
        for _ in range(minutes):
            clock.shift(60)
            figures = activity(*percents)
            results.agent_heartbeat(workspace_id=running.pk, generation=running.generation, activity=figures)
            observing.run()
            unused_gpus.notify()

    told = Notification.objects.filter(user=alice, kind=unused_gpus.KIND)
    live(19, 90, *[0] * 7)
    row = WorkspaceActivity.objects.get(workspace=running)
    assert (row.unused_gpus, told.count()) == (7, 0)
    live(5, 90, *[0] * 7)
    assert [each.title for each in told] == [f"7 of 8 GPUs of {running.name} are unused"]
    browser = as_user(alice)
    assert browser.get(f"/api/v1/workspaces/{running.pk}/activity").json()["unused_gpus"] == 7
    page = browser.get(f"/workspaces/{running.pk}/").content.decode()
    assert "7 of 8 GPUs unused for 23 min" in page
    # The workspace continues: its work on one GPU is not stopped.
    assert reloaded(running).state == State.RUNNING
    live(1, 90, *[50] * 7)
    assert "GPUs unused" not in browser.get(f"/workspaces/{running.pk}/").content.decode()
    live(25, 90, *[0] * 7)
    assert told.count() == 1
