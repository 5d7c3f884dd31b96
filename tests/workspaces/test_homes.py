"""Home folders of deleted accounts: kept, or deleted on their nodes."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from portal.common.errors import StateConflict
from portal.common.events.models import Event, Notification
from portal.fleet.inventory import node_commands
from portal.fleet.inventory.models import Allocation
from portal.people.accounts import users
from portal.people.accounts.models import User
from portal.workspaces.homes import deletions
from portal.workspaces.lifecycle import State
from portal.workspaces.models import HomeDeletion, Workspace
from provisioning import messages
from provisioning.node import tasks as node_tasks
from provisioning.registry import driver_for
from provisioning.types import Failure, HomeDeleted
from provisioning.types import HomeDeletion as Order
from tests import sites
from tests.factories import TeamFactory, WorkspaceFactory

pytestmark = pytest.mark.django_db
WORLD = sites.simulated_machines


@pytest.fixture
def ran(make, bob, pool, settle) -> Workspace:
    """Bob's workspace that ran in the simulated pool and left a home there."""
    workspace = make(bob, "sim-cpu")
    settle()
    return workspace


def homes_of(pool) -> frozenset[str]:
    return driver_for(node_commands.config_of(pool)).homes()


def order_on_its_way(sent) -> Order:
    """Take the only pending command."""
    (message,) = sent.take("node.delete_home")
    return messages.load(message.kwargs["order"], Order)


def asked(sent, order: Order | None = None) -> Order:
    """Send due commands and take the only one."""
    sent.take("control.delete_homes")
    deletions.sweep()
    return order_on_its_way(sent)


def answer(order: Order, **said) -> bool:
    return deletions.apply(HomeDeleted(order.deletion, order.lease, **said))


def failure(code: str = "backend_unavailable", *, retryable: bool = True) -> Failure:
    return Failure(code, "The disk is away. Mount it.", retryable, "operator")


@pytest.fixture
def deletion(ada, ran, bob, settle, sent, clock) -> HomeDeletion:
    """The deletion of bob's home, without workspaces and commands."""
    users.delete(actor=ada, user=bob, delete_workspaces=True, delete_homes=True)
    HomeDeletion.objects.update(next_at=timezone.now() + timedelta(days=1))
    settle(resting=lambda: not Workspace.objects.live().exists())
    HomeDeletion.objects.update(next_at=timezone.now(), attempts=0, lease="", lease_expires_at=None)
    sent.clear()
    return HomeDeletion.objects.get()


def entries(kind: str) -> list[Event]:
    return list(Event.objects.filter(kind=kind).order_by("id"))


# --- selection ------------------------------------------------------------------------------------


@pytest.mark.thorough("`make test` has each step in this file")
def test_homes_are_kept_by_default_and_audited_with_their_place(ada, bob, ran, pool, settle):
    users.delete(actor=ada, user=bob, delete_workspaces=True)
    settle()
    assert homes_of(pool) == {"vision/bob"}
    assert not HomeDeletion.objects.exists()
    (entry,) = entries("user.homes_kept")
    node = ran.allocations.get().node.name
    assert entry.data == {"owner": "bob", "homes": [f"vision/bob on {node}"]}
    assert entry.targets.get().key == str(bob.pk)


def test_homes_are_deleted_after_workspaces_and_both_are_audited(ada, bob, ran, pool, settle):
    users.delete(actor=ada, user=bob, delete_workspaces=True, delete_homes=True)
    (entry,) = entries("user.homes_delete_asked")
    assert (entry.actor, entry.data["homes"][0].split(" on ")[0]) == (ada, "vision/bob")
    assert homes_of(pool) == {"vision/bob"}
    settle(resting=lambda: not HomeDeletion.objects.exists())
    assert homes_of(pool) == frozenset()
    (entry,) = entries("user.home_deleted")
    assert (entry.actor_label, entry.data["home"]) == ("Berth", "vision/bob")
    assert entry.targets.get().key == str(bob.pk)
    assert Event.objects.get(kind="workspace.gone").pk < entry.pk


def test_homes_of_another_user_are_kept(ada, alice, bob, make, ran, pool, settle):
    make(alice, "sim-cpu")
    settle()
    users.delete(actor=ada, user=bob, delete_workspaces=True, delete_homes=True)
    settle(resting=lambda: not HomeDeletion.objects.exists())
    assert homes_of(pool) == {"vision/alice"}


def test_homes_of_former_teams_are_deleted_too(bob, ran, pool):
    other = TeamFactory(slug="sound", name="Sound")
    terminated = WorkspaceFactory(owner=bob, team=other, state=State.TERMINATED)
    Allocation.objects.create(
        workspace=terminated,
        node=pool.nodes.get(name=ran.allocations.get().node.name),
        generation=1,
        cpu_milli=1,
        memory_mib=1,
        granted_at=timezone.now(),
        released_at=timezone.now(),
    )
    assert {row["team__slug"] for row in bob.workspaces.homes()} == {"sound", "vision"}


def test_user_without_starts_has_no_home_to_delete(ada, bob, team):
    WorkspaceFactory(owner=bob, team=team, state=State.STOPPED)
    users.delete(actor=ada, user=bob, delete_workspaces=True, delete_homes=True)
    assert not HomeDeletion.objects.exists()
    assert not Event.objects.filter(kind__startswith="user.home").exists()


