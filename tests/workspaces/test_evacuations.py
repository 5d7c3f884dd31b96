"""Evacuation of all homes of a node: progress, waiting, exceptions and permissions."""

from __future__ import annotations

import pytest
from django.utils import timezone

from portal.common.errors import InvalidInput, NotAllowed, NotFound, StateConflict
from portal.common.events.models import Event, Notification
from portal.fleet.inventory.models import Allocation, Node, Pool
from portal.fleet.machines.models import Machine, MachineState
from portal.scheduling import drains
from portal.workspaces.homes import evacuations
from portal.workspaces.homes import moves as home_moves
from portal.workspaces.homes.codes import HomeMoveCode
from portal.workspaces.models import HomeEvacuation, HomeMove, HomePlace, HomeUsage
from tests import sites
from tests.api.conftest import api as api
from tests.factories import MachineFactory, UserFactory, local_pool_with, node_info
from tests.workspaces.test_home_moves import tickets as tickets

pytestmark = pytest.mark.django_db
WORLD = sites.with_catalog


@pytest.fixture
def pool(catalog: None) -> Pool:
    return local_pool_with(node_info("gpu-a"), node_info("gpu-b"), node_info("gpu-c"))


@pytest.fixture
def node(pool) -> Node:
    return Node.objects.get(name="gpu-a")


@pytest.fixture
def homes(node, team) -> list[HomePlace]:
    """Five homes on gpu-a of 10, 20, … MiB; the last is not measured."""
    now, made = timezone.now(), []
    for number in range(5):
        user = UserFactory(username=f"user-{number}")
        made.append(HomePlace.objects.create(owner=user, team=team, pool=node.pool, node=node, since=now))
        if number < 4:
            HomeUsage.objects.create(
                owner=user, team=team, node=node, used_mib=10 * (number + 1), measured_at=now
            )
    return made


def evacuate(actor, node, to="gpu-b") -> HomeEvacuation:
    return evacuations.evacuate(actor=actor, node_id=node.pk, to=to)


def go_on() -> None:
    """Run the evacuation as when it is due again."""
    HomeEvacuation.objects.update(next_at=timezone.now())
    evacuations.sweep()


def arrive(move: HomeMove) -> None:
    """Report the home as complete on its new node."""
    home_moves._change_place(
        HomeMove.objects.select_related("owner", "team", "pool", "source", "target").get(pk=move.pk)
    )
    HomeMove.objects.filter(pk=move.pk).update(open=False, left="")


def fail(move: HomeMove) -> None:
    found = HomeMove.objects.select_related("owner", "team", "pool", "source", "target").get(pk=move.pk)
    reason = evacuations.Reason(HomeMoveCode.NO_ROOM, {"node": "gpu-b", "needed_mib": 3, "free_mib": 1})
    home_moves._give_up(found, evacuations.HomeMoveState.FAILED, home_moves.SYSTEM, reason)
    HomeMove.objects.filter(pk=move.pk).update(open=False, left="")


def active() -> list[HomeMove]:
    return list(HomeMove.objects.filter(state__in=home_moves.ACTIVE_MOVES).order_by("bytes_total"))


def how(actor) -> HomeEvacuation:
    return evacuations.visible_evacuations(actor).get()


def test_homes_are_evacuated_a_few_at_a_time(node, homes, olga, sent):
    made = evacuate(olga, node)
    assert evacuate(olga, node).pk == made.pk, "asked for again it is the same"
    evacuations.sweep()
    assert [each.bytes_total >> 20 for each in active()] == [10, 20], "small ones first, two at a time"
    go_on()
    assert len(active()) == 2
    found = how(olga)
    assert (found.homes, found.moved, found.under_way, found.left) == (5, 0, 2, 5)
    while how(olga).is_open:
        for move in active():
            arrive(move)
        go_on()
    found = how(olga)
    assert (found.state, found.moved, found.stayed, found.left) == ("done", 5, 0, 0)
    assert set(HomePlace.objects.values_list("node__name", flat=True)) == {"gpu-b"}
    assert [event.kind for event in Event.objects.filter(kind__startswith="node.homes").order_by("pk")] == [
        "node.homes_move_asked", "node.homes_moved",
    ]  # fmt: skip
    told = Notification.objects.filter(user=olga)
    assert [each.kind for each in told] == ["node.homes_moved"]
    assert "5 home folders were moved." in told.get().body


def test_home_in_use_waits_until_it_is_free(pool, make, bob, olga, sent):
    workspace = make(bob)
    there = Allocation.objects.get(workspace=workspace).node
    to = Node.objects.exclude(pk=there.pk).first()
    evacuate(olga, there, to.name)
    evacuations.sweep()
    found = how(olga)
    assert not active() and found.is_open and found.reason["code"] == HomeMoveCode.HOMES_IN_USE
    Allocation.objects.update(released_at=timezone.now())
    go_on()
    (move,) = active()
    arrive(move)
    go_on()
    assert how(olga).state == "done" and HomePlace.objects.get().node == to


