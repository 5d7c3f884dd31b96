"""Home archives in the portal: permissions, node commands, results and waiting."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.common.errors import InvalidInput, NotAllowed, NotFound, StateConflict
from portal.common.events.models import Event, Notification
from portal.fleet.inventory import node_messages
from portal.fleet.inventory.models import Node
from portal.fleet.machines.models import MachineState
from portal.people.accounts import users
from portal.scheduling.codes import AdmissionCode
from portal.workspaces import answers
from portal.workspaces.home_files import services as files
from portal.workspaces.homes import archives as home_archives
from portal.workspaces.homes import moves as home_moves
from portal.workspaces.homes import places as home_places
from portal.workspaces.homes.codes import ArchiveCode
from portal.workspaces.models import HomeArchive, HomePlace, HomeUsage
from provisioning import messages
from provisioning.home_messages import ArchiveCommand, HomeArchived, HomeArchiveOrder
from provisioning.types import Failure
from tests import sites
from tests.factories import MachineFactory, local_pool_with, node_info
from tests.scheduling.test_home_places import preview
from tests.suite.choice import quick_of
from tests.workspaces.helpers import run_until_ready
from tests.workspaces.test_own_packages import stop_it

pytestmark = pytest.mark.django_db
WORLD = sites.with_catalog
DONE = {"done": True, "size_bytes": 900, "home_bytes": 3000, "entries": 7, "left_out": 1, "bytes_done": 3100}


@pytest.fixture
def pool(catalog):
    return local_pool_with(node_info("gpu-a"), node_info("gpu-b"))


@pytest.fixture
def workspace(make, bob, pool, sent):
    """Bob's stopped workspace; his home is on a node of the pool."""
    found = make(bob, name="mine")
    run_until_ready(sent, found)
    stop_it(sent, found)
    sent.take("node.archive_home")
    return found


def make_one(workspace, name="before") -> HomeArchive:
    return home_archives.create(actor=workspace.owner, workspace=workspace, name=name)


def restore(workspace, archive) -> HomeArchive:
    return home_archives.restore(actor=workspace.owner, workspace=workspace, archive_id=archive.pk)


def order(sent) -> HomeArchiveOrder:
    home_archives.sweep()
    (message,) = sent.take("node.archive_home")
    return messages.load(message.kwargs["order"], HomeArchiveOrder)


def answer(given: HomeArchiveOrder, **said) -> bool:
    return home_archives.apply(HomeArchived(given.archive, given.lease, given.do, **said))


def ready(workspace, sent, name="before") -> HomeArchive:
    archive = make_one(workspace, name)
    assert answer(order(sent), **DONE)
    archive.refresh_from_db()
    return archive


def code_of(caught) -> str:
    return str(caught.value.code)


def test_archive_is_created_restored_and_deleted(workspace, bob, sent):
    archive = make_one(workspace, "  before ")
    given = order(sent)
    assert (given.do, given.team, given.owner, given.archive) == (
        ArchiveCommand.MAKE, "vision", "bob", archive.pk.hex,
    )  # fmt: skip
    assert given.most_bytes == home_archives.UNLIMITED and not home_archives.sweep()
    assert answer(given, bytes_done=1000) and not answer(given, bytes_done=1000)
    assert answer(order(sent), bytes_done=10, checking=True)
    archive.refresh_from_db()
    assert (archive.state, archive.bytes_done, archive.restarts, archive.name) == (
        "checking",
        10,
        0,
        "before",
    )
    assert answer(order(sent), **DONE)
    archive.refresh_from_db()
    assert (archive.state, archive.open, archive.size_bytes, archive.entries) == ("ready", False, 900, 7)
    assert not home_archives.sweep()

    restore(workspace, archive)
    given = order(sent)
    assert given.do is ArchiveCommand.RESTORE
    answer(given, done=True, placed=True)
    archive.refresh_from_db()
    assert (archive.state, archive.open, archive.left) == ("ready", True, True) and archive.restored_at
    clear = order(sent)
    assert clear.do is ArchiveCommand.CLEAR and clear.job == given.job
    answer(clear, placed=True)
    answer(order(sent), placed=True, done=True)
    archive.refresh_from_db()
    assert not archive.open

    home_archives.delete(actor=bob, workspace=workspace, archive_id=archive.pk)
    home_archives.delete(actor=bob, workspace=workspace, archive_id=archive.pk)
    given = order(sent)
    assert given.do is ArchiveCommand.DELETE
    answer(given, done=True)
    assert not HomeArchive.objects.exists()
    kinds = [event.kind for event in Event.objects.filter(kind__contains="home_").order_by("pk")]
    assert kinds == [
        "user.home_archived", "user.home_restore_asked", "user.home_restored", "user.home_archive_deleted",
    ]  # fmt: skip
    told = {
        notification.kind: notification.url
        for notification in Notification.objects.filter(user=bob, kind__startswith="home.")
    }
    assert told.keys() == {"home.archived", "home.restored"}
    assert set(told.values()) == {f"/workspaces/{workspace.pk}/files/archives/"}


