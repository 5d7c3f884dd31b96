"""Home moves in the portal: permissions, node commands, results and waiting."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from portal.common.errors import InvalidInput, NotAllowed, NotFound, StateConflict
from portal.common.events.models import Event, Notification
from portal.fleet.inventory.models import Node, Pool
from portal.fleet.machines.models import Machine, MachineState
from portal.scheduling import cycle
from portal.scheduling.codes import AdmissionCode
from portal.workspaces import answers
from portal.workspaces.gateway import file_tickets
from portal.workspaces.home_files import services as files
from portal.workspaces.homes import moves as home_moves
from portal.workspaces.homes import places as home_places
from portal.workspaces.homes.codes import HomeMoveCode
from portal.workspaces.lifecycle import State
from portal.workspaces.models import HomeMove, HomePlace, HomeUsage, Workspace
from provisioning import messages
from provisioning.home_messages import HomeMoved, HomeMoveOrder, MoveCommand, MovePhase
from provisioning.types import Failure
from tests import sites
from tests.factories import MachineFactory, UserFactory, local_pool_with, node_info
from tests.scheduling.test_home_places import place_of, preview

pytestmark = pytest.mark.django_db
WORLD = sites.with_catalog


@pytest.fixture
def pool(catalog: None) -> Pool:
    return local_pool_with(node_info("gpu-a"), node_info("gpu-b"), node_info("gpu-c"))


@pytest.fixture
def place(pool, bob, team) -> HomePlace:
    """Bob's home on gpu-a."""
    node = Node.objects.get(name="gpu-a")
    return HomePlace.objects.create(owner=bob, team=team, pool=pool, node=node, since=timezone.now())


@pytest.fixture(autouse=True)
def tickets(monkeypatch) -> dict[str, file_tickets.Transfer]:
    """Record tickets for the front door."""
    kept: dict[str, file_tickets.Transfer] = {}
    monkeypatch.setattr(
        file_tickets,
        "store_home_ticket",
        lambda _, ticket, transfer, lifetime_s: kept.update({ticket: transfer}),
    )
    monkeypatch.setattr(file_tickets, "end_home", lambda _, ticket: kept.pop(ticket, None))
    return kept


def ask(actor, place, node="gpu-b") -> HomeMove:
    return home_moves.move_home(actor=actor, owner=place.owner, team=place.team, pool=place.pool, node=node)


def order(sent) -> HomeMoveOrder:
    """Return the only command sent now."""
    home_moves.sweep()
    (message,) = sent.take("node.move_home")
    return messages.load(message.kwargs["order"], HomeMoveOrder)


def answer(given: HomeMoveOrder, **said) -> bool:
    return home_moves.apply(HomeMoved(given.move, given.lease, given.do, **said))


def failure(code: str, *, retryable: bool = True) -> Failure:
    return Failure(code, "It cannot be.", retryable, "operator")


def expire() -> None:
    """Let the command expire without an answer."""
    HomeMove.objects.update(lease_expires_at=timezone.now(), next_at=timezone.now())


def arrived(sent, move) -> HomeMove:
    answer(order(sent), done=True)
    answer(order(sent), done=True, phase=MovePhase.PLACED, bytes_done=9, bytes_total=9, left_out=1)
    move.refresh_from_db()
    return move


