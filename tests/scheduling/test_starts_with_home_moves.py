"""A start whose home node is full moves elsewhere with its home, if that is faster than waiting."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from django.utils import timezone

from portal.catalog.models import Flavor, Template
from portal.common.errors import StateConflict
from portal.fleet.inventory.models import Allocation, Node, Pool
from portal.people.accounts.models import Team, User
from portal.scheduling import admission, cycle, home_offers, snapshot_cache
from portal.scheduling.codes import AdmissionCode
from portal.scheduling.engine.model import Outcome
from portal.scheduling.snapshot import load
from portal.scheduling.verdicts import Verdict
from portal.workspaces import reconcile, services
from portal.workspaces.gateway import file_tickets
from portal.workspaces.home_files import services as files
from portal.workspaces.homes import moves as home_moves
from portal.workspaces.homes.codes import HomeMoveCode
from portal.workspaces.homes.places import PAUSE
from portal.workspaces.lifecycle import State
from portal.workspaces.models import HomeMove, HomePlace, Workspace
from provisioning.home_messages import MoveCommand
from provisioning.types import Failure, Op
from tests.broker import Broker
from tests.factories import FlavorFactory, MembershipFactory, UserFactory
from tests.scheduling import homes
from tests.scheduling.test_home_load import end, kept_as_read, machines, node_of
from tests.snapshots import rows_changed
from tests.suite.choice import quick_of

pytestmark = pytest.mark.django_db
SMALL_MIB = 2150


@pytest.fixture(autouse=True)
def tickets(monkeypatch) -> None:
    """No tickets at the front door: no node reads here."""
    monkeypatch.setattr(file_tickets, "store_home_ticket", lambda *_, **__: None)
    monkeypatch.setattr(file_tickets, "end_home", lambda *_: None)


@pytest.fixture
def pool(catalog: None) -> Pool:
    return machines(2, gpus=1)


@pytest.fixture
def one_gpu(pool: Pool) -> Flavor:
    return FlavorFactory(slug="one-gpu", accelerator_count=1, cpu_milli=1000, memory_mib=1024)


@pytest.fixture
def mate(team: Team) -> User:
    user = UserFactory()
    MembershipFactory(team=team, user=user)
    return user


@pytest.fixture
def blocked(one_gpu: Flavor, alice: User, mate: User, make, sent: Broker) -> HomePlace:
    """Alice's home is on gpu-1, whose only GPU is used for hours; gpu-2 is free."""
    end(make(alice, "one-gpu"))
    place = HomePlace.objects.get(owner=alice)
    homes.put_home(place, "gpu-1", SMALL_MIB)
    Node.objects.filter(name="gpu-2").update(cordoned=True)
    rows_changed()
    assert node_of(make(mate, "one-gpu", expected_s=7200)) == "gpu-1"
    Node.objects.filter(name="gpu-2").update(cordoned=False)
    rows_changed()
    sent.take()
    return place


def preview(user: User, team: Team, **asked: object) -> Verdict:
    return admission.assess(
        template=Template.objects.get(slug="jupyterlab"),
        flavor=Flavor.objects.get(slug="one-gpu"),
        team=team,
        actor=user,
        **asked,
    )


def starts(sent: Broker) -> list[str]:
    """Return the workspaces with a sent start command."""
    commands = [message.command for message in sent.take("node.execute")]
    return [command.ref.workspace_id for command in commands if command.op is Op.START]


def failed(code: str = "no_room_for_home") -> Failure:
    return Failure(code, "The disk is full.", False, "operator")


def allocated_nodes(workspace: Workspace) -> list[str]:
    rows = Allocation.objects.filter(workspace=workspace, released_at=None)
    return list(rows.values_list("node__name", flat=True))