def test_only_the_home_owner_manages_archives(workspace, alice, olga, charlie, sent, as_user):
    archive = ready(workspace, sent)
    for other in (alice, olga, charlie):
        for act in (home_archives.restore, home_archives.delete, home_archives.cancel):
            with pytest.raises(NotAllowed):
                act(actor=other, workspace=workspace, archive_id=archive.pk)
        with pytest.raises(NotAllowed):
            home_archives.create(actor=other, workspace=workspace)
        with pytest.raises(NotAllowed):
            home_archives.archives_of_home(other, workspace)
    archive.refresh_from_db()
    assert archive.state == "ready" and not sent.take("node.archive_home")


def test_archive_of_another_home_is_not_found(workspace, make, alice, sent):
    archive = ready(workspace, sent)
    mine = make(alice, name="hers")
    for act in (home_archives.restore, home_archives.delete, home_archives.cancel):
        with pytest.raises(NotFound):
            act(actor=alice, workspace=mine, archive_id=archive.pk)


def test_home_in_use_is_not_archived_or_restored(make, bob, pool, sent):
    running = make(bob, name="runs")
    run_until_ready(sent, running)
    with pytest.raises(StateConflict) as refused:
        make_one(running)
    assert code_of(refused) == ArchiveCode.IN_USE
    assert home_archives.archiving_obstacle(running).code is ArchiveCode.IN_USE
    assert not HomeArchive.objects.exists()


def test_other_requests_wait_for_an_open_archive(workspace, bob, team, sent):
    make_one(workspace)
    assert preview(team, bob).reason.code is AdmissionCode.HOME_ARCHIVED
    with pytest.raises(StateConflict) as refused:
        files.listing(actor=bob, workspace=workspace)
    assert code_of(refused) == ArchiveCode.BEING_WORKED_ON
    with pytest.raises(StateConflict) as refused:
        make_one(workspace)
    assert code_of(refused) == ArchiveCode.BEING_WORKED_ON
    answer(order(sent), **DONE)
    assert preview(team, bob).reason.code is AdmissionCode.FITS_NOW


def test_archive_and_move_exclude_each_other(workspace, bob, team, pool, sent):
    place = HomePlace.objects.get(owner=bob)
    other = next(node.name for node in home_moves.target_nodes(pool, other_than=place.node_id))
    archive = make_one(workspace)
    ask = {"actor": bob, "owner": bob, "team": team, "pool": pool, "node": other}
    with pytest.raises(StateConflict) as refused:
        home_moves.move_home(**ask)
    assert code_of(refused) == ArchiveCode.BEING_WORKED_ON
    answer(order(sent), **DONE)
    home_moves.move_home(**ask)
    with pytest.raises(StateConflict):
        make_one(workspace)
    with pytest.raises(StateConflict):
        restore(workspace, archive)


def test_archive_stays_on_its_node_after_a_move(workspace, bob, sent, as_user):
    archive = ready(workspace, sent)
    HomePlace.objects.update(node=Node.objects.exclude(name=archive.node_name).get())
    with pytest.raises(StateConflict) as refused:
        restore(workspace, archive)
    assert code_of(refused) == ArchiveCode.HOME_ELSEWHERE and archive.node_name in str(refused.value.sentence)
    html = as_user(bob).get(f"/workspaces/{workspace.pk}/files/archives/").content.decode()
    assert f"The archive is on {archive.node_name}" in html and "/restore/" not in html and "/delete/" in html
    home_archives.delete(actor=bob, workspace=workspace, archive_id=archive.pk)
    assert order(sent).do is ArchiveCommand.DELETE


