"""Unused homes: announced, archived and emptied, restored by a start, deleted only explicitly."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotAllowed, NotFound, StateConflict
from portal.common.events.models import Event, Notification
from portal.reclaim import homes, policy_services, previews
from portal.reclaim.codes import LifetimeCode
from portal.reclaim.models import HomeStay, LastPass
from portal.scheduling.codes import AdmissionCode
from portal.workspaces import services as workspaces
from portal.workspaces.home_files import services as files
from portal.workspaces.homes import archives as home_archives
from portal.workspaces.homes import away
from portal.workspaces.homes import moves as home_moves
from portal.workspaces.homes.codes import ArchiveCode
from portal.workspaces.models import HomeArchive, HomePlace, Workspace
from provisioning import messages
from provisioning.errors import Blame
from provisioning.home_messages import ArchiveCommand, HomeArchived, HomeArchiveOrder
from provisioning.types import Failure
from provisioning.version import VERSION
from tests import sites
from tests.factories import MachineFactory, local_pool_with, node_info
from tests.reclaim.test_kills import _transactions, killed_before, rolled_back
from tests.scheduling.test_home_places import preview
from tests.suite.choice import quick_of
from tests.workspaces.helpers import run_until_ready
from tests.workspaces.test_own_packages import stop_it

pytestmark = pytest.mark.django_db
WORLD = sites.with_catalog
DAY = 86_400
DONE = {"done": True, "size_bytes": 900, "home_bytes": 3000, "entries": 7, "left_out": 1, "bytes_done": 3100}
_ = _transactions


@pytest.fixture
def pool(catalog):
    return local_pool_with(node_info("gpu-a"), node_info("gpu-b"))


@pytest.fixture
def workspace(make, bob, pool, sent, settings) -> Workspace:
    """Bob's stopped workspace; homes are archived after 90 days and can be deleted after 300."""
    settings.BERTH_HOME_ARCHIVE_DAYS, settings.BERTH_HOME_DELETE_DAYS = 90, 300
    settings.BERTH_HOME_NOTICE_DAYS = 14
    found: Workspace = make(bob, name="mine")
    run_until_ready(sent, found)
    stop_it(sent, found)
    sent.clear()
    homes.run()
    return found


@pytest.fixture
def place(workspace) -> HomePlace:
    return HomePlace.objects.get()


def unused(place: HomePlace, days: float, *, told_days: float | None = None) -> None:
    """Set the observed unused time of the home."""
    warned_s = None if told_days is None else told_days * DAY
    used_at = timezone.now() - timedelta(days=days)
    HomePlace.objects.update(used_at=used_at)
    HomeStay.objects.update(used_at=used_at)
    HomeStay.objects.filter(pk=place.pk).update(unused_s=days * DAY, warned_s=warned_s)
    LastPass.objects.filter(pk=LastPass.HOMES).update(at=timezone.now() - timedelta(minutes=10))


def order(sent) -> HomeArchiveOrder:
    home_archives.sweep()
    (message,) = sent.take("node.archive_home")
    return messages.load(message.kwargs["order"], HomeArchiveOrder)


def answer(given: HomeArchiveOrder, **said: Any) -> bool:
    return home_archives.apply(HomeArchived(given.archive, given.lease, given.do, **said))


def archive_and_empty(place: HomePlace, sent) -> HomeArchive:
    """Archive the due home and empty it."""
    unused(place, 91, told_days=15)
    assert homes.run().begun == 1
    assert answer(order(sent), **DONE) and answer(order(sent), done=True, placed=True)
    assert answer(order(sent), done=True, placed=True)
    return HomeArchive.objects.get(away_at__isnull=False)


def notice_kinds() -> list[str]:
    found = Notification.objects.filter(kind__startswith="home.").order_by("pk")
    return list(found.values_list("kind", flat=True))


def code_of(caught) -> str:
    return str(caught.value.code)


