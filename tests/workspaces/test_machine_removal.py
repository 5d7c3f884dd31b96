"""Removal of a revoked machine with everything placed there, confirmed by its name."""

from __future__ import annotations

import pytest
from django.utils import timezone

from portal.common.errors import InvalidInput, NotAllowed, StateConflict, Unavailable
from portal.common.events.models import Event, Notification
from portal.fleet.inventory.models import Allocation, Device, Node
from portal.fleet.machines import keys, redis_users, services
from portal.fleet.machines import tasks as machine_tasks
from portal.fleet.machines.models import Machine
from portal.scheduling import cycle, snapshot_cache
from portal.workspaces import dispatch, machine_removal, reconcile, results
from portal.workspaces import services as workspaces
from portal.workspaces import tasks as workspace_tasks
from portal.workspaces.homes.presenters import remove_question
from portal.workspaces.lifecycle import State
from portal.workspaces.models import HomeArchive, HomePlace, LostHome, Workspace
from provisioning import messages, signing
from tests import sites
from tests.api.conftest import api as api
from tests.factories import MachineFactory, local_pool_with, node_info
from tests.senders import sent_by
from tests.workspaces.helpers import answer, check_invariants, run_until_ready, seen, taken

pytestmark = pytest.mark.django_db
WORLD = sites.with_catalog


@pytest.fixture(autouse=True)
def redis_answers(monkeypatch):
    """Redis has revoked every user."""
    monkeypatch.setattr(redis_users, "sync", lambda names=None: True)


@pytest.fixture
def pool(catalog):
    """gpu-07 has joined; node-1 is this machine."""
    made = local_pool_with(node_info("gpu-07", gpus=2), node_info("node-1"))
    MachineFactory(pool=made, name="gpu-07", signing_key=signing.public_text("ab" * 32))
    Node.objects.filter(name="node-1").update(cordoned=True)
    snapshot_cache.forget()
    return made


@pytest.fixture
def machine(pool):
    return Machine.objects.get()


def revoked(machine, olga):
    return services.revoke(actor=olga, machine_id=machine.pk)


def remove(machine, actor, **changes):
    machine_removal.remove(**{"actor": actor, "machine_id": machine.pk, "confirm": "gpu-07", **changes})


def test_workspaces_on_a_removed_machine_end_and_free_quota(
    pool, machine, make, alice, team, olga, sent, django_capture_on_commit_callbacks
):
    runs, starts = make(alice, name="runs"), None
    run_until_ready(sent, runs)
    starts = make(alice, name="starts")
    late = taken(sent, "start")
    revoked(machine, olga)
    losses = machine_removal.losses_of(olga, machine.pk)
    assert losses.workspaces == ("vision/alice/runs", "vision/alice/starts")
    assert losses.homes == ("vision/alice",) and losses.devices == 2
    with django_capture_on_commit_callbacks(execute=True):
        remove(machine, olga, reason="burnt down")
    for workspace in (runs, starts):
        workspace.refresh_from_db()
        assert (workspace.state, workspace.termination_reason) == (State.FAILED, "lost")
        assert workspace.status.reason == {"code": "machine_removed", "params": {"node": "gpu-07"}}
        assert workspace.lease == "" and workspace.endpoint == ""
    assert not Allocation.objects.filter(released_at=None).exists()
    check_invariants()
    assert not Machine.objects.exists() and not Device.objects.filter(present=True).exists()
    entry = Event.objects.get(kind="machine.removed")
    assert entry.data["workspaces"] == ["vision/alice/runs", "vision/alice/starts"]
    assert entry.data["homes"] == ["vision/alice"] and entry.reason == "burnt down"
    assert Notification.objects.filter(user=alice, kind="workspace.lost").exists()
    assert Notification.objects.filter(user=alice, kind="home.lost").count() == 1
    # Its late results change nothing.
    assert not results.apply_result(seen(late, "running", ready=True, endpoint="unix:x"))
    starts.refresh_from_db()
    assert starts.state == State.FAILED
    assert list(sent.take("node.execute")) == [], "nothing is asked of it any more"


def test_removing_a_machine_completes_stops_and_deletions(pool, machine, make, alice, olga, sent):
    stopping, ending, moving = (make(alice, name=name) for name in ("stopping", "ending", "moving"))
    sent.take("node.execute")
    for workspace in (stopping, ending, moving):
        Workspace.objects.filter(pk=workspace.pk).update(lease="", lease_expires_at=None)
    workspaces.stop(actor=alice, workspace_id=stopping.pk)
    workspaces.delete(actor=alice, workspace_id=ending.pk)
    workspaces.stop(actor=alice, workspace_id=moving.pk)
    Workspace.objects.filter(pk=moving.pk).update(desired_state="running")
    revoked(machine, olga)
    remove(machine, olga)
    states = dict(Workspace.objects.values_list("name", "state"))
    assert states == {"stopping": State.STOPPED, "ending": State.TERMINATED, "moving": State.STOPPED}
    reconcile.sweep()
    moving.refresh_from_db()
    assert moving.state == State.PENDING, "it had to make room, and waits again"
    check_invariants()