def test_home_that_moves_with_its_workspace_counts_as_moved(pool, make, bob, olga, sent):
    """A drained workspace starts on another node and takes its home along before the evacuation asks."""
    there = Allocation.objects.get(workspace=make(bob)).node
    to = Node.objects.exclude(pk=there.pk).first()
    place = HomePlace.objects.get()
    earlier = HomeMove.objects.create(
        owner=bob, team=place.team, pool=pool, source=there, source_name=there.name, target_name=to.name,
        state="done", open=False, bytes_done=9, asked_at=timezone.now(), ended_at=timezone.now(),
        next_at=timezone.now(),
    )  # fmt: skip
    evacuate(olga, there, to.name)
    evacuations.sweep()
    assert not active()
    Allocation.objects.update(released_at=timezone.now())
    move = home_moves.begin(place_id=place.pk, node=to.name, actor=home_moves.SYSTEM)
    HomeMove.objects.filter(pk=move.pk).update(bytes_done=5)
    arrive(move)
    go_on()
    found = how(olga)
    assert (found.state, found.moved, found.left, found.bytes_done) == ("done", 1, 0, 5), earlier
    assert "1 home folder was moved." in Notification.objects.get(user=olga).body


def test_failed_or_cancelled_homes_move_with_a_repeated_request(node, homes, olga, sent):
    evacuate(olga, node)
    evacuations.sweep()
    first, second = active()
    fail(first)
    home_moves.cancel_move(actor=second.owner, move_id=second.pk)
    HomeMove.objects.filter(pk=second.pk).update(open=False, left="")
    while how(olga).is_open:
        go_on()
        for move in active():
            arrive(move)
    found = how(olga)
    assert (found.state, found.moved, found.stayed) == ("incomplete", 3, 2)
    assert [each.reason for each in evacuations.unsuccessful_moves(found)].count({}) == 1
    assert not Notification.objects.filter(user=olga, kind="home.move_failed").exists(), (
        "told once, at the end"
    )
    again = evacuate(olga, node)
    assert (again.pk != found.pk, again.homes) == (True, 2)
    evacuations.sweep()
    assert {each.owner_id for each in active()} == {first.owner_id, second.owner_id}


def test_cancelled_evacuation_starts_no_further_moves(node, homes, olga, sent):
    made = evacuate(olga, node)
    evacuations.sweep()
    arrive(active()[0])
    evacuations.cancel(actor=olga, evacuation_id=made.pk)
    evacuations.cancel(actor=olga, evacuation_id=made.pk)
    go_on()
    found = how(olga)
    assert (found.state, found.moved, found.under_way) == ("cancelled", 1, 0)
    assert HomePlace.objects.filter(node=node).count() == 4
    HomeEvacuation.objects.update(state="done")
    with pytest.raises(StateConflict):
        evacuations.cancel(actor=olga, evacuation_id=made.pk)


@pytest.mark.parametrize("machine_name", ["gpu-a", "gpu-b"])
def test_revoked_machine_ends_the_evacuation_with_a_reason(node, homes, olga, sent, machine_name):
    evacuate(olga, node)
    MachineFactory(pool=node.pool, name=machine_name, state=MachineState.REVOKED)
    evacuations.sweep()
    found = how(olga)
    assert (found.state, found.reason["params"]) == ("incomplete", {"node": machine_name})
    assert Machine.objects.count() == 1 and not active()


def test_evacuation_waits_while_the_target_is_unavailable(node, homes, olga, sent):
    evacuate(olga, node)
    Node.objects.filter(name="gpu-b").update(online=False)
    evacuations.sweep()
    assert how(olga).is_open and how(olga).reason["code"] == HomeMoveCode.NO_SUCH_TARGET
    Node.objects.update(online=True)
    go_on()
    assert len(active()) == 2 and how(olga).reason == {}


def test_invalid_evacuations_are_refused(node, homes, olga, sent):
    for to in ("gpu-a", "gpu-x", "gpu-\x00", ""):
        with pytest.raises(InvalidInput):
            evacuate(olga, node, to)
    other = Node.objects.get(name="gpu-b")
    with pytest.raises(StateConflict) as refused:
        evacuate(olga, other, "gpu-a")
    assert refused.value.reason.code is HomeMoveCode.NO_HOMES_THERE
    evacuate(olga, node)
    with pytest.raises(StateConflict) as refused:
        evacuate(olga, node, "gpu-c")
    assert refused.value.reason.code is HomeMoveCode.ALREADY_EVACUATED
    HomePlace.objects.filter(pk=homes[0].pk).update(node=other)
    with pytest.raises(StateConflict) as refused:
        evacuate(olga, other, "gpu-a")
    assert refused.value.reason.params == {"node": "gpu-a", "to": "gpu-b"}, "they would go to and fro"
    Node.objects.exclude(pk=node.pk).update(cordoned=True)
    HomeEvacuation.objects.all().delete()
    with pytest.raises(StateConflict) as refused:
        evacuate(olga, node)
    assert refused.value.reason.code is HomeMoveCode.NO_TARGETS
    Pool.objects.update(config={"homes_shared": True})
    with pytest.raises(StateConflict) as refused:
        evacuate(olga, Node.objects.get(pk=node.pk))
    assert refused.value.reason.code is HomeMoveCode.HOMES_NOT_APART


