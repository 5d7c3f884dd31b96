"""First starts spread homes over the machines of a pool by expected load."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta

import pytest
from django.utils import timezone

from portal.catalog.models import Flavor, Template
from portal.common.actors import SYSTEM
from portal.common.domain_events import emit
from portal.fleet.inventory.models import AllocatedDevice, Allocation, Device, Node, Pool
from portal.people.accounts.domain_events import TeamDeletionStarted
from portal.people.accounts.models import Team, User
from portal.scheduling import admission, capacity, cycle, snapshot_cache, snapshot_feed
from portal.workspaces import services
from portal.workspaces.homes import load as home_load
from portal.workspaces.homes import moves
from portal.workspaces.lifecycle import State
from portal.workspaces.models import HomeMoveState, HomePlace, Workspace
from portal.workspaces.models.homes import HOME_USE_HALF_LIFE_S, HOME_USE_MEAN_S
from portal.workspaces.reconcile import release
from tests import sites
from tests.factories import (
    FlavorFactory,
    MembershipFactory,
    UserFactory,
    local_pool_with,
    node_info,
)
from tests.snapshots import rows_changed
from tests.suite.choice import quick_of

pytestmark = pytest.mark.django_db
WORLD = sites.with_catalog
MORE = "more of the same random histories"
HOUR = timedelta(hours=1)


def machines(count: int, *, gpus: int = 4, **config: object) -> Pool:
    nodes = (
        node_info(f"gpu-{number}", gpus=gpus, cpu_milli=64_000, memory_mib=262_144)
        for number in range(1, count + 1)
    )
    pool = local_pool_with(*nodes)
    Pool.objects.update(config={**pool.config, **config}, hand_out_max_age_hours=0)
    rows_changed()
    return pool


@pytest.fixture
def one_gpu(catalog: None) -> Flavor:
    return FlavorFactory(slug="one-gpu", accelerator_count=1, cpu_milli=1000, memory_mib=1024)


@pytest.fixture
def people(team: Team) -> list[User]:
    users = [UserFactory() for _ in range(8)]
    for user in users:
        MembershipFactory(team=team, user=user)
    rows_changed()
    return users


def node_of(workspace: Workspace) -> str:
    (allocation,) = Allocation.objects.filter(workspace=workspace).order_by("-pk")[:1]
    return str(allocation.node.name)


def previewed(user: User, team: Team) -> str:
    """Return the node named by a preview, or an empty string if it would wait."""
    verdict = admission.assess(
        template=Template.objects.get(slug="jupyterlab"),
        flavor=Flavor.objects.get(slug="one-gpu"),
        team=team,
        actor=user,
    )
    return verdict.placement.nodes[0].node if verdict.placement is not None else ""


def homes() -> list[int]:
    """Return the number of homes per machine with homes, ascending."""
    return sorted(Counter(HomePlace.objects.values_list("node__name", flat=True)).values())


def end(workspace: Workspace) -> None:
    """Stop the workspace, with the node reporting before its GPU is reused."""
    services.stop(actor=workspace.owner, workspace_id=workspace.pk)
    workspace.refresh_from_db()
    end_workspace(workspace)


def end_workspace(workspace: Workspace) -> None:
    Workspace.objects.filter(pk=workspace.pk).update(state=State.STOPPED)
    release(workspace, used=False)
    snapshot_feed.workloads([workspace.pk])


def free_gpus() -> int:
    held = AllocatedDevice.objects.filter(active=True).values("device")
    return Device.objects.exclude(pk__in=held).count()


def kept_as_read(pool: Pool) -> None:
    """Assert that the cached preview snapshot equals a newly read one."""
    fresh = capacity.load()[pool.pk].cluster.snapshot()
    with snapshot_cache.preview_cache.use() as kept:
        assert kept.pools[pool.pk].cluster.snapshot() == fresh


def test_homes_of_users_starting_one_by_one_allow_concurrent_starts(one_gpu, people, team, make, sent):
    machines(3)
    for user in people:
        place = previewed(user, team)
        workspace = make(user, "one-gpu")
        assert node_of(workspace) == place, "the preview is the creation"
        end(workspace)
    assert homes() == [2, 3, 3]
    together = [make(user, "one-gpu") for user in people]
    assert [workspace.state for workspace in together if workspace.state == State.PENDING] == []


def test_first_starts_of_one_cycle_are_spread(one_gpu, people, make, sent):
    machines(3)
    Node.objects.update(cordoned=True)
    rows_changed()
    waiting = [make(user, "one-gpu") for user in people]
    Node.objects.update(cordoned=False)
    rows_changed()
    cycle.run()
    assert homes() == [2, 3, 3]
    assert len({node_of(workspace) for workspace in waiting}) == 3


def test_first_start_uses_the_only_machine_with_capacity(one_gpu, people, team, make, sent):
    """Home load never affects feasibility."""
    machines(2)
    first = node_of(make(people[0], "one-gpu"))
    other = Node.objects.exclude(name=first).get()
    Node.objects.filter(pk=other.pk).update(cordoned=True)
    rows_changed()
    assert {node_of(make(user, "one-gpu")) for user in people[1:4]} == {first}
    assert make(people[4], "one-gpu").state == State.PENDING


def test_two_first_starts_of_one_user_in_a_cycle_share_a_machine(one_gpu, people, make, sent):
    machines(3)
    Node.objects.update(cordoned=True)
    rows_changed()
    pair = [make(people[0], "one-gpu"), make(people[0], "one-gpu")]
    Node.objects.update(cordoned=False)
    rows_changed()
    cycle.run()
    assert len({node_of(workspace) for workspace in pair}) == 1


def test_homes_of_inactive_users_weigh_less(one_gpu, people, team, make, sent, clock):
    machines(2)
    for user in people[:2]:
        end(make(user, "one-gpu"))
    busy, left = (HomePlace.objects.get(owner=user) for user in people[:2])
    assert busy.node_id != left.node_id
    # One user works all day, one has left.
    running = make(people[0], "one-gpu")
    clock.shift(14 * 86_400)
    assert home_load.measure() == 2
    assert home_load.measure() == 0, "not again within the hour"
    busy.refresh_from_db()
    left.refresh_from_db()
    assert busy.gpu_milli_s == pytest.approx(1000 * HOME_USE_MEAN_S, rel=1e-4)
    assert left.gpu_milli_s == pytest.approx(1000 * HOME_USE_MEAN_S / 4, rel=1e-4)
    end(running)
    assert [previewed(user, team) for user in people[2:]] == [left.node.name] * 6
    for user in people[2:5]:
        end(make(user, "one-gpu"))
    assert Counter(HomePlace.objects.values_list("node__name", flat=True)) == {
        left.node.name: 3,
        busy.node.name: 2,
    }


def test_only_usage_since_the_last_measurement_is_added(one_gpu, alice, team, make, sent, clock):
    machines(2)
    workspace = make(alice, "one-gpu")
    HomePlace.objects.update(gpu_milli_s=0, cpu_milli_s=0)
    Allocation.objects.update(granted_at=timezone.now() - 100 * HOUR)
    clock.shift(1800)
    end_workspace(workspace)
    clock.shift(1800)
    assert home_load.measure() == 1
    place = HomePlace.objects.get()
    half_an_hour = 1800 * 1000
    assert place.gpu_milli_s == pytest.approx(half_an_hour, rel=0.01) and place.gpu_milli_s < half_an_hour
    assert place.cpu_milli_s == pytest.approx(half_an_hour, rel=0.01)
    left = place.gpu_milli_s
    clock.shift(HOME_USE_HALF_LIFE_S)
    assert home_load.measure() == 1
    place.refresh_from_db()
    assert place.gpu_milli_s == round(left / 2)


def test_cached_snapshot_has_the_homes_of_a_new_one(one_gpu, people, team, make, sent, clock):
    """After a start, a measurement, a move and the deletion of a team."""
    pool = machines(3)

    previewed(people[0], team)
    workspace = make(people[0], "one-gpu")
    kept_as_read(pool)
    end(workspace)
    kept_as_read(pool)
    clock.shift(3600)
    previewed(people[1], team)
    home_load.measure()
    kept_as_read(pool)
    place = HomePlace.objects.get()
    other = Node.objects.exclude(pk=place.node_id).first()
    move = moves.move_home(actor=people[0], owner=people[0], team=team, pool=pool, node=other.name)
    move.refresh_from_db()
    moves._change_place(move)
    assert move.state == HomeMoveState.DONE
    assert HomePlace.objects.get().node == other
    kept_as_read(pool)
    emit(TeamDeletionStarted(team=team, actor=SYSTEM))
    assert not HomePlace.objects.exists()
    kept_as_read(pool)


@pytest.mark.parametrize("seed", quick_of(range(4), (0, 2), MORE))
def test_preview_equals_creation_for_home_load(one_gpu, people, team, make, sent, clock, seed):
    """Users start, stop and pause; a first start waits only if no machine has a free GPU."""
    chance = random.Random(seed)
    pool = machines(3, gpus=chance.choice((1, 2)))
    running: list[Workspace] = []
    for _ in range(24):
        user = chance.choice(people)
        if running and chance.random() < 0.45:
            end(running.pop(chance.randrange(len(running))))
            clock.shift(chance.choice((60, 7200)))
            home_load.measure()
            cycle.run()
        if chance.random() < 0.1:
            kept_as_read(pool)
        new = not HomePlace.objects.filter(owner=user).exists()
        place = previewed(user, team)
        workspace = make(user, "one-gpu")
        assert (workspace.state == State.PENDING) == (not place)
        if place:
            assert node_of(workspace) == place
            running.append(workspace)
            continue
        assert not new or not free_gpus()
        services.stop(actor=user, workspace_id=workspace.pk)
    kept_as_read(pool)


@pytest.mark.parametrize("seed", quick_of(range(6), range(3), MORE))
def test_first_starts_are_not_special_if_homes_are_shared(one_gpu, team, make, sent, seed):
    """First starts and later starts use the same nodes."""
    chance = random.Random(seed)
    machines(3, homes_shared=True, homes="/homes")
    veteran = UserFactory()
    MembershipFactory(team=team, user=veteran)
    rows_changed()
    end(make(veteran, "one-gpu"))
    running: list[Workspace] = []
    for _ in range(8):
        newcomer = UserFactory()
        MembershipFactory(team=team, user=newcomer)
        if running and chance.random() < 0.4:
            end(running.pop(chance.randrange(len(running))))
        place = previewed(veteran, team)
        assert previewed(newcomer, team) == place
        running.append(make(newcomer, "one-gpu"))
        assert node_of(running[-1]) == place
    assert not HomePlace.objects.exists()