def test_home_move_from_request_to_completion(place, bob, sent, tickets):
    HomeUsage.objects.create(
        owner=bob, team=place.team, node=place.node, used_mib=7, measured_at=timezone.now()
    )
    move = ask(bob, place)
    offer = order(sent)
    assert (offer.do, offer.team, offer.owner, offer.ticket) == (MoveCommand.OFFER, "vision", "bob", "")
    assert answer(offer, done=True) and not answer(offer, done=True)
    fetch = order(sent)
    assert fetch.do is MoveCommand.FETCH and file_tickets.digest_of(fetch.ticket) == offer.digest
    assert tickets[fetch.ticket].workspace == f"ws-{move.pk.hex}" == fetch.host.partition(".")[0]
    assert answer(fetch, bytes_done=3, bytes_total=10)
    move.refresh_from_db()
    assert (move.state, move.bytes_done, move.bytes_total) == ("copying", 3, 10)
    fetch = order(sent)
    answer(fetch, bytes_done=10, bytes_total=10, phase=MovePhase.CHECKING)
    assert HomePlace.objects.get().node.name == "gpu-a"
    answer(order(sent), done=True, phase=MovePhase.PLACED, bytes_done=10, bytes_total=10)
    move.refresh_from_db()
    assert (move.state, move.open, move.left) == ("done", True, "source")
    assert HomePlace.objects.get().node.name == "gpu-b" and not tickets and not HomeUsage.objects.exists()
    remove = order(sent)
    assert remove.do is MoveCommand.REMOVE
    answer(remove)
    answer(order(sent), done=True)
    move.refresh_from_db()
    assert not move.open
    assert [event.kind for event in Event.objects.filter(kind__contains="home_move").order_by("pk")] == [
        "user.home_move_asked", "user.home_moved",
    ]  # fmt: skip
    assert Notification.objects.filter(kind="home.moved", user=bob).exists()
    assert not home_moves.sweep()


def test_only_owner_and_operators_move_a_home(place, bob, alice, olga, sent):
    with pytest.raises(NotFound):
        ask(alice, place)
    move = ask(bob, place)
    assert ask(bob, place).pk == move.pk, "asked for again it is the same"
    with pytest.raises(NotFound):
        home_moves.cancel_move(actor=alice, move_id=move.pk)
    home_moves.cancel_move(actor=olga, move_id=move.pk)
    assert home_moves.cancel_move(actor=bob, move_id=move.pk).state == "cancelled"
    assert ask(olga, place, "gpu-c").pk != move.pk


def test_auditor_sees_moves_and_cannot_change_them(place, bob, people_with_roles, sent):
    move = ask(bob, place)
    auditor = people_with_roles
    assert home_moves.visible_moves(auditor).get() == move
    with pytest.raises(NotAllowed):
        home_moves.cancel_move(actor=auditor, move_id=move.pk)
    with pytest.raises(NotAllowed):
        ask(auditor, place, "gpu-c")


@pytest.fixture
def people_with_roles():
    return UserFactory(is_auditor=True)


@pytest.mark.parametrize("node", ["gpu-x", "", "gpu-\x00", "cordoned", "offline"])
def test_invalid_targets_are_refused(place, bob, node, sent):
    Node.objects.filter(name="gpu-b").update(cordoned=True)
    Node.objects.filter(name="gpu-c").update(online=False)
    with pytest.raises(InvalidInput):
        ask(bob, place, {"cordoned": "gpu-b", "offline": "gpu-c"}.get(node, node))
    with pytest.raises(StateConflict):
        ask(bob, place, "gpu-a")


def test_revoked_machine_is_refused_as_target(place, bob, sent):
    MachineFactory(pool=place.pool, name="gpu-b", state=MachineState.REVOKED)
    with pytest.raises(InvalidInput):
        ask(bob, place)


def test_home_in_use_is_not_moved(pool, make, bob, sent):
    workspace = make(bob)
    place = HomePlace.objects.get()
    other = next(name for name in ("gpu-a", "gpu-b") if name != place_of(workspace))
    with pytest.raises(StateConflict) as refused:
        ask(bob, place, other)
    assert refused.value.reason.code is HomeMoveCode.IN_USE


def test_start_during_a_move_waits_and_runs_on_the_new_machine(place, make, bob, team, sent):
    move = ask(bob, place)
    workspace = make(bob)
    assert workspace.state == State.PENDING
    assert preview(team, bob).reason.code is AdmissionCode.HOME_MOVING
    assert preview(team, bob).reason.params == {"node": "gpu-b"}
    arrived(sent, move)
    cycle.run()
    assert place_of(workspace) == "gpu-b"
    assert home_places.node_of(workspace) == (place.pool, "gpu-b")


