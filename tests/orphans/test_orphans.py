"""Items without owner are listed and removed by policy or by an operator; owned ones never."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotAllowed, StateConflict
from portal.common.events.models import Event
from portal.fleet.inventory.models import Node, Pool
from portal.people.accounts import users
from portal.people.accounts.models import Team, User
from portal.workspaces import results
from portal.workspaces.homes import limits as home_limits
from portal.workspaces.models import HomeDeletion, Workspace
from portal.workspaces.orphans import ownership, selectors, services, tasks
from portal.workspaces.orphans.models import THERE, Orphan
from provisioning import messages
from provisioning.types import (
    Failure,
    HomeUsage,
    Leftover,
    LeftoverKind,
    LeftoverRemoval,
    LeftoverRemoved,
    Observation,
    ObservedState,
    WorkspaceRef,
)
from tests import sites
from tests.api.conftest import api as api
from tests.factories import TeamFactory, UserFactory, WorkspaceFactory
from tests.senders import sent_by
from tests.suite.choice import examples

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]
WORLD = sites.one_machine
FOLDER = f"ws-{uuid.uuid4().hex}"
STATES = ("found", "removing", "removed", "gone")


def measure(*homes: str, node: str = "node-1") -> None:
    home_limits.apply(
        pool_slug="this-machine", node_name=node, measured=[HomeUsage(home, 700) for home in homes]
    )


def listing(*found: Leftover, pool: Pool) -> None:
    services.apply_listing(pool=pool, node="node-1", leftovers=found)


def states() -> dict[str, str]:
    return dict(Orphan.objects.values_list("name", "state"))


def order_of(sent) -> LeftoverRemoval:
    (message,) = sent.take("node.remove_leftover")
    assert message.queue == "node.node-1"
    return messages.load(message.kwargs["order"], LeftoverRemoval)


def answer(order: LeftoverRemoval, **given) -> bool:
    return services.apply_removed(LeftoverRemoved(order.orphan, order.lease, **given))


@pytest.fixture
def home(local_pool, team) -> Orphan:
    """The home of an unknown user."""
    measure(f"{team.slug}/ghost")
    return Orphan.objects.get()


def test_ownerless_homes_are_listed_with_size_and_never_deleted_automatically(home, clock, sent, olga):
    assert (home.kind, home.name.split("/")[1], home.size_mib, home.state) == ("home", "ghost", 700, "found")
    clock.shift(timedelta(days=400))
    measure(home.name)
    services.sweep()
    assert states() == {home.name: "found"} and not sent.of("node.remove_leftover")
    with pytest.raises(InvalidInput):
        services.remove(actor=olga, orphan_id=home.pk, confirm="ghost")
    services.remove(actor=olga, orphan_id=home.pk, confirm=home.name)
    order = order_of(sent)
    assert (order.kind, order.name) == (LeftoverKind.HOME, home.name)
    assert answer(order) and not answer(order)  # more remains: another command with another lease
    order = order_of(sent)
    assert answer(order, done=True)
    assert states() == {home.name: "removed"}
    said = list(
        Event.objects.filter(kind__startswith="orphan.").order_by("pk").values_list("kind", flat=True)
    )
    assert said == ["orphan.removal_asked", "orphan.removed"]


def test_homes_of_users_former_members_and_pending_deletions_are_not_listed(local_pool, team, bob):
    stranger = UserFactory(username="stranger")  # in no team
    deleted = UserFactory(username="was-here", deleted_at=timezone.now(), is_active=False)
    measure(*(f"{team.slug}/{name}" for name in (bob.username, stranger.username, "STRANGER", "was-here")))
    assert states() == {f"{team.slug}/was-here": "found"}
    now = timezone.now()
    HomeDeletion.objects.create(owner=deleted, team=team, node=Node.objects.get(), asked_at=now, next_at=now)
    measure(f"{team.slug}/was-here")
    assert states() == {f"{team.slug}/was-here": "gone"}


def test_orphan_with_a_new_owner_is_not_listed_or_removed(home, team, olga, sent):
    UserFactory(username="ghost")
    assert not selectors.orphans(olga).exists()
    with pytest.raises(StateConflict) as refused:
        services.remove(actor=olga, orphan_id=home.pk, confirm=home.name)
    assert refused.value.code == "has_owner"
    assert not sent.of("node.remove_leftover")


def test_new_owner_during_removal_cancels_it(home, olga, sent, clock):
    services.remove(actor=olga, orphan_id=home.pk, confirm=home.name)
    order = order_of(sent)
    UserFactory(username="ghost")
    assert answer(order)  # partly removed
    assert states() == {home.name: "gone"} and not sent.of("node.remove_leftover")
    clock.shift(timedelta(hours=1))
    services.sweep()
    assert not sent.of("node.remove_leftover")


def test_folders_are_removed_after_a_day_and_other_leftovers_at_once(local_pool, sent, clock):
    group = Leftover(LeftoverKind.CONTROL_GROUP, f"ws-{uuid.uuid4().hex}")
    listing(Leftover(LeftoverKind.FOLDER, FOLDER, "", 3), group, pool=local_pool)
    services.sweep()
    order = order_of(sent)
    assert (order.kind, order.name) == (LeftoverKind.CONTROL_GROUP, group.name)
    assert answer(order, done=True)
    clock.shift(timedelta(hours=25))
    services.sweep()
    order = order_of(sent)
    assert order.name == FOLDER
    failure = Failure(
        "conflict", "The folder is in use, so Berth keeps it.", retryable=False, blame="operator"
    )
    assert answer(order, failure=failure)
    assert Orphan.objects.get(name=FOLDER).problem == failure.message
    services.sweep()
    assert not sent.of("node.remove_leftover"), "not again by itself"
    listing(pool=local_pool)
    assert states() == {FOLDER: "gone", group.name: "removed"}


def test_folders_of_live_workspaces_are_not_orphans(local_pool, sent, clock):
    workspace = WorkspaceFactory(pool=local_pool)
    name = f"ws-{workspace.pk.hex}"
    listing(Leftover(LeftoverKind.FOLDER, name), pool=local_pool)
    assert not states()


def test_removals_by_the_node_are_shown_once(local_pool):
    now = timezone.now().timestamp()
    ended = Leftover(LeftoverKind.PROCESS, "12-34", "", None, now - 60)
    listing(ended, pool=local_pool)
    listing(ended, pool=local_pool)
    (row,) = Orphan.objects.all()
    assert (row.state, row.removed_by) == ("removed", "node-1")


def test_ownerless_workspaces_are_terminated_at_once_and_listed(local_pool, sent, olga, clock):
    key = str(uuid.uuid4())
    seen = Observation(WorkspaceRef(key, 1), ObservedState.RUNNING)
    assert results.apply_owned(pool=local_pool, node_name="node-1", owned=[seen]) == 1
    row = Orphan.objects.get()
    assert (row.kind, row.state) == ("workspace", "found")
    with pytest.raises(StateConflict):
        services.remove(actor=olga, orphan_id=row.pk)
    services.sweep()
    assert list(states().values()) == ["found"]
    clock.shift(timedelta(minutes=2))
    Node.objects.update(online=False)
    services.sweep()
    assert list(states().values()) == ["found"], "nobody has said that it ended"
    Node.objects.update(online=True)
    services.sweep()
    assert list(states().values()) == ["removed"]


def test_node_can_report_only_itself(local_pool):
    found = messages.dump([Leftover(LeftoverKind.FOLDER, FOLDER)])
    for sender in ("node.other", "control"):
        with sent_by(sender, tasks.apply_leftovers):
            tasks.apply_leftovers.run(pool=local_pool.slug, node="node-1", leftovers=found)
    assert not states()
    with sent_by("node.node-1", tasks.apply_leftovers):
        tasks.apply_leftovers.run(
            pool=local_pool.slug, node="node-1", leftovers=[{"kind": "moon", "name": "x"}]
        )
        assert not states()
        tasks.apply_leftovers.run(pool=local_pool.slug, node="node-1", leftovers=found)
    assert states() == {FOLDER: "found"}


def test_orphans_over_rest_and_on_the_page(home, api, olga, bob, as_user, sent):
    with pytest.raises(NotAllowed):
        services.remove(actor=bob, orphan_id=home.pk, confirm=home.name)
    program = api(olga)
    (row,) = program.get("orphans?kind=home").json()["results"]
    assert (row["name"], row["removed_at"], row["size_mib"]) == (home.name, None, 700)
    assert program.post(f"orphans/{home.pk}/delete", {}).status_code == 400
    browser = as_user(olga)
    page = browser.get("/orphans/").content.decode()
    assert home.name in page
    assert "700 MiB" in page or "0.7 GiB" in page
    assert "Manual" in page
    wrong = browser.post(f"/orphans/{home.pk}/delete/", {"confirm": "ghost"})
    assert wrong.status_code == 400 and "is not the name of the home folder" in wrong.content.decode()
    done = program.post(f"orphans/{home.pk}/delete", {"confirm": home.name})
    assert (done.status_code, done.json()["state"]) == (202, "removing")
    assert "Deleting" in browser.get("/orphans/").content.decode()
    browser.post("/orphans/refresh/")
    assert [message.queue for message in sent.of("node.list_leftovers")] == ["node.node-1"]


def test_long_list_takes_few_queries(local_pool, team, olga, as_user, django_assert_max_num_queries):
    measure(*(f"{team.slug}/ghost-{number}" for number in range(120)))
    browser = as_user(olga)
    browser.get("/orphans/")
    with django_assert_max_num_queries(23):
        page = browser.get("/orphans/").content.decode()
    assert "ghost-1" in page and "Page 1 of 3" in page


ACTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["measure", "list", "remove", "sweep", "later", "answer", "join", "leave", "start", "end"]
        ),
        st.integers(0, 2),
    ),
    max_size=14,
)


@settings(
    max_examples=examples(40),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(acts=ACTS)
def test_owned_items_are_never_listed_or_removed(acts, local_pool, sent, clock, olga):
    """For any order of reports, user actions and results."""
    Orphan.objects.all().delete()
    team = Team.objects.filter(slug="drift").first() or TeamFactory(slug="drift")
    User.objects.filter(username__startswith="drift-").update(deleted_at=timezone.now())
    Workspace.objects.filter(owner__username__startswith="drift-").update(state="terminated")
    names = [f"drift-{number}" for number in range(3)]
    folders = [uuid.UUID(int=0xD41F7000 + number) for number in range(3)]
    orders: list[LeftoverRemoval] = []
    sent.clear()
    for act, number in acts:
        user = User.objects.filter(username=names[number]).first()
        if act == "measure":
            measure(*(f"drift/{name}" for name in names[: number + 1]))
        elif act == "list":
            found = [Leftover(LeftoverKind.FOLDER, f"ws-{key.hex}") for key in folders[: number + 1]]
            listing(*found, pool=local_pool)
        elif act == "remove":
            for row in Orphan.objects.filter(state="found"):
                try:
                    services.remove(actor=olga, orphan_id=row.pk, confirm=row.name)
                except StateConflict:
                    assert ownership.owned([selectors.key_of(row)])
        elif act == "sweep":
            services.sweep()
        elif act == "later":
            clock.shift(timedelta(hours=13))
        elif act == "answer" and orders:
            answer(orders[number % len(orders)], done=number == 0)
        elif act == "join":
            if user is None:
                UserFactory(username=names[number])
            else:
                User.objects.filter(pk=user.pk).update(deleted_at=None)
        elif act == "leave" and user is not None:
            User.objects.filter(pk=user.pk).update(deleted_at=timezone.now())
        elif act == "start":
            owner = user or UserFactory(username=names[number])
            Workspace.objects.filter(pk=folders[number]).delete()
            WorkspaceFactory(pk=folders[number], owner=owner, team=team, pool=local_pool)
        elif act == "end":
            Workspace.objects.filter(pk=folders[number]).update(state="terminated")
        for message in sent.take("node.remove_leftover"):
            order = messages.load(message.kwargs["order"], LeftoverRemoval)
            orders.append(order)
            key = ownership.EntryKey(local_pool.pk, "node-1", order.kind.value, order.name)
            assert not ownership.owned([key]), f"{order.name} was ordered away"
        shown = selectors.present_orphans(olga)
        assert not ownership.owned([selectors.key_of(row) for row in shown])
        assert all(row.state in THERE for row in shown)


def test_kept_homes_of_a_deleted_account_are_listed(local_pool, team, ada, make):
    """With their size."""
    user = UserFactory(username="goes")
    users.delete(actor=SYSTEM, user=user)
    measure(f"{team.slug}/goes")
    assert states() == {f"{team.slug}/goes": "found"}