def test_workspace_is_placed_then_home_moves_then_start(blocked, alice, team, make, sent):
    said = preview(alice, team)
    assert (said.outcome, said.reason.code) == (Outcome.FITS_NOW, AdmissionCode.FITS_NOW_WITH_HOME)
    assert said.message == "Starts now on gpu-2. 2.1 GiB of files move there first, about 47 s."
    workspace = make(alice, "one-gpu")
    assert (workspace.state, allocated_nodes(workspace)) == (State.PROVISIONING, ["gpu-2"])
    assert workspace.waits_for_home and not starts(sent)
    move = HomeMove.objects.get()
    assert (move.workspace, move.source_name, move.target_name) == (workspace, "gpu-1", "gpu-2")
    homes.finish_moves(sent)
    assert starts(sent) == [str(workspace.pk)]
    workspace.refresh_from_db()
    assert workspace.home_move_ended_at is not None and not workspace.waits_for_home
    assert HomePlace.objects.get(owner=alice).node.name == "gpu-2"


def test_eight_users_with_homes_on_one_machine_start_together(catalog, team, make, sent):
    FlavorFactory(slug="one-gpu", accelerator_count=1, cpu_milli=1000, memory_mib=1024)
    machines(3, gpus=4)
    people = [UserFactory() for _ in range(8)]
    for user in people:
        MembershipFactory(team=team, user=user)
        rows_changed()
        end(make(user, "one-gpu"))
        homes.put_home(HomePlace.objects.get(owner=user), "gpu-1", SMALL_MIB)
    sent.take()
    together = [make(user, "one-gpu") for user in people]
    assert [workspace.state for workspace in together] == [State.PROVISIONING] * 8
    assert HomeMove.objects.count() == 4
    homes.finish_moves(sent)
    assert sorted(starts(sent)) == sorted(str(workspace.pk) for workspace in together)


def test_start_waits_if_that_is_faster_than_a_move(blocked, alice, mate, team, make, sent):
    """The GPU at home is expected to be free in 20 s; the move takes 47 s."""
    since = timezone.now() - timedelta(seconds=40)
    Workspace.objects.filter(owner=mate).update(expected_s=60, placed_at=since)
    rows_changed()
    said = preview(alice, team)
    assert said.outcome is Outcome.QUEUED
    assert make(alice, "one-gpu").state == State.PENDING
    assert not HomeMove.objects.exists()


def test_large_home_moves_only_on_request(blocked, alice, team, make, sent, settings):
    settings.BERTH_MOVE_HOME_LIMIT_MIB = SMALL_MIB - 1
    said = preview(alice, team)
    assert said.outcome is Outcome.QUEUED
    offer = home_offers.verdict_with_home_move(
        said,
        template=Template.objects.get(slug="jupyterlab"),
        flavor=Flavor.objects.get(slug="one-gpu"),
        team=team,
        actor=alice,
        expected_s=None,
        environment="",
    )
    assert offer is not None and offer.home_move is not None
    assert (offer.home_move.source, offer.home_move.target) == ("gpu-1", "gpu-2")
    waiting = make(alice, "one-gpu")
    assert waiting.state == State.PENDING
    services.stop(actor=alice, workspace_id=waiting.pk)
    assert make(alice, "one-gpu", move_home=True).waits_for_home