def test_unused_home_is_announced_archived_and_restored_by_a_start(workspace, place, bob, sent):
    unused(place, 75)
    assert homes.run() == homes.HomePassReport() and not notice_kinds()
    unused(place, 76)
    assert homes.run() == homes.HomePassReport(warned=1) and notice_kinds() == ["home.unused_warned"]
    assert homes.run() == homes.HomePassReport() and notice_kinds() == ["home.unused_warned"], "once"
    note = Notification.objects.get(kind="home.unused_warned")
    assert note.user == bob and "14 days" in note.title and note.url == "/homes/"
    unused(place, 89, told_days=13)
    assert homes.run().begun == 0
    unused(place, 90, told_days=14)
    assert homes.run().begun == 1 and homes.run() == homes.HomePassReport()

    given = order(sent)
    assert (given.do, given.empties, given.most_bytes) == (ArchiveCommand.MAKE, True, home_archives.UNLIMITED)
    assert answer(given, **DONE)
    archive = HomeArchive.objects.get()
    assert (archive.state, archive.away_at) == ("emptying", None), (
        "nothing is away before the node has said so"
    )
    empty = order(sent)
    assert empty.do is ArchiveCommand.EMPTY and empty.job != given.job
    with pytest.raises(StateConflict) as caught:
        files.listing(actor=bob, workspace=workspace)
    assert code_of(caught) == ArchiveCode.BEING_WORKED_ON
    assert answer(empty, done=True, placed=True) and not answer(empty, done=True, placed=True)
    clear = order(sent)
    assert clear.do is ArchiveCommand.CLEAR and clear.job == empty.job
    assert answer(clear, done=True, placed=True)
    archive.refresh_from_db()
    assert (archive.state, archive.open) == ("ready", False) and archive.away_at and not archive.restored_at
    assert notice_kinds()[-1] == "home.put_away"

    with pytest.raises(StateConflict) as caught:
        files.listing(actor=bob, workspace=workspace)
    assert code_of(caught) == ArchiveCode.AWAY
    for act in (
        lambda: home_archives.delete(actor=bob, workspace=workspace, archive_id=archive.pk),
        lambda: home_archives.create(actor=bob, workspace=workspace),
        lambda: home_moves.begin(place_id=place.pk, node="gpu-b" if place.node.name == "gpu-a" else "gpu-a",
                                 actor=SYSTEM),
    ):  # fmt: skip
        with pytest.raises(StateConflict):
            act()
    assert preview(workspace.team, bob).reason.code is AdmissionCode.HOME_AWAY
    home_archives.sweep()
    assert not sent.take("node.archive_home"), "nobody waits for it"

    workspaces.start(actor=bob, workspace_id=workspace.pk)
    given = order(sent)
    assert given.do is ArchiveCommand.RESTORE
    assert preview(workspace.team, bob).reason.code is AdmissionCode.HOME_ARCHIVED
    assert answer(given, bytes_done=10) and answer(order(sent), done=True, placed=True)
    archive.refresh_from_db()
    assert archive.away_at is None and archive.restored_at and not archive.empties
    assert preview(workspace.team, bob).reason.code is not AdmissionCode.HOME_AWAY
    assert answer(order(sent), done=True, placed=True)
    homes.run()
    assert HomeStay.objects.get().unused_s == 0
    kinds = list(
        Event.objects.filter(kind__startswith="user.home_").order_by("pk").values_list("kind", flat=True)
    )
    assert kinds == [
        "user.home_unused_warned", "user.home_unused_taken", "user.home_put_away", "user.home_restore_asked",
        "user.home_restored",
    ]  # fmt: skip


def test_time_without_passes_does_not_count_as_unused(place, clock):
    unused(place, 70)
    for shift_s in (100 * DAY, -300 * DAY, 100 * DAY):
        clock.shift(shift_s)
        assert homes.run() == homes.HomePassReport()
        assert HomeStay.objects.get().unused_s == 70 * DAY
    unused(place, 89, told_days=13)
    clock.shift(400 * DAY)
    assert homes.run() == homes.HomePassReport()
    stay = HomeStay.objects.get()
    assert (stay.unused_s, stay.warned_s) == (89 * DAY, 13 * DAY)
    clock.shift(600)
    homes.run()
    assert HomeStay.objects.get().unused_s == pytest.approx(89 * DAY + 600, abs=5)


