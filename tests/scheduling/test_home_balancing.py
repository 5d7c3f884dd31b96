"""Homes move from full machines to others in quiet hours."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

from portal.fleet.inventory.models import Device, Node, Pool
from portal.people.accounts.models import Team, User
from portal.scheduling import capacity
from portal.scheduling.engine.placement.arrays import NodeArrays
from portal.settings import parsing
from portal.workspaces.gateway import file_tickets
from portal.workspaces.homes import balancing
from portal.workspaces.models import HomeMove, HomeMoveState, HomePlace
from portal.workspaces.models.homes import HOME_USE_MEAN_S
from provisioning.types import Failure
from tests import sites
from tests.broker import Broker
from tests.factories import MembershipFactory, UserFactory, local_pool_with, node_info
from tests.scheduling.homes import answer, finish_moves, measure, orders, put_home

pytestmark = pytest.mark.django_db
WORLD = sites.people
NIGHT = datetime(2026, 1, 5, 2, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _tickets(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tickets at the front door: no node reads here."""
    monkeypatch.setattr(file_tickets, "store_home_ticket", lambda *_, **__: None)
    monkeypatch.setattr(file_tickets, "end_home", lambda *_: None)


@pytest.fixture
def pool(team: Team, settings: object) -> Pool:
    """Two machines with 4 GPUs; the first has the homes of six users with one GPU each."""
    settings.BERTH_BALANCE_HOMES_HOURS = frozenset({1, 2})  # type: ignore[attr-defined]
    pool = local_pool_with(*(node_info(name, gpus=4, cpu_milli=64_000) for name in ("gpu-1", "gpu-2")))
    for number in range(6):
        add_home(pool, team, UserFactory(username=f"user-{number}"))
    return pool


def add_home(pool: Pool, team: Team, owner: User, *, gpu_milli: int = 1000, size_mib: int = 100) -> HomePlace:
    MembershipFactory(team=team, user=owner)
    node = Node.objects.get(pool=pool, name="gpu-1")
    now = timezone.now()
    place = HomePlace.objects.create(
        owner=owner, team=team, pool=pool, node=node, since=now, used_at=now, measured_at=now,
        gpu_milli_s=gpu_milli * HOME_USE_MEAN_S, cpu_milli_s=0,
    )  # fmt: skip
    put_home(place, "gpu-1", size_mib)
    return place


def homes() -> dict[str, int]:
    return dict(Counter(HomePlace.objects.values_list("node__name", flat=True)))


def balance_fully(sent: Broker) -> int:
    """Balance until nothing moves. Returns the number of moved homes."""
    for count in range(20):
        if not balancing.sweep(NIGHT):
            return count
        assert not balancing.sweep(NIGHT), "one at a time"
        finish_moves(sent)
        for place in HomePlace.objects.select_related("owner", "team", "node"):
            measure(place, 100)
    raise AssertionError("homes move for ever")


def test_home_loads_become_equal_and_stable(pool: Pool, sent: Broker) -> None:
    assert balance_fully(sent) == 3
    assert homes() == {"gpu-1": 3, "gpu-2": 3}
    assert set(HomeMove.objects.values_list("requester", "state")) == {(None, HomeMoveState.DONE)}


def test_home_loads_equal_those_of_the_engine(pool: Pool, team: Team) -> None:
    """Also for partitioned GPUs: their instances are counted instead."""
    node = Node.objects.get(name="gpu-1")
    split = node.devices.first()
    for number in range(3):
        Device.objects.create(
            node=node, uuid=f"MIG-{number}", index=10 + number, model="Simulated H100 10 GB", kind="mig",
            parent_uuid=split.uuid, memory_mib=10_000,
        )  # fmt: skip
    Device.objects.filter(pk=split.pk).update(mig_mode=True)
    (read,) = capacity.load().values()
    nodes = {row.pk: row for row in Node.objects.all()}
    ours = {nodes[pk].name: load for pk, load in balancing._loads(nodes).items()}
    assert ours == {state.name: int(NodeArrays([state]).home_load[0]) for state in read.nodes}
    assert ours == {"gpu-1": 1000, "gpu-2": 0}


def test_homes_move_only_in_the_configured_hours(pool: Pool) -> None:
    assert balancing.sweep(NIGHT.replace(hour=3)) == 0
    Pool.objects.update(config={**pool.config, "homes_shared": True})
    assert balancing.sweep(NIGHT) == 0
    assert not HomeMove.objects.exists()


def test_homes_in_use_and_large_homes_are_not_moved(pool: Pool, settings: object) -> None:
    HomePlace.objects.exclude(owner__username="user-3").update(gpu_milli_s=0)
    place = HomePlace.objects.get(owner__username="user-3")
    place.gpu_milli_s = 3000 * HOME_USE_MEAN_S
    place.save()
    add_home(pool, place.team, UserFactory(), gpu_milli=500)
    limit_mib = settings.BERTH_MOVE_HOME_LIMIT_MIB  # type: ignore[attr-defined]
    measure(place, limit_mib + 1)
    balancing.sweep(NIGHT)
    (move,) = HomeMove.objects.all()
    assert move.owner != place.owner


def test_small_difference_moves_no_home(pool: Pool) -> None:
    HomePlace.objects.update(gpu_milli_s=300 * HOME_USE_MEAN_S)
    assert balancing.sweep(NIGHT) == 0


def test_machine_with_a_failed_move_is_paused(pool: Pool, sent: Broker) -> None:
    assert balancing.sweep(NIGHT) == 1
    (order,) = orders(sent)
    answer(order, failure=Failure("no_room_for_home", "The disk is full.", False, "operator"))
    finish_moves(sent)
    move = HomeMove.objects.get()
    assert (move.state, move.open) == (HomeMoveState.FAILED, False)
    assert move.ended_at is not None
    assert balancing.best_moves(pool, move.ended_at) == []


@pytest.mark.parametrize(
    ("text", "hours"),
    [("", set()), ("1-5", {1, 2, 3, 4}), ("22-2", {22, 23, 0, 1}), ("0-24", set(range(24)))],
)
def test_balancing_hours_are_parsed(text: str, hours: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_BALANCE_HOMES_HOURS", text)
    assert parsing.hours("BERTH_BALANCE_HOMES_HOURS") == hours


@pytest.mark.parametrize("text", ["1", "1-25", "at night", "-1-5"])
def test_invalid_balancing_hours_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_BALANCE_HOMES_HOURS", text)
    with pytest.raises(ImproperlyConfigured, match="22-4"):
        parsing.hours("BERTH_BALANCE_HOMES_HOURS")