def test_form_rest_and_page_show_the_home_move(blocked, alice, team, make, sent, settings, as_user):
    browser = as_user(alice)
    order = {"team": team.slug, "template": "jupyterlab", "flavor": "one-gpu"}
    sentence = "Starts now on gpu-2. 2.1 GiB of files move there first, about 47 s."
    html = browser.get("/workspaces/new/", order).content.decode()
    assert sentence in html and 'name="move_home"' not in html
    settings.BERTH_MOVE_HOME_LIMIT_MIB = 1
    html = browser.get("/workspaces/new/", order).content.decode()
    assert sentence in html and 'name="move_home"' in html
    told = browser.post("/api/v1/admission/preview", order, "application/json").json()
    move = {"from_node": "gpu-1", "to_node": "gpu-2", "size_mib": SMALL_MIB, "seconds": 47}
    assert (told["outcome"], told["home_move"], told["home_move_offer"]) == ("queued", None, move)
    order["move_home"] = True
    told = browser.post("/api/v1/admission/preview", order, "application/json").json()
    assert (told["outcome"], told["home_move"], told["home_move_offer"]) == ("fits_now", move, None)
    made = browser.post("/api/v1/workspaces", order, "application/json").json()
    assert [stage["state"] for stage in made["stages"] if stage["key"] == "home"] == ["current"]
    HomeMove.objects.update(bytes_done=(SMALL_MIB << 20) * 2 // 5)
    html = browser.get(f"/workspaces/{made['id']}/").content.decode()
    assert "Moving 2.1 GiB of files from gpu-1 to gpu-2 · 40 %" in html


def test_home_of_unknown_size_or_in_use_is_not_moved(blocked, alice, team, make, sent):
    FlavorFactory(slug="cpu", cpu_milli=500, memory_mib=512)
    own = make(alice, "cpu")
    assert node_of(own) == "gpu-1"
    assert make(alice, "one-gpu").state == State.PENDING
    end(own)
    cycle.run()
    waiting = Workspace.objects.get(owner=alice, flavor__slug="one-gpu", state=State.PROVISIONING)
    assert waiting.waits_for_home, "as soon as nothing uses the home"


def test_two_starts_of_one_user_in_a_cycle_move_the_home_once(blocked, alice, make, sent):
    Node.objects.update(cordoned=True)
    rows_changed()
    pair = [make(alice, "one-gpu"), make(alice, "cpu-small")]
    Node.objects.update(cordoned=False)
    rows_changed()
    cycle.run()
    states = []
    for workspace in pair:
        workspace.refresh_from_db()
        states.append((workspace.state, workspace.waits_for_home))
    assert sorted(states) in (
        [(State.PENDING, False), (State.PROVISIONING, True)],
        [(State.PENDING, False), (State.PROVISIONING, False)],
    )
    assert HomeMove.objects.count() <= 1


def test_second_start_during_a_move_waits_and_uses_the_new_machine(blocked, alice, team, make, sent):
    make(alice, "one-gpu")
    second = make(alice, "cpu-small")
    second.refresh_from_db()
    assert second.state == State.PENDING
    assert second.queue_entry.reason["code"] == AdmissionCode.HOME_MOVING
    homes.finish_moves(sent)
    cycle.run()
    assert node_of(second) == "gpu-2"


def test_files_cannot_be_changed_during_the_move(blocked, alice, team, make, sent):
    workspace = make(alice, "one-gpu")
    with pytest.raises(StateConflict) as refused:
        files.make_folder(actor=alice, workspace=workspace, path="new")
    assert refused.value.code == HomeMoveCode.HOME_BEING_MOVED


def test_failed_move_releases_the_allocation_and_pauses_for_an_hour(blocked, alice, team, make, sent, clock):
    workspace = make(alice, "one-gpu")
    requested_at = workspace.requested_at
    (offer,) = homes.orders(sent)
    homes.answer(offer)
    (fetch,) = homes.orders(sent)
    homes.answer(fetch, failure=failed())
    homes.reconcile_waiting()
    workspace.refresh_from_db()
    assert (workspace.state, workspace.requested_at, allocated_nodes(workspace)) == (
        State.PENDING,
        requested_at,
        [],
    )
    assert workspace.status.reason["code"] == HomeMoveCode.NOT_WITH_START
    assert HomePlace.objects.get(owner=alice).node.name == "gpu-1"
    homes.finish_moves(sent)
    for passed_s in (1, 600, PAUSE.total_seconds() - 700):
        clock.shift(passed_s)
        cycle.run()
        workspace.refresh_from_db()
        assert workspace.state == State.PENDING and HomeMove.objects.count() == 1
    clock.shift(700)
    cycle.run()
    workspace.refresh_from_db()
    assert workspace.waits_for_home, "it tries again after the pause"


def test_move_cancelled_by_its_owner_is_not_repeated(blocked, alice, make, sent, clock):
    workspace = make(alice, "one-gpu")
    home_moves.cancel_move(actor=alice, move_id=HomeMove.objects.get().pk)
    homes.reconcile_waiting()
    cycle.run()
    workspace.refresh_from_db()
    assert (workspace.state, allocated_nodes(workspace), HomeMove.objects.count()) == (State.PENDING, [], 1)


@pytest.mark.parametrize("way", ["stop", "delete"])
def test_ending_a_start_cancels_its_move(blocked, alice, make, sent, way):
    workspace = make(alice, "one-gpu")
    (offer,) = homes.orders(sent)
    homes.answer(offer)
    getattr(services, way)(actor=alice, workspace_id=workspace.pk)
    move = HomeMove.objects.get()
    assert (move.state, move.left) == ("cancelled", "target")
    (discard,) = homes.orders(sent)
    assert discard.do is MoveCommand.DISCARD
    homes.answer(discard)
    assert HomePlace.objects.get(owner=alice).node.name == "gpu-1"
    assert not starts(sent)
    # The home was not asked to stay: the next start may move it at once.
    Workspace.objects.filter(pk=workspace.pk).update(state=State.STOPPED)
    reconcile.release(workspace, used=False)
    rows_changed()
    assert make(alice, "one-gpu").waits_for_home


def test_start_ended_by_another_rule_cancels_its_move(blocked, alice, make, sent):
    """As when the allocation is withdrawn after a check, without a call of the services."""
    workspace = make(alice, "one-gpu")
    Workspace.objects.filter(pk=workspace.pk).update(state=State.PENDING, home_move_began_at=None)
    assert not homes.orders(sent)
    assert HomeMove.objects.get().state == "cancelled"


def test_silent_node_ends_the_move_and_requeues_the_start(blocked, alice, make, sent, monkeypatch):
    monkeypatch.setattr(home_moves, "MAX_FAILURES", 3)
    workspace = make(alice, "one-gpu")
    for _ in range(home_moves.MAX_FAILURES + 1):
        homes.orders(sent)
        homes.lose_all(sent)
    home_moves.sweep()
    homes.reconcile_waiting()
    workspace.refresh_from_db()
    assert (workspace.state, allocated_nodes(workspace)) == (State.PENDING, [])
    assert HomePlace.objects.get(owner=alice).node.name == "gpu-1"


@pytest.mark.parametrize("lost", range(5))
def test_start_with_a_home_move_survives_any_single_lost_message(blocked, alice, make, sent, clock, lost):
    """The process that sends, or the one that answers, is killed at each step in turn."""
    workspace = make(alice, "one-gpu")
    for step in range(12):
        if step == lost:
            homes.lose_all(sent)
        given = homes.orders(sent)
        if step == lost:
            homes.lose_all(sent)
            continue
        for order in given:
            homes.answer(order)
    sent.take("control.reconcile")
    clock.shift(31)
    homes.reconcile_waiting()
    assert starts(sent) == [str(workspace.pk)]
    assert HomePlace.objects.get(owner=alice).node.name == "gpu-2"
    assert not HomeMove.objects.get().open


def test_estimate_includes_the_home_move(blocked, alice, bob, team, make, sent, clock):
    """The other machine is free first: the start is expected there after the home move."""
    assert node_of(make(bob, "one-gpu", expected_s=600)) == "gpu-2"
    said = preview(alice, team)
    assert said.outcome is Outcome.QUEUED and said.eta_at is not None
    wait_s = (said.eta_at - timezone.now()).total_seconds()
    assert 600 + 47 <= wait_s < 700
    waiting = make(alice, "one-gpu")
    waiting.refresh_from_db()
    assert abs(waiting.queue_entry.eta_at - said.eta_at) < timedelta(seconds=5)


def test_move_estimate_uses_the_measured_rate_and_other_moves(blocked, alice, team, make, sent, pool):
    now = timezone.now()
    HomeMove.objects.create(
        owner=UserFactory(), team=team, pool=pool, source_name="gpu-1", target_name="gpu-2", state="done",
        open=False, asked_at=now, started_at=now - timedelta(seconds=100), ended_at=now, next_at=now,
        bytes_total=1000 << 20, bytes_done=1000 << 20,
    )  # fmt: skip
    rows_changed()
    assert preview(alice, team).home_move.seconds == 4 + 215
    HomeMove.objects.create(
        owner=UserFactory(), team=team, pool=pool, source=Node.objects.get(name="gpu-1"),
        source_name="gpu-1", target_name="gpu-2", state="copying", asked_at=now, next_at=now,
        bytes_total=1100 << 20, bytes_done=100 << 20,
    )  # fmt: skip
    assert preview(alice, team).home_move.seconds == 4 + 315


def test_homes_move_from_cordoned_but_not_unreachable_machines(blocked, alice, team):
    Node.objects.filter(name="gpu-1").update(online=False)
    rows_changed()
    assert preview(alice, team).outcome is Outcome.QUEUED
    Node.objects.filter(name="gpu-1").update(online=True, cordoned=True)
    rows_changed()
    assert preview(alice, team).home_move is not None


@pytest.mark.slow("whole histories for each seed")
@pytest.mark.parametrize("seed", quick_of(range(4), (), "test_home_load has histories in `make test`"))
def test_preview_equals_creation_for_home_moves(one_gpu, team, make, sent, clock, seed, settings):
    """Users start, stop and change their files; homes move, fail to move, and are large."""
    settings.BERTH_MOVE_HOME_LIMIT_MIB = 5000
    chance = random.Random(seed)
    Pool.objects.all().delete()
    pool = machines(3, gpus=chance.choice((1, 2)))
    people = [UserFactory() for _ in range(7)]
    for user in people:
        MembershipFactory(team=team, user=user)
    rows_changed()
    running: list[Workspace] = []
    moved = 0
    for _ in range(30):
        clock.shift(chance.choice((1, 60, 4000)))
        for place in HomePlace.objects.all():
            homes.measure(place, chance.choice((10, 2000, 20_000)))
        rows_changed()
        step(chance, running, sent)
        user = chance.choice(people)
        asked = {"move_home": chance.random() < 0.3, "expected_s": chance.choice((60, 7200))}
        said = preview(user, team, **asked)
        workspace = make(user, "one-gpu", **asked)
        assert (workspace.state == State.PENDING) == (said.outcome is Outcome.QUEUED)
        assert workspace.waits_for_home == (said.home_move is not None)
        if said.placement is None:
            services.stop(actor=user, workspace_id=workspace.pk)
            continue
        assert node_of(workspace) == said.placement.nodes[0].node
        moved += said.home_move is not None
        running.append(workspace)
        as_read(pool)
    assert moved


def step(chance: random.Random, running: list[Workspace], sent: Broker) -> None:
    if chance.random() < 0.3:
        for order in homes.orders(sent):
            homes.answer(order, failure=failed() if order.do is MoveCommand.OFFER else None)
    elif chance.random() < 0.7:
        homes.finish_moves(sent)
    homes.reconcile_waiting()
    if running and chance.random() < 0.5:
        ending = running.pop(chance.randrange(len(running)))
        ending.refresh_from_db()
        if ending.state != State.PENDING:
            end(ending)
        else:
            services.stop(actor=ending.owner, workspace_id=ending.pk)
    cycle.run()


def as_read(pool: Pool) -> None:
    """Assert that the cached snapshot equals a newly read one."""
    kept_as_read(pool)
    fresh = load()
    with snapshot_cache.preview_cache.use() as kept:
        assert kept.scheduler.pending.items == fresh.scheduler.pending.items
