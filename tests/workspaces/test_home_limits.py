"""Full homes: notices at 80 and 90 %, stops above the limit, no lost files."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.common.events.models import Event, Notification
from portal.workspaces import tasks
from portal.workspaces.homes import limits as home_limits
from portal.workspaces.lifecycle import State
from portal.workspaces.models import HomeUsage, Workspace
from provisioning import messages
from provisioning.types import HomeUsage as Measured
from tests import sites
from tests.senders import sent_by
from tests.workspaces.helpers import run_until_ready

pytestmark = pytest.mark.django_db
WORLD = sites.one_machine


@pytest.fixture(autouse=True)
def limits(settings):
    settings.BERTH_HOME_LIMIT_MIB, settings.BERTH_HOME_GRACE_S = 1000, 600
    return settings


@pytest.fixture
def running(clock, make, alice, local_pool, sent) -> Workspace:
    workspace = make(alice)
    run_until_ready(sent, workspace)
    workspace.refresh_from_db()
    assert workspace.state == State.RUNNING
    return workspace


MOST_FILES = 100_000


def measured(
    workspace: Workspace, used_mib: int, *, after_s: float = 0, hidden: bool = False, files: int = 0, **node
) -> State:
    """Measure after that time. Returns the state of the workspace."""
    allocation = workspace.allocations.select_related("node__pool").get(released_at=None)
    home = f"{workspace.team.slug}/{workspace.owner.username}"
    home_limits.apply(
        pool_slug=node.get("pool", ""),
        node_name=node.get("name", allocation.node.name),
        measured=[
            Measured(home, used_mib, hidden, files, MOST_FILES if files else 0, node.get("low", False))
        ],
        now=timezone.now() + timedelta(seconds=after_s),
    )
    workspace.refresh_from_db()
    return State(workspace.state)


def notice_titles() -> list[str]:
    found = Notification.objects.filter(kind="workspace.home_filling").order_by("pk")
    return list(found.values_list("title", flat=True))


def test_each_step_is_reported_once(running):
    for used in (500, 799, 800, 850, 800, 899, 900, 950, 940, 990):
        assert measured(running, used) == State.RUNNING
    assert len(notice_titles()) == 2
    assert "80 %" in notice_titles()[0] and "90 %" in notice_titles()[1]
    assert {notice.user for notice in Notification.objects.all()} == {running.owner}


def test_refilled_home_is_reported_again(running):
    measured(running, 850)
    measured(running, 760)  # still nearly as much: the notice remains
    measured(running, 850)
    assert len(notice_titles()) == 1
    Notification.objects.all().delete()  # otherwise the same text would not be repeated
    measured(running, 760)
    measured(running, 850)
    assert notice_titles() == []
    measured(running, 300)
    measured(running, 850)
    assert len(notice_titles()) == 1


def test_workspace_above_the_home_limit_is_stopped_after_the_grace_period(running):
    assert measured(running, 1001) == State.RUNNING
    assert notice_titles()[-1].endswith("is full")
    assert measured(running, 1001, after_s=599) == State.RUNNING
    assert measured(running, 1001, after_s=601) == State.STOPPING
    entry = Event.objects.filter(kind="workspace.stop", workspace=running).last()
    assert entry is not None and "home folder is full" in entry.why


def test_workspace_continues_if_the_home_shrinks_in_time(running):
    measured(running, 1200)
    assert measured(running, 990, after_s=300) == State.RUNNING
    assert measured(running, 990, after_s=5000) == State.RUNNING
    # The full grace period starts again.
    assert measured(running, 1001, after_s=6000) == State.RUNNING
    assert measured(running, 1001, after_s=6590) == State.RUNNING


def test_first_burst_above_the_limit_stops_no_workspace(running):
    measured(running, 100)
    assert measured(running, 1300, after_s=5) == State.RUNNING
    body = Notification.objects.get(kind="workspace.home_filling").body
    assert "stop in 10 min. Files are kept. If it keeps growing, they stop after 1 min" in body
    assert measured(running, 1500, after_s=10) == State.RUNNING
    # It has ended, so the notice is right.
    assert measured(running, 1500, after_s=70) == State.RUNNING
    assert measured(running, 1500, after_s=604) == State.RUNNING
    assert measured(running, 1500, after_s=606) == State.STOPPING


def test_writing_far_above_the_limit_stops_after_a_minute(running):
    measured(running, 1050)
    assert measured(running, 1101, after_s=59) == State.RUNNING
    assert measured(running, 1102, after_s=61) == State.STOPPING
    entry = Event.objects.filter(kind="workspace.stop", workspace=running).last()
    assert entry is not None and "full and keeps growing" in entry.why


def test_growing_home_on_a_nearly_full_disk_is_stopped_at_once(running):
    measured(running, 999)
    assert measured(running, 1000, after_s=5, low=True) == State.STOPPING


def test_nearly_full_disk_without_growth_stops_no_workspace(running):
    measured(running, 1050)
    assert measured(running, 1050, after_s=5, low=True) == State.RUNNING


@pytest.fixture
def limited_running(running) -> Workspace:
    """A workspace on a node whose kernel limits homes."""
    node = running.allocations.select_related("node").get(released_at=None).node
    node.facts = {**node.facts, "home_hold": "project_quota"}
    node.save()
    return running


def test_workspace_is_not_stopped_if_the_kernel_enforces_the_limit(limited_running):
    measured(limited_running, 1001)
    body = Notification.objects.get(kind="workspace.home_filling").body
    assert body.endswith("Delete files. Above 1.1 GiB, writes fail. Workspaces continue.")
    assert measured(limited_running, 1100, after_s=5, low=True) == State.RUNNING
    assert measured(limited_running, 1100, after_s=5000) == State.RUNNING
    assert measured(limited_running, 1100, hidden=True, after_s=9000) == State.RUNNING
    note = home_limits.note_of(limited_running)
    assert note is not None and note.full and "Workspaces continue." in note.text
    measured(limited_running, 500, after_s=9100)
    Notification.objects.all().delete()  # otherwise the same title would not be repeated
    assert measured(limited_running, 10, files=110_000, after_s=9200) == State.RUNNING
    body = Notification.objects.filter(kind="workspace.home_filling").latest("pk").body
    assert "no file can be created" in body and "110,000" in body.replace("\xa0", ",").replace("\u202f", ",")


def test_home_above_the_kernel_limit_is_treated_as_unlimited(limited_running):
    measured(limited_running, 1050)
    assert measured(limited_running, 1200, after_s=5) == State.RUNNING
    assert measured(limited_running, 1300, after_s=66) == State.STOPPING


def test_page_shows_the_remaining_time(running, clock):
    measured(running, 1001)
    clock.shift(400)
    note = home_limits.note_of(running)
    assert note is not None and "stop in 3 min 20 s" in note.text


def test_home_far_above_its_limit_without_writes_has_time_to_shrink(running):
    measured(running, 5000)
    assert measured(running, 5000, after_s=300) == State.RUNNING
    assert measured(running, 4000, after_s=500) == State.RUNNING
    assert measured(running, 900, after_s=590) == State.RUNNING


def test_restart_restarts_the_grace_period(running):
    measured(running, 1001, after_s=-5000)
    running.refresh_from_db()
    Workspace.objects.filter(pk=running.pk).update(ready_at=timezone.now())
    assert measured(running, 1001, after_s=500) == State.RUNNING
    assert measured(running, 1001, after_s=601) == State.STOPPING


def test_unmeasurable_usage_counts_as_full(running):
    assert measured(running, 3, hidden=True) == State.RUNNING
    assert measured(running, 3, hidden=True, after_s=601) == State.STOPPING
    assert "too deeply" in Notification.objects.get(kind="workspace.home_filling").body


def test_file_limit_is_reported_and_enforced_like_size(running):
    for files in (70_000, 79_999, 80_000, 85_000, 90_000, 99_999):
        assert measured(running, 3, files=files) == State.RUNNING
    assert ["80 %" in notice_titles()[0], "90 %" in notice_titles()[1], len(notice_titles())] == [
        True,
        True,
        2,
    ]
    body = Notification.objects.filter(kind="workspace.home_filling").order_by("pk")[0].body
    assert "80,000 of 100,000 files" in body.replace("\xa0", ",").replace("\u202f", ",")
    assert measured(running, 3, files=100_001) == State.RUNNING
    assert measured(running, 3, files=100_001, after_s=599) == State.RUNNING
    assert measured(running, 3, files=100_001, after_s=601) == State.STOPPING
    entry = Event.objects.filter(kind="workspace.stop", workspace=running).last()
    assert entry is not None and "files" in entry.why


def test_creating_files_far_above_the_limit_stops_after_a_minute(running):
    measured(running, 3, files=105_000)
    assert measured(running, 900, files=105_000, after_s=63) == State.RUNNING, (
        "bytes alone, within their limit"
    )
    assert measured(running, 900, files=110_000, after_s=65) == State.STOPPING


def test_message_names_the_fuller_of_size_and_files(running):
    for used_mib, files, says, percent in (
        (500, 20_000, "500 MiB", 50),
        (500, 60_000, "500 MiB", 50),
        (500, 90_000, "files", 90),
        (950, 90_000, "MiB", 95),
        (500, 300_000, "files", 100),
    ):
        measured(running, used_mib, files=files)
        note = home_limits.note_of(running)
        assert note is not None and says in note.amounts and note.percent == percent, note


def test_upload_is_refused_at_the_file_limit(running):
    node = running.allocations.get(released_at=None).node.name
    asked = running.owner_id, running.team_id, node
    measured(running, 400, files=99_999)
    assert home_limits.room_mib(*asked) == 600
    measured(running, 400, files=100_000)
    assert home_limits.room_mib(*asked) == 0


def test_neighbours_and_other_nodes_are_not_affected(running, make, bob, sent):
    other = make(bob)
    run_until_ready(sent, other)
    measured(running, 2000, name="elsewhere")
    measured(running, 2000, pool="another")
    assert not HomeUsage.objects.exists()
    measured(running, 2000)
    measured(running, 2000, after_s=601)
    other.refresh_from_db()
    assert (running.state, other.state) == (State.STOPPING, State.RUNNING)


def test_no_limit_sends_no_reports_and_stops_no_workspace(running, settings):
    settings.BERTH_HOME_LIMIT_MIB = 0
    measured(running, 10_000_000)
    assert measured(running, 20_000_000, after_s=9000, hidden=True) == State.RUNNING
    assert notice_titles() == []
    assert home_limits.note_of(running) is None


@pytest.mark.parametrize(
    "usages",
    [
        "no list",
        [{"home": "research/alice"}],
        [{"home": "research/alice", "used_mib": -1}],
        [{"home": "x" * 500, "used_mib": 1}],
        [{"home": "research/alice", "used_mib": 2**60}],
        [{"home": "research/alice", "used_mib": 1, "files": -1}],
        [{"home": "research/alice", "used_mib": 1, "files": 1, "most_files": 2**60}],
    ],
)
def test_invalid_message_is_dropped(running, usages):
    node = running.allocations.get(released_at=None).node.name
    with sent_by(f"node.{node}"):
        tasks.apply_home_usage.run("", node, usages)
    assert not HomeUsage.objects.exists()


def test_ownerless_homes_are_skipped(running):
    node = running.allocations.get(released_at=None).node.name
    strange = [Measured(home, 5000) for home in ("", "/", "none/alice", "a/b/c", "research/nobody")]
    home_limits.apply(pool_slug="", node_name=node, measured=strange)
    home_limits.apply(pool_slug="", node_name=node, measured=[Measured("re\x00search/alice", 1)])
    assert not HomeUsage.objects.exists()


def test_page_shows_home_usage(running, as_user):
    usage = Measured(f"{running.team.slug}/{running.owner.username}", 950)
    node = running.allocations.get(released_at=None).node.name
    with sent_by("node.another"):
        tasks.apply_home_usage.run("", node, messages.dump([usage]))
    assert not HomeUsage.objects.exists(), "a node tells of its own homes alone"
    with sent_by(f"node.{node}"):
        tasks.apply_home_usage.run("", node, messages.dump([usage]))
    page = as_user(running.owner).get(f"/workspaces/{running.pk}/").content.decode()
    assert "950 MiB of 1,000 MiB" in page or "950 MiB of 1000 MiB" in page
    assert "Delete files that you no longer need" in page