def test_number_and_size_of_archives_are_limited(workspace, bob, sent, settings):
    settings.BERTH_HOME_ARCHIVES = 2
    settings.BERTH_HOME_LIMIT_MIB = 1
    ready(workspace, sent)
    second = make_one(workspace)
    given = order(sent)
    assert given.most_bytes == (1 << 20) - 900
    answer(given, refused="archives_full")
    second.refresh_from_db()
    assert (second.state, second.reason["code"]) == ("failed", ArchiveCode.FULL)
    assert order(sent).do is ArchiveCommand.CLEAR
    HomeArchive.objects.filter(pk=second.pk).update(open=False, left=False)
    ready(workspace, sent)
    with pytest.raises(StateConflict) as refused:
        make_one(workspace)
    assert code_of(refused) == ArchiveCode.TOO_MANY


REFUSALS = {
    "disk_full": ArchiveCode.DISK_FULL,
    "unreadable": ArchiveCode.UNREADABLE,
    "bad_stream": ArchiveCode.DAMAGED,
    "not_found": ArchiveCode.GONE,
    "new": ArchiveCode.REPORTED,
}


@pytest.mark.parametrize(
    "refused", quick_of(REFUSALS, ("disk_full", "new"), "`make test` has a reason and an unknown one")
)
def test_refusal_by_the_node_keeps_home_and_archive(workspace, bob, sent, as_user, refused):
    archive = ready(workspace, sent)
    restore(workspace, archive)
    answer(order(sent), refused=refused, about="a/b", free=5 << 20)
    archive.refresh_from_db()
    assert (archive.state, archive.reason["code"], archive.left) == ("ready", REFUSALS[refused], True)
    assert Notification.objects.filter(kind="home.archive_failed", user=bob).exists()
    html = as_user(bob).get(f"/workspaces/{workspace.pk}/files/archives/").content.decode()
    assert "Restore failed." in html
    clear = order(sent)
    answer(clear, done=True)
    archive.refresh_from_db()
    assert not archive.open and archive.restored_at is None and archive.reason


def test_repeatedly_killed_operation_is_abandoned(workspace, sent):
    archive = make_one(workspace)
    for _ in range(home_archives.MAX_RESTARTS):
        answer(order(sent), bytes_done=1000)
        answer(order(sent), bytes_done=10)
        HomeArchive.objects.update(next_at=timezone.now())
    archive.refresh_from_db()
    assert (archive.state, archive.reason["code"]) == ("failed", ArchiveCode.KEEPS_ENDING)


def test_silent_or_failing_node_is_retried(workspace, sent):
    archive = make_one(workspace)
    first = order(sent)
    HomeArchive.objects.update(lease_expires_at=timezone.now(), next_at=timezone.now())
    second = order(sent)
    assert second.lease != first.lease and second.job == first.job and not answer(first, **DONE)
    archive.refresh_from_db()
    assert archive.reason["code"] == ArchiveCode.NODE_SILENT
    stumbles = Failure("busy", "It is worked on.", True, "backend")
    answer(second, failure=stumbles)
    HomeArchive.objects.update(next_at=timezone.now())
    answer(order(sent), failure=Failure("home_nowhere", "There is no home.", False, "user"))
    archive.refresh_from_db()
    assert (archive.state, archive.reason["code"]) == ("failed", ArchiveCode.REPORTED)


def test_archive_operation_is_cancelled(workspace, bob, sent, team):
    archive = ready(workspace, sent)
    restore(workspace, archive)
    given = order(sent)
    home_archives.cancel(actor=bob, workspace=workspace, archive_id=archive.pk)
    assert not answer(given, done=True, placed=True), "its lease has ended"
    clear = order(sent)
    assert clear.do is ArchiveCommand.CLEAR and clear.job == given.job
    answer(clear, done=True, placed=True)
    archive.refresh_from_db()
    assert archive.restored_at is not None, "it had come to its end, and that is said"
    with pytest.raises(StateConflict):
        home_archives.cancel(actor=bob, workspace=workspace, archive_id=archive.pk)
    second = make_one(workspace, "second")
    home_archives.cancel(actor=bob, workspace=workspace, archive_id=second.pk)
    answer(order(sent), done=True)
    assert not HomeArchive.objects.filter(pk=second.pk).exists()