def test_waiting_workspace_shows_the_progress_of_the_move(place, make, bob, as_user):
    move = ask(bob, place)
    workspace = make(bob)
    began = timezone.now() - timedelta(minutes=1)
    HomeMove.objects.filter(pk=move.pk).update(
        state="copying", started_at=began, bytes_done=1 << 30, bytes_total=4 << 30
    )
    page = as_user(bob).get(f"/workspaces/{workspace.pk}/").content.decode()
    assert re.search("1 GiB of 4 GiB, about (3 min|2 min 59 s)", page)
    home_moves.cancel_move(actor=bob, move_id=move.pk)
    assert "of 4 GiB" not in as_user(bob).get(f"/workspaces/{workspace.pk}/").content.decode()


def test_start_during_a_cancelled_move_continues_on_the_old_machine(place, make, bob, sent):
    move = ask(bob, place)
    workspace = make(bob)
    home_moves.cancel_move(actor=bob, move_id=move.pk)
    cycle.run()
    assert place_of(workspace) == "gpu-a"


def test_files_cannot_be_changed_during_a_move(pool, make, bob, sent):
    workspace = make(bob)
    place = HomePlace.objects.get()
    move = HomeMove.objects.create(
        owner=bob, team=place.team, pool=pool, source=place.node, source_name="gpu-a", target_name="gpu-b",
        asked_at=timezone.now(), next_at=timezone.now(),
    )  # fmt: skip
    with pytest.raises(StateConflict) as refused:
        files.listing(actor=bob, workspace=workspace)
    assert refused.value.reason.code is HomeMoveCode.HOME_BEING_MOVED
    assert move.active


def test_home_of_a_workspace_placed_at_the_same_moment_is_not_copied(pool, make, bob, sent):
    """A workspace and a move began at once: the move waits without commands."""
    make(bob)
    place = HomePlace.objects.get()
    HomeMove.objects.create(
        owner=bob, team=place.team, pool=pool, source=place.node, source_name=place.node.name,
        target=Node.objects.exclude(pk=place.node_id).first(), target_name="x",
        asked_at=timezone.now(), next_at=timezone.now(),
    )  # fmt: skip
    home_moves.sweep()
    assert not sent.take("node.move_home")
    assert HomeMove.objects.get().reason["code"] == HomeMoveCode.IN_USE


def test_silent_node_is_retried_and_abandoned(place, bob, sent):
    move = ask(bob, place)
    order(sent)
    assert not home_moves.sweep(), "not while the order may be under way"
    expire()
    answer(order(sent), done=True)
    late = order(sent)
    for _ in range(home_moves.MAX_FAILURES):
        expire()
        home_moves.sweep()
    move.refresh_from_db()
    assert (move.state, move.left) == ("failed", "target")
    assert move.reason["code"] in (HomeMoveCode.NEW_SILENT, HomeMoveCode.OLD_SILENT)
    assert not answer(late, done=True, phase=MovePhase.PLACED), "it comes too late"
    assert HomePlace.objects.get().node.name == "gpu-a"


def test_lost_ticket_is_recreated(place, bob, sent, tickets):
    ask(bob, place)
    answer(order(sent), done=True)
    first = order(sent)
    answer(first, failure=failure("offer_gone"))
    again = order(sent)
    assert again.do is MoveCommand.OFFER
    answer(again, done=True)
    assert order(sent).ticket != first.ticket


def test_missing_disk_space_is_reported_with_amounts_and_home_stays(place, bob, olga, sent, tickets):
    move = ask(olga, place)
    answer(order(sent), done=True)
    answer(
        order(sent),
        failure=failure("no_room_for_home", retryable=False), needed=3 << 30, free=1 << 30,
    )  # fmt: skip
    move.refresh_from_db()
    assert move.state == "failed" and not tickets
    assert move.reason["params"] == {"node": "gpu-b", "needed_mib": 3072, "free_mib": 1024}
    assert {notification.user for notification in Notification.objects.filter(kind="home.move_failed")} == {
        bob,
        olga,
    }
    assert "3 GiB" in Notification.objects.filter(user=bob).get().body
    discard = order(sent)
    assert discard.do is MoveCommand.DISCARD
    answer(discard, failure=failure("busy"))
    assert not sent.take("node.move_home")
    HomeMove.objects.update(next_at=timezone.now())
    answer(order(sent), done=True)
    assert not HomeMove.objects.get().open and HomePlace.objects.get().node.name == "gpu-a"