def test_refused_deletion_keeps_the_home(ada, bob, ran, sent):
    with pytest.raises(StateConflict):
        users.delete(actor=ada, user=bob, delete_homes=True)
    assert not HomeDeletion.objects.exists()
    assert not sent.of("node.delete_home")
    assert User.objects.get(pk=bob.pk).is_active


# --- sending --------------------------------------------------------------------------------------


def test_home_is_not_deleted_while_a_workspace_exists(ada, bob, ran, sent):
    users.delete(actor=ada, user=bob, delete_workspaces=True, delete_homes=True)
    assert deletions.sweep() == 0
    assert not sent.of("node.delete_home")


def test_home_of_an_existing_account_is_not_deleted(deletion, bob, sent):
    User.objects.filter(pk=bob.pk).update(deleted_at=None)
    assert deletions.sweep() == 0


def test_one_deletion_command_at_a_time_per_home(deletion, sent, pool):
    order = asked(sent)
    assert (order.team, order.owner, order.pool.slug) == ("vision", "bob", pool.slug)
    assert deletions.sweep() == 0
    assert not sent.of("node.delete_home")


def test_deletion_is_sent_later_if_redis_is_unavailable(deletion, sent, clock):
    sent.away = True
    deletions.sweep()
    sent.away = False
    clock.shift(60)
    asked(sent)


def test_lost_deletion_command_is_sent_again_with_another_lease(deletion, sent, clock):
    first = asked(sent)
    clock.shift(60)
    second = asked(sent)
    assert first.lease != second.lease
    assert not answer(first, done=True)
    assert HomeDeletion.objects.exists()
    assert answer(second, done=True)
    assert not HomeDeletion.objects.exists()


# --- results --------------------------------------------------------------------------------------


def test_partial_deletion_is_continued_at_once(deletion, sent):
    order = asked(sent)
    assert answer(order, done=False)
    assert not answer(order, done=False)
    again = asked(sent)
    assert again.lease != order.lease
    assert answer(again, done=True)
    assert not answer(again, done=True)
    assert len(entries("user.home_deleted")) == 1


def test_answer_for_an_unknown_deletion_is_dropped(deletion, sent):
    order = asked(sent)
    for deletion_id in ("", "x", "-1", "999999", "1 OR 1=1", "९९९९९९"):
        assert not deletions.apply(HomeDeleted(deletion_id, order.lease, done=True)), deletion_id
    assert not deletions.apply(HomeDeleted(order.deletion, "", done=True))
    assert HomeDeletion.objects.exists()


def test_transient_failure_is_retried_without_notice(deletion, ada, sent, clock):
    assert answer(asked(sent), failure=failure())
    assert deletions.sweep() == 0
    clock.shift(60)
    assert answer(asked(sent), done=True)
    assert not entries("user.home_not_deleted")
    assert not Notification.objects.filter(kind="user.home_not_deleted").exists()


def test_lasting_problem_is_reported_once_and_retried_hourly(deletion, ada, sent, clock):
    for _ in range(deletions.NOTIFY_AFTER + 3):
        assert answer(asked(sent), failure=failure())
        clock.shift(3700)
    (entry,) = entries("user.home_not_deleted")
    assert (entry.data["home"], entry.cause["params"]["text"]) == (
        "vision/bob",
        "The disk is away. Mount it.",
    )
    (notice,) = Notification.objects.filter(kind="user.home_not_deleted")
    assert notice.user == ada and "vision/bob" in notice.title and "The disk is away" in notice.body
    assert answer(asked(sent), done=True)
    assert len(entries("user.home_deleted")) == 1


def test_permanently_silent_node_is_reported(deletion, ada, sent, clock):
    for _ in range(deletions.NOTIFY_AFTER + 1):
        asked(sent)
        clock.shift(3700)
    (notice,) = Notification.objects.filter(kind="user.home_not_deleted")
    assert "did not respond" in notice.body


def test_required_operator_action_is_reported_at_once(deletion, ada, sent, clock):
    assert answer(asked(sent), failure=failure("home_protected", retryable=False))
    (notice,) = Notification.objects.filter(kind="user.home_not_deleted")
    assert notice.user == ada
    clock.shift(1800)
    assert deletions.sweep() == 0
    clock.shift(1900)
    assert answer(asked(sent), done=True)


def test_progress_resets_the_failure_count(deletion, sent, clock):
    for _ in range(5):
        answer(asked(sent), failure=failure())
        clock.shift(3700)
    answer(asked(sent), done=False)
    deletion.refresh_from_db()
    assert deletion.attempts == 0


# --- on the node ----------------------------------------------------------------------------------


def test_expired_deletion_command_is_ignored(deletion, sent, pool):
    order = asked(sent)
    late = node_tasks.run_deletion(order, now=order.expires_at + 1)
    assert late.failure is not None and late.failure.code == "stale"
    assert homes_of(pool) == {"vision/bob"}
    good = node_tasks.run_deletion(order, now=time.time())
    assert (good.done, good.lease, good.deletion) == (True, order.lease, order.deletion)
    assert homes_of(pool) == frozenset()


def test_any_driver_error_is_answered(deletion, sent):
    order = asked(sent)
    for pool in (replace(order.pool, driver="none"), replace(order.pool, config={"state": 5, "no": "key"})):
        said = node_tasks.run_deletion(replace(order, pool=pool), now=time.time())
        assert said.failure is not None and not said.done