def test_archives_of_a_removed_machine_are_lost(workspace, bob, pool, sent):
    archive = ready(workspace, sent)
    restore(workspace, archive)
    MachineFactory(pool=pool, name=archive.node_name, state=MachineState.REVOKED)
    home_archives.sweep()
    home_archives.sweep()
    archive.refresh_from_db()
    assert (archive.state, archive.open, archive.reason["code"]) == ("ready", False, ArchiveCode.NODE_GONE)
    home_archives.delete(actor=bob, workspace=workspace, archive_id=archive.pk)
    home_archives.sweep()
    assert not HomeArchive.objects.exists() and not sent.take("node.archive_home")


def test_answers_of_another_machine_are_ignored(workspace, pool, sent, monkeypatch):
    make_one(workspace)
    given = order(sent)
    said = HomeArchived(given.archive, given.lease, given.do)
    for wrong in (
        HomeArchived(given.archive, "other", given.do),
        HomeArchived(given.archive, "", given.do),
        HomeArchived("x", given.lease, given.do),
    ):
        assert not answers.is_from_archive_node(wrong) and not home_archives.apply(wrong)
    asked = []
    monkeypatch.setattr(node_messages, "is_from_asked_node", lambda pool, node: asked.append(node) or True)
    assert answers.is_from_archive_node(said) and asked == [HomeArchive.objects.get().node_name]


def test_archives_are_deleted_with_the_account_and_home(workspace, bob, ada, sent):
    archive = ready(workspace, sent)
    other = restore(workspace, archive)
    users.delete(actor=ada, user=bob, delete_workspaces=True, delete_homes=True)
    other.refresh_from_db()
    assert (other.state, other.left) == ("ready", True)
    home_archives.home_deleted(owner_id=bob.pk, team_id=other.team_id, node_id=other.node_id)
    assert not HomeArchive.objects.exists()


def test_archive_names_are_validated(workspace, sent):
    for name in ("x" * 81, "a\nb", "a\u202eb"):
        with pytest.raises(InvalidInput):
            make_one(workspace, name)
    assert make_one(workspace, "  ").name


def test_archives_are_managed_on_the_pages(workspace, bob, as_user, sent, django_assert_max_num_queries):
    browser, here = as_user(bob), f"/workspaces/{workspace.pk}/files/archives/"
    assert "No archives yet" in browser.get(here).content.decode()
    browser.post(here + "create/", {"name": "<b>one</b>"})
    HomeUsage.objects.create(
        owner=bob, team=workspace.team, node=Node.objects.get(name=HomeArchive.objects.get().node_name),
        used_mib=9, measured_at=timezone.now(),
    )  # fmt: skip
    answer(order(sent), bytes_done=3 << 20)
    html = browser.get(here).content.decode()
    assert "&lt;b&gt;one&lt;/b&gt;" in html and "<b>one" not in html
    assert "of about 9" in html and "hx-select" in html and "/restore/" not in html
    answer(order(sent), **DONE)
    archive = HomeArchive.objects.get()
    html = browser.get(here).content.decode()
    assert "7 files and folders" in html and "without 1 pipe" in html and "hx-select" not in html
    question = browser.get(f"{here}{archive.pk}/restore/").content.decode()
    assert (
        "everything now in your home folder" in question and "until the restored one is complete" in question
    )
    assert HomeArchive.objects.get().state == "ready"
    browser.post(f"{here}{archive.pk}/restore/")
    assert HomeArchive.objects.get().state == "restoring"
    browser.post(f"{here}{archive.pk}/cancel/")
    assert HomeArchive.objects.get().state == "ready"
    HomeArchive.objects.update(open=False, left=False)
    for number in range(30):
        HomeArchive.objects.create(
            owner=bob, team=workspace.team, pool=archive.pool, node=archive.node, node_name=archive.node_name,
            name=f"n{number}", state="ready", open=False, asked_at=timezone.now() - timedelta(number),
            next_at=timezone.now(),
        )  # fmt: skip
    with django_assert_max_num_queries(30):
        browser.get(here)


def test_no_archives_in_pools_with_shared_homes(workspace, pool):
    pool.config = {**pool.config, "homes_shared": True}
    pool.save()
    assert not home_places.has_separate_homes(pool)
    with pytest.raises(StateConflict) as refused:
        make_one(workspace)
    assert code_of(refused) == ArchiveCode.NOT_HERE