def test_workspace_stopped_on_a_removed_machine_can_be_deleted(pool, machine, make, alice, olga, sent):
    workspace = make(alice)
    run_until_ready(sent, workspace)
    workspaces.stop(actor=alice, workspace_id=workspace.pk)
    answer(sent, "stop", "stopped")
    revoked(machine, olga)
    remove(machine, olga)
    Node.objects.filter(name="node-1").update(retired=True)
    workspace.refresh_from_db()
    assert not dispatch.has_worker(workspace)
    workspaces.delete(actor=alice, workspace_id=workspace.pk)
    workspace.refresh_from_db()
    assert workspace.state == State.TERMINATED


def test_removal_requires_the_machine_name(pool, machine, make, alice, olga, bob, sent):
    workspace = make(alice)
    run_until_ready(sent, workspace)
    with pytest.raises(StateConflict) as joined:
        remove(machine, olga)
    assert joined.value.reason.code.value == "machine_still_joined"
    revoked(machine, olga)
    for given in ("", "GPU-07", "gpu-7", "gpu-07\x00x"):
        with pytest.raises(InvalidInput) as wrong:
            remove(machine, olga, confirm=given)
        assert wrong.value.reason.code.value == "machine_not_named"
    with pytest.raises(NotAllowed):
        remove(machine, bob)
    with pytest.raises(StateConflict) as held:
        services.remove(actor=olga, machine_id=machine.pk)
    assert held.value.reason.code.value == "node_has_workspaces"
    workspace.refresh_from_db()
    assert workspace.state == State.RUNNING and HomePlace.objects.exists()


def test_removal_with_homes_requires_confirmation(pool, machine, make, alice, olga, sent, api):
    workspace = make(alice)
    run_until_ready(sent, workspace)
    workspaces.stop(actor=alice, workspace_id=workspace.pk)
    answer(sent, "stop", "stopped")
    revoked(machine, olga)
    refused = api(olga).send("DELETE", f"machines/{machine.pk}")
    assert (refused.status_code, refused.json()["reason"]["code"]) == (409, "node_has_homes")
    assert "1 home folder exists only on gpu-07" in refused.json()["detail"]
    assert HomePlace.objects.exists() and Machine.objects.exists()
    HomePlace.objects.all().delete()
    assert api(olga).send("DELETE", f"machines/{machine.pk}").status_code == 204


def test_removal_waits_until_redis_access_is_revoked(pool, machine, make, alice, olga, sent, monkeypatch):
    workspace = make(alice)
    run_until_ready(sent, workspace)
    revoked(machine, olga)
    monkeypatch.setattr(redis_users, "sync", lambda names=None: False)
    with pytest.raises(Unavailable):
        remove(machine, olga)
    workspace.refresh_from_db()
    assert workspace.state == State.RUNNING and Machine.objects.exists()


def test_gpus_of_a_returned_machine_are_scrubbed_before_use(pool, machine, make, alice, olga, sent):
    workspace = make(alice)
    run_until_ready(sent, workspace)
    device = Device.objects.order_by("index").first()
    Allocation.objects.get().devices.create(device=device, milli=1000)
    revoked(machine, olga)
    remove(machine, olga)
    device.refresh_from_db()
    assert (device.cordoned, device.cordon_cause, device.present) == (True, "scrub", False)
    assert "Scrub the device" in device.cordon_reason
    assert not Device.objects.exclude(pk=device.pk).filter(cordoned=True).exists()


def test_messages_of_a_removed_machine_are_dropped_despite_a_cached_key(
    pool, machine, make, alice, olga, sent
):
    """Its row is deleted while processes cache its key for ten seconds."""
    workspace = make(alice)
    command = taken(sent, "start")
    assert not keys.directory.refuses(signing.sender_of("gpu-07"))
    revoked(machine, olga)
    assert keys.directory.refuses(signing.sender_of("gpu-07"))
    Workspace.objects.filter(pk=workspace.pk).update(lease=command.lease)
    remove(machine, olga)
    assert keys.directory.refuses(signing.sender_of("gpu-07"))
    with sent_by(signing.sender_of("gpu-07")):
        workspace_tasks.apply_result(result=messages.dump(seen(command, "running", ready=True)))
        machine_tasks.node_hello(hello={})
    workspace.refresh_from_db()
    assert workspace.state == State.FAILED
    assert not Machine.objects.exists()