def test_move_cancelled_after_arrival_removes_the_copy(place, bob, sent):
    """The completion arrives after the cancellation: it is ignored, and the copy is removed."""
    move = ask(bob, place)
    answer(order(sent), done=True)
    fetch = order(sent)
    home_moves.cancel_move(actor=bob, move_id=move.pk)
    assert not answer(fetch, done=True, phase=MovePhase.PLACED)
    assert order(sent).do is MoveCommand.DISCARD
    assert HomePlace.objects.get().node.name == "gpu-a"
    with pytest.raises(StateConflict):
        ask(bob, place)


def test_finished_operation_cannot_be_cancelled(place, bob, sent):
    move = arrived(sent, ask(bob, place))
    with pytest.raises(StateConflict):
        home_moves.cancel_move(actor=bob, move_id=move.pk)


@pytest.mark.parametrize("name", ["gpu-a", "gpu-b"])
def test_revoked_machine_ends_the_move(place, bob, name, sent):
    machine = MachineFactory(pool=place.pool, name=name)
    move = ask(bob, place)
    answer(order(sent), done=True)
    Machine.objects.filter(pk=machine.pk).update(state=MachineState.REVOKED)
    home_moves.sweep()
    move.refresh_from_db()
    assert (move.state, move.reason["code"]) == ("failed", HomeMoveCode.NODE_GONE)
    assert HomePlace.objects.get().node.name == "gpu-a"


def test_one_move_per_machine_at_a_time(place, bob, alice, team, sent):
    other = HomePlace.objects.create(
        owner=alice, team=team, pool=place.pool, node=place.node, since=timezone.now()
    )
    ask(bob, place)
    ask(alice, other, "gpu-c")
    home_moves.sweep()
    assert len(sent.take("node.move_home")) == 1
    home_moves.sweep()
    assert not sent.take("node.move_home")


def test_answers_of_another_or_unknown_node_are_ignored(place, bob, sent):
    ask(bob, place)
    given = order(sent)
    for wrong in (
        HomeMoved("x", given.lease, given.do), HomeMoved(given.move, "", given.do),
        HomeMoved(given.move, "other", given.do, done=True),
    ):  # fmt: skip
        assert not home_moves.apply(wrong) and not answers.is_from_move_node(wrong)


def test_home_moves_on_the_page_and_over_rest(place, as_user, bob, sent, client):
    page = as_user(bob)
    html = page.get("/homes/").content.decode()
    assert "Move to another machine" in html and "<option>gpu-b</option>" in html
    page.post(f"/homes/{place.pk}/move/", {"node": "gpu-b"})
    move = HomeMove.objects.get()
    answer(order(sent), done=True)
    answer(order(sent), bytes_done=3 << 30, bytes_total=10 << 30)
    html = page.get("/homes/").content.decode()
    assert "3 GiB of 10 GiB" in html and 'value="30"' in html and "<option>" not in html
    page.post(f"/homes/moves/{move.pk}/cancel/")
    move.refresh_from_db()
    assert move.state == "cancelled"


def test_shared_homes_are_not_moved(place, bob, sent):
    Pool.objects.filter(pk=place.pool_id).update(config={**place.pool.config, "homes_shared": True})
    place.pool.refresh_from_db()
    with pytest.raises(InvalidInput):
        ask(bob, place)


def test_old_moves_do_not_block_new_ones(place, bob, sent):
    move = arrived(sent, ask(bob, place))
    answer(order(sent), done=True)
    assert ask(bob, HomePlace.objects.get(), "gpu-a").pk != move.pk
    assert Workspace.objects.count() == 0 and timedelta(0) is not None