@pytest.mark.parametrize("use", ["runs", "files", "keep"])
def test_use_withdraws_the_notice(workspace, place, bob, sent, use, clock, monkeypatch):
    unused(place, 100, told_days=20)
    clock.shift(5)
    if use == "runs":
        workspaces.start(actor=bob, workspace_id=workspace.pk)
        run_until_ready(sent, workspace)
    elif use == "keep":
        homes.keep_home(actor=bob, place_id=place.pk)
    else:
        monkeypatch.setattr(files.node_rpc, "call", lambda *args, **more: {"ok": {"entries": [], "total": 0}})
        files.listing(actor=bob, workspace=workspace)
    assert homes.run() == homes.HomePassReport()
    stay = HomeStay.objects.get()
    assert stay.unused_s < DAY and stay.warned_s is None and not HomeArchive.objects.exists()


def test_use_between_check_and_archiving_wins(workspace, place, bob, sent):
    unused(place, 100, told_days=20)
    HomePlace.objects.update(used_at=timezone.now())
    assert not homes.archive_if_due(place.pk) and not HomeArchive.objects.exists()


def test_removed_policy_withdraws_the_notice(place, settings):
    unused(place, 80, told_days=3)
    settings.BERTH_HOME_ARCHIVE_DAYS = 0
    assert homes.run() == homes.HomePassReport(withdrawn=1)
    assert HomeStay.objects.get().warned_s is None


@pytest.mark.parametrize("moment", ["making", "emptying", "emptied"])
def test_home_kept_during_archiving_is_restored(workspace, place, bob, sent, moment):
    unused(place, 91, told_days=15)
    homes.run()
    given = order(sent)
    if moment != "making":
        answer(given, **DONE)
        given = order(sent)
    homes.keep_home(actor=bob, place_id=place.pk)
    archive = HomeArchive.objects.get()
    if moment == "making":
        assert archive.state == "deleting"
        return
    # Only the node knows which of both is in place, so the archive is kept until then.
    assert archive.state == "emptying" and archive.left
    home_archives.sweep()
    assert not sent.take("node.archive_home"), "while the other order may be carried out"
    HomeArchive.objects.update(lease_expires_at=timezone.now(), next_at=timezone.now())
    leave = order(sent)
    assert leave.do is ArchiveCommand.LEAVE and leave.job == given.job
    assert not answer(given, done=True, placed=True), "an answer that came too late"
    answer(leave, done=True, placed=moment == "emptied")
    archive.refresh_from_db()
    assert archive.state == "ready" and (archive.away_at is not None) == (moment == "emptied")
    assert archive.empties == (moment == "emptied")


@pytest.mark.parametrize(
    "said", [{"refused": "changed", "about": "notes.txt"}, {"refused": "not_found"},
             {"failure": Failure("disk", "Broken.", retryable=False, blame=Blame.BACKEND)}],
)  # fmt: skip
def test_home_that_cannot_be_emptied_stays(workspace, place, bob, sent, said):
    unused(place, 91, told_days=15)
    homes.run()
    answer(order(sent), **DONE)
    answer(order(sent), **said)
    leave = order(sent)
    assert leave.do is ArchiveCommand.LEAVE
    answer(leave, failure=Failure("busy", "Busy.", retryable=True, blame=Blame.BACKEND))
    HomeArchive.objects.update(next_at=timezone.now())
    answer(order(sent), done=True)
    archive = HomeArchive.objects.get()
    assert archive.away_at is None and not archive.open and not archive.empties
    assert archive.state == ("failed" if said.get("refused") == "not_found" else "ready")
    assert Event.objects.filter(kind="user.home_not_emptied").count() == 1
    assert preview(workspace.team, bob).reason.code is not AdmissionCode.HOME_AWAY
    assert homes.run() == homes.HomePassReport(warned=1), "announced anew, with the whole notice"


