"""A workspace is placed on the node with its user's home; preview and queue agree."""

from __future__ import annotations

import pytest

from portal.catalog import selectors
from portal.common.actors import SYSTEM
from portal.common.errors import NotFound, NotPossible
from portal.common.events.models import Event
from portal.fleet.inventory import services as inventory
from portal.fleet.inventory.models import Allocation, Node, Pool
from portal.scheduling import admission, cycle, snapshot_cache
from portal.workspaces.homes import lost as lost_homes
from portal.workspaces.homes import places as home_places
from portal.workspaces.lifecycle import State
from portal.workspaces.models import HomePlace, QueueEntry, Workspace
from tests.factories import MembershipFactory, TeamFactory, local_pool_with, node_info

pytestmark = pytest.mark.django_db


@pytest.fixture
def pool(catalog: None) -> Pool:
    """Two machines of equal size without homes."""
    return local_pool_with(node_info("gpu-a"), node_info("gpu-b"))


def place_of(workspace: Workspace) -> str:
    return (
        Allocation.objects.filter(workspace=workspace).order_by("-pk").values_list("node__name", flat=True)[0]
    )


def fill(pool: Pool, name: str) -> None:
    """Fill the node completely."""
    Node.objects.filter(pool=pool, name=name).update(cpu_milli=0)
    inventory.emit(inventory.CapacityChanged())


def preview(team, user):
    return admission.assess(
        template=selectors.all_templates().get(slug="jupyterlab"),
        flavor=selectors.all_flavors().get(slug="cpu-small"),
        team=team,
        actor=user,
    )


def test_first_start_decides_the_home_node_and_later_starts_follow(pool, make, alice, team, sent):
    first = make(alice)
    home = HomePlace.objects.get()
    assert (home.owner, home.team, home.node.name) == (alice, team, place_of(first))
    for _ in range(3):
        assert place_of(make(alice)) == home.node.name
    assert HomePlace.objects.count() == 1


def test_each_user_and_team_has_its_own_home(pool, make, alice, bob, team, sent):
    first = place_of(make(alice))
    other = ({"gpu-a", "gpu-b"} - {first}).pop()
    fill(pool, first)
    assert place_of(make(bob)) == other
    second_team = TeamFactory()
    MembershipFactory(team=second_team, user=alice)
    snapshot_cache.forget()
    assert place_of(make(alice, team=second_team)) == other


@pytest.mark.parametrize(
    ("trouble", "code"),
    [
        ({"online": False}, "node_offline"),
        ({"cordoned": True}, "node_cordoned"),
    ],
)
def test_start_waits_while_the_home_node_is_unavailable(pool, make, alice, team, sent, trouble, code):
    home = place_of(make(alice))
    Node.objects.filter(pool=pool, name=home).update(**trouble)
    inventory.emit(inventory.CapacityChanged())
    snapshot_cache.forget()
    verdict = preview(team, alice)
    assert verdict.outcome.value != "fits_now"
    reasons = {node: reason.code.value for node, reason in verdict.reasons}
    assert reasons[home] == code
    assert sorted(reasons.values()) == sorted([code, "home_elsewhere"])
    assert verdict.reason.params["node"] == home, "the reason that is shown is that of the home's node"
    waiting = make(alice)
    waiting.refresh_from_db()
    assert waiting.state == State.PENDING
    Node.objects.filter(pool=pool, name=home).update(online=True, cordoned=False, retired=False)
    inventory.emit(inventory.CapacityChanged())
    snapshot_cache.forget()
    cycle.run()
    assert place_of(waiting) == home


def test_start_is_refused_after_the_home_node_was_revoked(pool, make, alice, team, sent):
    home = place_of(make(alice))
    other = ({"gpu-a", "gpu-b"} - {home}).pop()
    inventory.retire_node(actor=SYSTEM, pool=pool, name=home, reason="revoked")
    Node.objects.filter(pool=pool, name=other).update(online=False)
    snapshot_cache.forget()
    verdict = preview(team, alice)
    assert verdict.outcome.value == "impossible"
    assert {node: reason.code.value for node, reason in verdict.reasons} == {
        home: "node_retired",
        other: "home_elsewhere",
    }
    assert verdict.reason.params["node"] == home
    with pytest.raises(NotPossible):
        make(alice)


