"""Overuse of GPU memory shares, as reported by a node: stored, shown and notified."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.celery import app as control_app
from portal.common.events.models import Event, Notification
from portal.fleet.inventory.models import Device, Pool
from portal.gpu_checks import share_notes
from portal.workspaces import share_overuse
from portal.workspaces.models import Workspace
from provisioning import messages
from provisioning.share_messages import PROVIDES_SHARES, ShareNote, ShareNotes, ShareStep
from tests import sites
from tests.factories import FlavorFactory, node_info
from tests.gpu_checks.helpers import checked_pool
from tests.senders import sent_by
from tests.workspaces.helpers import run_until_ready

pytestmark = pytest.mark.django_db
WORLD = sites.with_catalog
GIB = 1024


@pytest.fixture
def gpu(clock, catalog) -> Device:
    pool = checked_pool(node_info(gpus=1, provides=(PROVIDES_SHARES,)))
    Pool.objects.filter(pk=pool.pk).update(hand_out_max_age_hours=0)
    FlavorFactory(slug="half", accelerator_count=1, accelerator_milli=500)
    return Device.objects.get(node__pool=pool)


@pytest.fixture
def shared_workspace(gpu, make, alice, sent) -> Workspace:
    workspace = make(alice, "half")
    run_until_ready(sent, workspace)
    Notification.objects.all().delete()
    return workspace


def note(workspace: Workspace, step: str, used: int = 61, part: int = 40, **fields) -> ShareNote:
    given = {"generation": workspace.generation, "uuid": "GPU-node-1-0", "process": "", "ends_in_s": 0}
    if step == ShareStep.OVER:
        given["ends_in_s"] = 20
    return ShareNote(
        str(workspace.pk), step=step, used_mib=used * GIB, part_mib=part * GIB, **{**given, **fields}
    )


def report_notes(*notes: ShareNote, node: str = "node-1", pool: str = "this-machine") -> int:
    return share_notes.apply(ShareNotes(pool, node, notes))


def shown(workspace: Workspace):
    workspace = Workspace.objects.select_related("status").get(pk=workspace.pk)
    return [
        (row.code.value, row.used_mib, row.part_mib)
        for row in share_overuse.overuse_rows(workspace, timezone.now())
    ]


def kinds(workspace: Workspace) -> list[str]:
    found = Event.objects.filter(workspace=workspace, kind__startswith="workspace.gpu_share").order_by("pk")
    return [event.kind.removeprefix("workspace.gpu_share_") for event in found]


def notices() -> list[Notification]:
    return list(Notification.objects.filter(kind=share_notes.NOTICE).order_by("pk"))


def test_overuse_is_reported_once_per_occurrence(shared_workspace, alice, clock):
    assert report_notes(note(shared_workspace, "over")) == 1
    assert kinds(shared_workspace) == ["over"]
    entry = Event.objects.get(kind="workspace.gpu_share_over")
    assert entry.data["code"] == "gpu_share_over"
    assert (entry.data["used_mib"], entry.data["part_mib"]) == (61 * GIB, 40 * GIB)
    assert "uses 61 GiB" in entry.why and "limit of 40 GiB" in entry.why and "after 20 s" in entry.why
    (notice,) = notices()
    assert (
        notice.user == alice
        and notice.url == f"/workspaces/{shared_workspace.pk}/"
        and "after 20 s" in notice.body
    )
    assert shown(shared_workspace) == [("gpu_share_over", 61 * GIB, 40 * GIB)]
    clock.shift(10)
    assert report_notes(note(shared_workspace, "over", 70)) == 1
    assert kinds(shared_workspace) == ["over"] and len(notices()) == 1
    assert shown(shared_workspace) == [("gpu_share_over", 70 * GIB, 40 * GIB)]
    assert report_notes(note(shared_workspace, "back", 39)) == 1
    assert (kinds(shared_workspace), shown(shared_workspace), len(notices())) == (["over", "back"], [], 1)
    clock.shift(10)
    assert report_notes(note(shared_workspace, "over")) == 1
    assert kinds(shared_workspace) == ["over", "back", "over"] and len(notices()) == 2


def test_ended_process_is_in_the_timeline_and_a_notice(shared_workspace, clock):
    report_notes(note(shared_workspace, "over"))
    clock.shift(20)
    report_notes(note(shared_workspace, "asked", process="python"))
    report_notes(note(shared_workspace, "killed", process="python"))
    assert kinds(shared_workspace) == ["over", "ended", "ended"]
    asked, killed = Event.objects.filter(kind="workspace.gpu_share_ended").order_by("pk")
    assert "used 61 GiB" in asked.why and "asked process “python” to exit" in asked.why
    assert "killed process “python”" in killed.why and killed.data["code"] == "gpu_share_process_killed"
    _over, asked_of, ended = notices()
    assert "was asked to exit" in asked_of.title and "was ended" in ended.title, "though at the same second"
    assert "Use less" in ended.body
    assert [code for code, *_ in shown(shared_workspace)] == ["gpu_share_process_killed"]


def test_process_names_are_not_trusted(shared_workspace, alice, as_user):
    evil = "<script>x</script>\n\u202e" + "a" * 60
    report_notes(note(shared_workspace, "killed", process=evil))
    entry = Event.objects.get(kind="workspace.gpu_share_ended")
    name = entry.data["process"]
    assert len(name) == 64 and "\n" not in name and "\u202e" not in name
    page = as_user(alice).get(f"/workspaces/{shared_workspace.pk}/").content.decode()
    assert "&lt;script&gt;x&lt;/script&gt;" in page and "<script>x</script>" not in page


def test_unenforced_shares_are_reported(shared_workspace, alice, as_user, clock):
    assert report_notes(note(shared_workspace, "unknown", 0)) == 1
    assert report_notes(note(shared_workspace, "unknown", 0)) == 1
    assert kinds(shared_workspace) == ["unknown"] and not notices()
    clock.shift(3600)
    assert shown(shared_workspace) == [("gpu_share_unknown", 0, 40 * GIB)]
    assert "is not enforced" in as_user(alice).get(f"/workspaces/{shared_workspace.pk}/").content.decode()
    report_notes(note(shared_workspace, "back", 1))
    assert shown(shared_workspace) == []


def test_silent_node_clears_overuse(shared_workspace, clock):
    report_notes(note(shared_workspace, "over"))
    clock.shift(share_overuse.SHOWN_FOR.total_seconds() - 1)
    assert shown(shared_workspace)
    clock.shift(2)
    assert not shown(shared_workspace)


def test_overuse_ends_at_stop_and_at_another_start(shared_workspace):
    report_notes(note(shared_workspace, "over"))
    Workspace.objects.filter(pk=shared_workspace.pk).update(state="stopped")
    assert not shown(shared_workspace)
    Workspace.objects.filter(pk=shared_workspace.pk).update(
        state="running", generation=shared_workspace.generation + 1
    )
    assert not shown(shared_workspace)


def test_notes_about_unknown_shares_are_ignored(shared_workspace, subtests, caplog):
    for step, fields, told_by in (
        ("over", {"uuid": "GPU-node-1-1"}, {}),
        ("over", {"uuid": ""}, {}),
        ("over", {"generation": 7}, {}),
        ("exploded", {}, {}),
        ("over", {"used": 40}, {}),
        ("over", {}, {"node": "node-2"}),
        ("over", {}, {"pool": "another"}),
    ):
        caplog.clear()
        with subtests.test(step=step, **fields, **told_by):
            assert report_notes(note(shared_workspace, step, **fields), **told_by) == 0
            assert not kinds(shared_workspace) and not notices() and not shown(shared_workspace)
            assert "ignored note about a shared GPU" in caplog.text


@pytest.mark.parametrize("name", ["", "no-uuid", "00000000-0000-0000-0000-000000000000"])
def test_notes_about_unknown_workspaces_are_ignored(shared_workspace, name):
    other = ShareNote(name, shared_workspace.generation, "GPU-node-1-0", "over", 61 * GIB, 40 * GIB)
    assert report_notes(other, note(shared_workspace, "over")) == 1
    assert kinds(shared_workspace) == ["over"]


def test_whole_gpu_is_not_a_share(gpu, make, alice, sent):
    FlavorFactory(slug="whole", accelerator_count=1)
    workspace = make(alice, "whole")
    run_until_ready(sent, workspace)
    assert report_notes(note(workspace, "over")) == 0


def test_released_share_no_longer_counts(shared_workspace):
    shared_workspace.allocations.get().devices.update(active=False)
    assert report_notes(note(shared_workspace, "over")) == 0


def test_absurd_numbers_are_bounded(shared_workspace, gpu):
    most = 2**31 - 1
    absurd = ShareNote(
        str(shared_workspace.pk), shared_workspace.generation, gpu.uuid, "over", most, most - 1, "x", most
    )
    assert report_notes(absurd) == 1
    assert shown(shared_workspace) == [("gpu_share_over", gpu.memory_mib, gpu.memory_mib)]
    assert Event.objects.get(kind="workspace.gpu_share_over").data["ends_in_s"] == 3600


@pytest.mark.thorough("600 messages; `make test` has one of each kind")
def test_repeated_notes_are_limited_in_timeline_and_notices(shared_workspace, clock):
    for _ in range(200):
        report_notes(note(shared_workspace, "over"))
        report_notes(note(shared_workspace, "asked", process="python"))
        report_notes(note(shared_workspace, "back", 1))
        Notification.objects.update(read_at=timezone.now())
        clock.shift(1)
    found = kinds(shared_workspace)
    assert (found.count("over"), found.count("back"), found.count("ended")) == (6, 20, 20)
    assert len(notices()) <= 26
    kept = Workspace.objects.select_related("status").get(pk=shared_workspace.pk).status.gpu_shares
    assert len(str(kept)) < 3000
    clock.shift(timedelta(hours=1).total_seconds())
    report_notes(note(shared_workspace, "over"))
    assert kinds(shared_workspace).count("over") == 7


def test_rest_shows_current_overuse(shared_workspace, alice, with_token):
    program = with_token(alice, "workspaces:read")

    def overuse():
        return program.get(f"/api/v1/workspaces/{shared_workspace.pk}").json()["gpu_overuse"]

    assert overuse() == []
    report_notes(note(shared_workspace, "over"))
    (row,) = overuse()
    assert (row["device"], row["code"]) == ("GPU-node-1-0", "gpu_share_over")
    assert (row["used_mib"], row["part_mib"]) == (61 * GIB, 40 * GIB)
    assert row["ends_at"] > row["since"]
    listed = program.get("/api/v1/workspaces").json()["results"]
    assert [each["gpu_overuse"] for each in listed] == [[row]]
    report_notes(note(shared_workspace, "back", 1))
    assert overuse() == []


def test_node_can_report_only_its_own_devices(shared_workspace):
    control_app.loader.import_default_modules()
    task = control_app.tasks["control.apply_share_notes"]
    found = messages.dump(ShareNotes("", "node-1", (note(shared_workspace, "over"),)))
    for sender in ("node.node-2", "control", ""):
        with sent_by(sender):
            task.run(report=found)
    with sent_by("node.node-1"):
        task.run(report={"node": "node-1"})
        task.run(report={**found, "notes": found["notes"] * 65})
        assert not kinds(shared_workspace)
        task.run(report=found)
    assert kinds(shared_workspace) == ["over"]