def test_failed_archive_is_announced_again(place, sent):
    unused(place, 91, told_days=15)
    homes.run()
    answer(order(sent), refused="disk_full", free=1 << 20)
    assert answer(order(sent), done=True)
    assert homes.run() == homes.HomePassReport(warned=1)
    assert HomeStay.objects.get().warned_s == 0 and not HomeArchive.objects.filter(away_at__isnull=False)


def test_home_taken_into_use_is_not_archived(workspace, place, bob, sent):
    """The workspace was placed by a transaction that did not see the archive yet."""
    unused(place, 91, told_days=15)
    workspaces.start(actor=bob, workspace_id=workspace.pk)
    run_until_ready(sent, workspace)
    with pytest.raises(StateConflict):
        away.begin(place_id=place.pk)
    assert not HomeArchive.objects.exists()


def test_node_of_an_older_version_gets_no_archive_command(place):
    """It does not know the last step."""
    machine = MachineFactory(pool=place.pool, name=place.node.name, version="0.0.1")
    unused(place, 91, told_days=15)
    assert homes.run().begun == 0
    type(machine).objects.update(version=VERSION)
    assert homes.run().begun == 1


def test_failed_restore_is_reported_and_retried(workspace, place, bob, sent, clock):
    archive = archive_and_empty(place, sent)
    homes.restore(actor=bob, place_id=place.pk)
    assert homes.restore(actor=bob, place_id=place.pk).away == archive.pk, "twice is success"
    answer(order(sent), refused="disk_full", free=5 << 20)
    archive.refresh_from_db()
    assert archive.state == "ready" and archive.away_at and archive.reason
    assert answer(order(sent), done=True)
    workspaces.start(actor=bob, workspace_id=workspace.pk)
    home_archives.sweep()
    assert not sent.take("node.archive_home"), "not at once: the disk is as full"
    clock.shift(3700)
    assert order(sent).do is ArchiveCommand.RESTORE


def test_only_owner_and_operators_manage_archived_homes(place, bob, alice, olga, una, charlie, sent):
    for other, error in ((alice, NotFound), (charlie, NotFound), (una, NotAllowed)):
        with pytest.raises(error):
            homes.keep_home(actor=other, place_id=place.pk)
    archive_and_empty(place, sent)
    for other, error in ((alice, NotFound), (charlie, NotFound), (una, NotAllowed)):
        with pytest.raises(error):
            homes.restore(actor=other, place_id=place.pk)
    assert homes.restore(actor=olga, place_id=place.pk)
    assert not homes.visible_homes(alice).exists() and homes.visible_homes(una).count() == 1


def test_administrator_deletes_a_home_after_limit_and_notice(place, bob, ada, olga, sent):
    archive = archive_and_empty(place, sent)
    homes.run()

    def delete(actor=ada, confirm="vision/bob"):
        homes.delete(actor=actor, place_id=place.pk, confirm=confirm, reason="nobody answers")

    for days, told_days in ((0, None), (299, 20), (301, None), (301, 13)):
        unused(place, days, told_days=told_days)
        with pytest.raises(StateConflict) as caught:
            delete()
        assert code_of(caught) == LifetimeCode.HOME_DELETE_NOT_DUE
    unused(place, 290)
    assert homes.run() == homes.HomePassReport(warned=1)
    note = Notification.objects.filter(kind="home.unused_warned").latest("pk")
    assert note.user == bob and "can be deleted" in note.title
    unused(place, 400, told_days=15)
    assert homes.run() == homes.HomePassReport() and HomeArchive.objects.filter(pk=archive.pk).exists(), (
        "never by itself"
    )
    with pytest.raises(NotAllowed):
        delete(olga)
    with pytest.raises(InvalidInput):
        delete(confirm="vision/eve")
    delete()
    given = order(sent)
    assert given.do is ArchiveCommand.DELETE and answer(given, done=True)
    assert not HomeArchive.objects.exists() and HomePlace.objects.exists()
    entry = Event.objects.get(kind="user.home_away_deleted")
    assert "nobody answers" in entry.message and entry.actor == ada
    assert notice_kinds()[-1] == "home.away_deleted"