def test_only_operators_evacuate_homes(node, homes, bob, olga, sent):
    una = UserFactory(is_auditor=True)
    with pytest.raises(NotAllowed):
        evacuations.node_by_id(bob, node.pk)
    with pytest.raises(NotAllowed):
        evacuate(una, node)
    made = evacuate(olga, node)
    for actor in (bob, una):
        with pytest.raises(NotAllowed):
            evacuations.cancel(actor=actor, evacuation_id=made.pk)
    assert evacuations.evacuation(una, made.pk) == made
    with pytest.raises(NotFound):
        evacuations.evacuation(bob, made.pk)


def test_homes_of_a_node_are_counted(node, homes, olga, sent, django_assert_max_num_queries):
    homes[0].owner.deleted_at = timezone.now()
    homes[0].owner.save()
    home_moves.move_home(
        actor=homes[1].owner, owner=homes[1].owner, team=homes[1].team, pool=node.pool, node="gpu-c"
    )
    with django_assert_max_num_queries(4):
        there = evacuations.homes_on_node(olga, node)
    assert (there.homes, there.used_mib, there.measured) == (5, 100, 4)
    assert (there.ready, there.in_use, there.moving, there.kept) == (3, 0, 1, 1)
    assert there.targets == ("gpu-b", "gpu-c") and there.refused is None
    evacuate(olga, node)
    assert how(olga).homes == 4


def test_homes_are_evacuated_over_rest(api, node, homes, olga, bob, sent):
    as_olga = api(olga)
    seen = as_olga.get(f"nodes/{node.pk}/homes").json()
    assert (seen["homes"], seen["ready"], seen["targets"]) == (5, 5, ["gpu-b", "gpu-c"])
    made = as_olga.post(f"nodes/{node.pk}/homes", {"to": "gpu-b"})
    assert made.status_code == 201 and made.json()["left"] == 5
    evacuations.sweep()
    row = as_olga.get("home-evacuations?state=going").json()["results"][0]
    assert (row["from_node"], row["to_node"], row["under_way"], row["left"]) == ("gpu-a", "gpu-b", 2, 5)
    moves = as_olga.get(f"home-moves?evacuation={row['id']}").json()["results"]
    assert {move["evacuation"] for move in moves} == {row["id"]} and len(moves) == 2
    assert as_olga.post(f"home-evacuations/{row['id']}/cancel").json()["state"] == "cancelled"
    assert as_olga.post(f"nodes/{node.pk}/homes", {"to": "gpu-x"}).json()["errors"]["to"]
    assert api(bob).get(f"nodes/{node.pk}/homes").status_code == 403


def test_evacuation_page_and_link_from_the_drain(node, homes, olga, as_user, sent):
    browser = as_user(olga)
    page = browser.get(f"/gpus/nodes/{node.pk}/").content.decode()
    assert "5 home folders, 100 MiB in 4 measured" in page and f"/homes/nodes/{node.pk}/" in page
    asked = browser.get(f"/gpus/nodes/{node.pk}/drain/").content.decode()
    assert "Move home folders to" in asked and "<option>gpu-b</option>" in asked
    answer = browser.post(f"/gpus/nodes/{node.pk}/drain/", {"note": "old", "homes_to": "gpu-c"})
    assert answer["Location"] == f"/homes/nodes/{node.pk}/"
    node.refresh_from_db()
    assert node.cordoned and how(olga).target_name == "gpu-c"
    evacuations.sweep()
    page = browser.get(f"/homes/nodes/{node.pk}/").content.decode()
    assert "Moving to gpu-c" in page and "0 of 5 moved" in page
    polled = browser.get(f"/homes/nodes/{node.pk}/", headers={"HX-Request": "true", "HX-Target": "live"})
    assert polled.status_code == 200 and 'id="live"' in polled.content.decode()
    fail(active()[0])
    page = browser.get(f"/homes/nodes/{node.pk}/").content.decode()
    assert "1 not moved" in page and "user-0" in page and "gpu-b, but only 1 MiB is available" in page
    browser.post(f"/homes/evacuations/{how(olga).pk}/cancel/")
    assert how(olga).state == "cancelled"
    answer = browser.post(f"/homes/nodes/{node.pk}/", {"to": "gpu-x"}, follow=True).content.decode()
    assert "Home folders cannot be moved to" in answer
    assert "5 home folders" not in as_user(homes[0].owner).get(f"/gpus/nodes/{node.pk}/").content.decode()


def test_homes_of_a_drained_node_move_as_workspaces_stop(pool, make, bob, olga, sent):
    """Running workspaces are not disturbed; their homes move once they have stopped."""
    workspace = make(bob)
    there = Allocation.objects.get(workspace=workspace).node
    to = Node.objects.exclude(pk=there.pk).first()
    drains.drain_node(actor=olga, node_id=there.pk, reason="")
    evacuate(olga, there, to.name)
    evacuations.sweep()
    assert not active(), "it runs until its notice is over"
    Allocation.objects.update(released_at=timezone.now())
    go_on()
    assert [each.target_name for each in active()] == [to.name]