def test_removal_page_lists_losses_and_asks_for_the_name(pool, machine, make, alice, olga, sent, as_user):
    workspace = make(alice, name="paper")
    run_until_ready(sent, workspace)
    browser, url = as_user(olga), f"/machines/{machine.pk}/delete/"
    assert "gpu-07 is still joined" in browser.get(url).content.decode()
    revoked(machine, olga)
    page = browser.get(url).content.decode()
    assert "vision/alice/paper" in page and "access to 1 home folder that is only there" in page
    assert "2 devices in the inventory" in page
    wrong = browser.post(url, {"confirm": "gpu-08"})
    assert wrong.status_code == 400 and "is not the name of this machine" in wrong.content.decode()
    assert Machine.objects.exists()
    done = browser.post(url, {"confirm": " gpu-07 ", "note": "stolen"}, follow=True).content.decode()
    assert "gpu-07 removed." in done and not Machine.objects.exists()
    own = as_user(alice)
    page = own.get(f"/workspaces/{workspace.pk}/").content.decode()
    assert "gpu-07 was removed" in page and "View home folders" in page
    refused = own.post(f"/workspaces/{workspace.pk}/start/", follow=True).content.decode()
    assert "Your home folder was on gpu-07, which was removed." in refused
    assert "Create an empty home folder" in own.get("/homes/").content.decode()
    lost = LostHome.objects.get()
    assert "access to the old files" in own.get(f"/homes/lost/{lost.pk}/recreate/").content.decode()
    own.post(f"/homes/lost/{lost.pk}/recreate/")
    Node.objects.filter(name="node-1").update(cordoned=False)
    snapshot_cache.forget()
    own.post(f"/workspaces/{workspace.pk}/start/")
    cycle.run()
    assert workspace.allocations.get(released_at=None).node.name == "node-1"
    assert "A new home folder was created" in own.get("/homes/").content.decode()


def test_machine_removal_over_rest(pool, machine, make, alice, olga, sent, api):
    run_until_ready(sent, make(alice, name="paper"))
    revoked(machine, olga)
    program, path = api(olga), f"machines/{machine.pk}/delete"
    losses = program.get(f"machines/{machine.pk}/losses").json()
    assert losses == {
        "machine": "gpu-07",
        "workspaces": ["vision/alice/paper"],
        "workspace_count": 1,
        "homes": ["vision/alice"],
        "home_count": 1,
        "archive_count": 0,
        "archived": [],
        "devices": 2,
    }
    assert program.send("DELETE", f"machines/{machine.pk}").status_code == 409
    assert program.post(path, {"confirm": "x"}).json()["reason"]["code"] == "machine_not_named"
    assert program.post(path, {"confirm": "gpu-07"}).status_code == 204
    (lost,) = api(alice).get("lost-homes").json()["results"]
    assert (lost["node"], lost["recreated_at"]) == ("gpu-07", None)
    begun = api(alice).post(f"lost-homes/{lost['id']}/recreate", {})
    assert begun.status_code == 200 and begun.json()["recreated_at"]


def test_lost_and_remote_archives_are_distinguished(pool, machine, make, alice, bob, team, olga, sent):
    now = timezone.now()
    revoked(machine, olga)
    cut_off, other = Node.objects.get(name="gpu-07"), Node.objects.get(name="node-1")

    def kept(user, node, state="ready"):
        HomeArchive.objects.create(
            owner=user, team=team, pool=pool, node=node, node_name=node.name, name="a", state=state,
            open=False, asked_at=now, next_at=now,
        )  # fmt: skip

    for user in (alice, bob):
        HomePlace.objects.create(owner=user, team=team, pool=pool, node=cut_off, since=now)
        kept(user, cut_off)
    kept(bob, other, "failed")
    losses = machine_removal.losses_of(olga, machine.pk)
    assert (losses.archive_count, losses.archived) == (2, ())
    question = remove_question(losses)
    assert "access to 2 archives of home folders" in question["loses"]
    assert any("they have no archive on another machine" in line for line in question["loses"])
    assert question["stays"][-1] == "audit log entries"

    kept(alice, other)
    losses = machine_removal.losses_of(olga, machine.pk)
    assert (losses.archive_count, losses.archived) == (2, ("vision/alice",))
    assert remove_question(losses)["stays"][-1].endswith("on other machines: vision/alice")

    MachineFactory(pool=pool, name="node-1", state="revoked")
    assert machine_removal.losses_of(olga, machine.pk).archived == ()