def test_keeping_an_archive_restarts_its_time(place, bob, ada, sent):
    archive_and_empty(place, sent)
    homes.run()
    unused(place, 400, told_days=20)
    homes.keep_home(actor=bob, place_id=place.pk)
    with pytest.raises(StateConflict):
        homes.delete(actor=ada, place_id=place.pk, confirm="vision/bob", reason="")
    assert homes.run() == homes.HomePassReport()


def test_home_policies_and_their_preview(place, alice, pool, settings):
    settings.BERTH_HOME_ARCHIVE_DAYS = 0
    unused(place, 50)
    site = policy_services.draft(actor=SYSTEM, target="site", values={"archive_days": 60})
    found = previews.preview(site)
    assert (found.homes, found.homes_due) == (1, 1)
    assert (
        previews.preview(
            policy_services.draft(actor=SYSTEM, target="site", values={"archive_days": 80})
        ).homes_due
        == 0
    )
    policy_services.create(actor=SYSTEM, target="site", values={"archive_days": 80, "delete_days": 200})
    policy_services.create(actor=alice, target="team:vision", values={"archive_days": 55})
    assert homes.run() == homes.HomePassReport(warned=1)
    policy_services.put_policy(actor=alice, target="team:vision", values={"archive_days": 500})
    assert homes.run() == homes.HomePassReport(withdrawn=1)
    for target, given in (
        ("team:vision", {"delete_days": 10}),
        ("flavor:cpu-small", {"archive_days": 10}),
    ):
        with pytest.raises(InvalidInput) as caught:
            policy_services.put_policy(actor=SYSTEM, target=target, values=given)
        assert set(caught.value.field_errors) == set(given)


# --- killed before each write ---------------------------------------------------------------------


def visible_state() -> tuple[Any, ...]:
    return (
        tuple(HomeStay.objects.values_list("unused_s", "warned_s", "archive")),
        tuple(HomeArchive.objects.values_list("state", "open", "left", "empties", "away_at")),
        Counter(Notification.objects.values_list("kind", flat=True)),
        Counter(Event.objects.values_list("kind", flat=True)),
    )


def warns(place, bob, sent):
    unused(place, 80)
    return lambda: homes.run()


def begins(place, bob, sent):
    unused(place, 95, told_days=15)
    return lambda: homes.archive_if_due(place.pk)


def is_whole(place, bob, sent):
    unused(place, 95, told_days=15)
    homes.run()
    given = order(sent)
    return lambda: answer(given, **DONE)


def is_emptied(place, bob, sent):
    is_whole(place, bob, sent)()
    given = order(sent)
    return lambda: answer(given, done=True, placed=True)


def is_restored(place, bob, sent):
    archive_and_empty(place, sent)
    homes.restore(actor=bob, place_id=place.pk)
    given = order(sent)
    return lambda: answer(given, done=True, placed=True)


def is_kept(place, bob, sent):
    is_whole(place, bob, sent)()
    return lambda: homes.keep_home(actor=bob, place_id=place.pk)


@pytest.mark.parametrize(
    "step",
    quick_of(
        [warns, begins, is_whole, is_emptied, is_restored, is_kept],
        [begins, is_emptied],
        "a kill before every write; `make test` has some steps",
    ),
)
def test_kill_before_any_write_completes_or_undoes_the_step(place, bob, sent, step, monkeypatch):
    now = timezone.now()
    act = step(place, bob, sent)
    monkeypatch.setattr(timezone, "now", lambda: now)
    before = visible_state()
    with rolled_back():
        act()
        after = visible_state()
    assert before != after
    seen = 0
    for statement in range(1, 100):
        with rolled_back():
            with killed_before(statement) as hit:
                act()
            if not hit:
                break
            seen += 1
            assert visible_state() in (before, after), hit
            act()
            assert visible_state() == after, hit
    else:
        pytest.fail("it does not end")
    assert seen >= (1 if step is is_whole else 2)