def test_start_waits_for_a_full_home_node(pool, make, alice, bob, team, sent):
    home = place_of(make(alice))
    used = Allocation.objects.get()
    Allocation.objects.filter(pk=used.pk).update(cpu_milli=8000)
    inventory.emit(inventory.CapacityChanged())
    snapshot_cache.forget()
    verdict = preview(team, alice)
    assert verdict.outcome.value == "queued"
    assert dict(verdict.reasons)[home].code.value == "cpu_short"
    assert preview(team, bob).outcome.value == "fits_now"


def test_machines_with_shared_homes_accept_all_users(pool, make, alice, team, sent):
    Pool.objects.filter(pk=pool.pk).update(config={**pool.config, "homes_shared": True})
    first = place_of(make(alice))
    assert not HomePlace.objects.exists()
    fill(pool, first)
    snapshot_cache.forget()
    assert place_of(make(alice)) != first


def test_two_first_starts_in_one_cycle_use_one_home(pool, make, alice, sent, monkeypatch):
    """Both wait without a home, each for another machine; one cycle places them."""
    Node.objects.filter(pool=pool).update(cordoned=True)
    inventory.emit(inventory.CapacityChanged())
    pair = [make(alice), make(alice)]
    need = Workspace.objects.get(pk=pair[0].pk).request.cpu_milli
    Node.objects.filter(pool=pool).update(cordoned=False, cpu_milli=need)
    inventory.emit(inventory.CapacityChanged())
    cycle.run()
    assert Allocation.objects.count() == 1 and HomePlace.objects.count() == 1
    Node.objects.filter(pool=pool).update(cpu_milli=2 * need)
    inventory.emit(inventory.CapacityChanged())
    cycle.run()
    assert {place_of(each) for each in pair} == {HomePlace.objects.get().node.name}


def test_node_that_claims_homes_attracts_no_starts(pool, make, alice, team, sent):
    home = place_of(make(alice))
    evil = ({"gpu-a", "gpu-b"} - {home}).pop()
    Node.objects.filter(pool=pool, name=evil).update(labels={"berth:home": home, "berth:lost-home": home})
    Node.objects.filter(pool=pool, name=home).update(cordoned=True)
    inventory.emit(inventory.CapacityChanged())
    snapshot_cache.forget()
    waiting = make(alice)
    waiting.refresh_from_db()
    assert waiting.state == State.PENDING


def test_homes_of_a_removed_machine_are_recreated_only_on_request(pool, make, alice, bob, team, sent):
    home = place_of(make(alice))
    other = ({"gpu-a", "gpu-b"} - {home}).pop()
    Node.objects.filter(pool=pool, name=other).update(cordoned=True)
    inventory.emit(inventory.CapacityChanged())
    waiting = make(alice)
    Allocation.objects.filter(workspace=waiting).delete()
    Workspace.objects.filter(pk=waiting.pk).update(state=State.PENDING, next_reconcile_at=None, lease="")
    Node.objects.filter(pool=pool, name=other).update(cordoned=False)
    inventory.retire_node(actor=SYSTEM, pool=pool, name=home, reason="gone")
    inventory.forget_node(actor=SYSTEM, pool=pool, name=home)
    assert not HomePlace.objects.exists()
    snapshot_cache.forget()
    verdict = preview(team, alice)
    assert (verdict.outcome.value, verdict.reason.code.value) == ("impossible", "home_lost")
    assert verdict.reason.params == {"node": home}
    with pytest.raises(NotPossible):
        make(alice)
    cycle.run()
    waiting.refresh_from_db()
    assert waiting.state == State.PENDING
    assert QueueEntry.objects.get(workspace=waiting).reason["code"] == "home_lost"
    assert place_of(make(bob)) == other, "nobody else waits for it"
    (lost,) = lost_homes.visible_lost_homes(alice)
    with pytest.raises(NotFound):
        lost_homes.recreate(actor=bob, lost_home_id=lost.pk)
    assert not lost_homes.visible_lost_homes(bob).exists()
    lost_homes.recreate(actor=alice, lost_home_id=lost.pk)
    lost_homes.recreate(actor=alice, lost_home_id=lost.pk)
    cycle.run()
    assert place_of(waiting) == other
    assert HomePlace.objects.get(owner=alice).node.name == other
    assert lost_homes.visible_lost_homes(alice).get().recreated_at is not None, "the old one stays listed"
    assert Event.objects.filter(kind="user.home_recreated").count() == 1


def test_home_places_are_read_in_bulk(pool, make, alice, bob, team, sent, django_assert_num_queries):
    make(alice)
    make(bob)
    with django_assert_num_queries(4):
        found = home_places.home_places_by_user([(alice.pk, team.pk), (bob.pk, team.pk)])
    assert len(found) == 2
