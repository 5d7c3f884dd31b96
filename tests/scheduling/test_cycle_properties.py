"""Any actions and limits: no device over-allocated, no quota exceeded, preview equals creation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from uuid import UUID

import pytest
from django.db import transaction
from django.db.models import Sum
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from portal.catalog import selectors
from portal.common.actors import SYSTEM
from portal.common.errors import NeedsApproval, NotPossible, PortalError
from portal.fleet.inventory import cordons
from portal.fleet.inventory import services as inventory
from portal.fleet.inventory.models import AllocatedDevice, Device
from portal.people.accounts.models import Team
from portal.quota.limits.models import Cohort, MemberCap, Quota, SiteLimit, TeamShare
from portal.scheduling import cycle, snapshot_cache
from portal.scheduling.admission import assess, assess_choices
from portal.scheduling.snapshot import load
from portal.scheduling.verdicts import Outcome
from portal.workspaces import services
from portal.workspaces.lifecycle import STARTABLE, STOPPABLE, State
from portal.workspaces.models import Preemption, Workspace
from portal.workspaces.problems import stored_message
from tests.factories import FlavorFactory, MembershipFactory, TeamFactory, UserFactory, create_workspace
from tests.rows import error_message
from tests.suite import choice

pytestmark = pytest.mark.django_db
H100 = "gpu:simulated-h100"
FLAVORS = ("sim-cpu", "sim-h100-x1", "sim-h100-x2", "sim-h100-x4", "third", "any")
SEEDS = st.integers(0, 2**32 - 1)


def check() -> None:
    for row in (
        AllocatedDevice.objects.filter(active=True).values("device__uuid").annotate(taken=Sum("milli"))
    ):
        assert row["taken"] <= 1000, row
    assert load().scheduler.usage.violation() == ""
    for row in Workspace.objects.filter(allocations__released_at=None, allocations__isnull=False).distinct():
        held = row.allocations.filter(released_at=None).aggregate(milli=Sum("devices__milli"))["milli"] or 0
        assert held == sum(
            amount for resource, amount in row.amounts.items() if resource.startswith("gpu:")
        ), row.amounts
    assert_cached_snapshot_is_current()
    waiting = Workspace.objects.filter(state=State.PENDING)
    assert not waiting.exclude(allocations=None).filter(allocations__released_at=None).exists()


def assert_cached_snapshot_is_current() -> None:
    fresh = load()
    with snapshot_cache.preview_cache.use() as kept:
        assert kept.scheduler.running.keys() == fresh.scheduler.running.keys()
        for name, each in kept.scheduler.running.items():
            assert each.workload == fresh.scheduler.running[name].workload
        assert kept.scheduler.pending.items == fresh.scheduler.pending.items
        assert kept.capacity == fresh.capacity
        for key, pool in kept.pools.items():
            assert pool.cluster.snapshot() == fresh.pools[key].cluster.snapshot()


def limits(chance: random.Random, teams: list[Team], resource: str = H100) -> None:
    cohort, _ = Cohort.objects.get_or_create(slug="c", defaults={"name": "C"})
    for team in teams:
        if chance.random() < 0.8:
            place = {
                "cohort": cohort if chance.random() < 0.7 else None,
                "weight_milli": chance.choice((500, 1000)),
            }
            TeamShare.objects.get_or_create(team=team, defaults=place)
        if chance.random() < 0.8:
            Quota.objects.create(
                team=team,
                resource=resource,
                quota=chance.randrange(0, 6000, 500),
                borrowing_limit=chance.choice((None, 0, 2000)),
                lending_limit=chance.choice((None, 0, 1000)),
            )
        if chance.random() < 0.3:
            MemberCap.objects.create(team=team, resource=resource, amount=chance.randrange(500, 4000, 500))
    if chance.random() < 0.3:
        SiteLimit.objects.create(resource=resource, amount=chance.randrange(2000, 8000, 500))


@pytest.fixture
def worlds(db, catalog, pool, sent):
    """A pool, two teams with two users each, and a broker that delivers at once."""
    FlavorFactory(
        slug="third",
        accelerator_count=1,
        accelerator_model="Simulated H100",
        accelerator_milli=300,
        pool=pool,
    )
    FlavorFactory(slug="any", accelerator_count=1, pool=pool)
    teams = []
    for slug in ("red", "blue"):
        team = TeamFactory(slug=slug)
        teams.append(team)
        for _ in range(2):
            MembershipFactory(team=team, user=UserFactory())
    return teams


def step(chance: random.Random, teams: list[Team], sent) -> None:
    what = chance.choice(
        ("create", "create", "create", "stop", "delete", "start", "deliver", "cycle", "cordon")
    )
    rows = list(Workspace.objects.select_related("owner").order_by("created_at", "pk"))
    if what == "create":
        create(chance, teams)
    elif what == "deliver":
        sent.run()
    elif what == "cycle" or not rows:
        cycle.run()
    elif what == "cordon":
        device = chance.choice(list(Device.objects.order_by("uuid")))
        if device.cordoned:
            cordons.lift_cordon(actor=SYSTEM, device_id=device.pk)
        else:
            cordons.cordon_device(actor=SYSTEM, device_id=device.pk, reason="test")
    else:
        row = chance.choice(rows)
        allowed = {"stop": STOPPABLE, "start": STARTABLE, "delete": STOPPABLE | STARTABLE}[what]
        if row.state in allowed:
            try:
                getattr(services, what)(actor=row.owner, workspace_id=row.pk)
            except (NeedsApproval, NotPossible):
                assert what == "start"


def create(
    chance: random.Random, teams: list[Team], slugs: Sequence[str] = FLAVORS, *, lists: bool = False
) -> None:
    """Preview, then create: state, place, time, reason and victims agree."""
    team = chance.choice(teams)
    actor = chance.choice(list(team.members.order_by("username")))
    asked = {
        "template": selectors.all_templates().get(slug="jupyterlab"),
        "expected_s": chance.choice((None, 600, 7200, 86_400)),
        "priority": chance.choice((-1, 0, 0)),
    }
    count = chance.choice((1, 1, 2, 3)) if lists else 1
    flavors = [selectors.all_flavors().get(slug=slug) for slug in chance.sample(slugs, count)]
    within_s = chance.choice((0, 0, 900, 7200)) if count > 1 else 0
    if count == 1:
        said = assess(**asked, flavor=flavors[0], team=team, actor=actor)
    else:
        said = assess_choices(**asked, flavors=flavors, start_within_s=within_s, team=team, actor=actor)
    order = {"flavor": flavors[0], "fallbacks": flavors[1:], "start_within_s": within_s}
    try:
        with transaction.atomic():
            made = create_workspace(**asked, **order, team=team, actor=actor)
    except PortalError as refused:
        assert (said.outcome.value, said.message) == (refused.code, refused.message)
        assert not said.possible
        return
    room = set(Preemption.objects.filter(preempted_by=str(made.pk)).values_list("workspace", flat=True))
    assert room == {UUID(name) for name in said.makes_room}
    if said.outcome is Outcome.FITS_NOW:
        assert made.state == State.PROVISIONING, error_message(made)
        assert made.flavor == (said.flavor or flavors[0])
        assert said.pool == made.pool
        nodes = made.allocations.filter(released_at=None).values_list("node__name", flat=True)
        assert sorted(item.node for item in said.placement.nodes) == sorted(nodes)
        return
    entry = made.queue_entry
    assert (said.outcome, made.state) == (Outcome.QUEUED, State.PENDING)
    assert (said.position, said.eta_at, said.eta_basis) == (
        entry.position,
        entry.eta_at,
        stored_message(entry.eta_basis),
    )
    assert (said.message, dict(said.blocker)) == (stored_message(entry.reason), entry.blocker)
    assert (said.member_order_text, said.next_flavor_text) == (
        stored_message(entry.member_order),
        stored_message(entry.next_flavor),
    )


# Snapshots are kept between steps, as in production, which also tests their updates.
@pytest.mark.slow("whole histories for each example")
@examples(
    max_examples=choice.examples(15, quick=1),
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=SEEDS)
def test_nothing_is_over_allocated_and_previews_hold(worlds, sent, seed, monkeypatch, clock, settings):
    settings.BERTH_MIN_RUN_S = 600
    # The test holds the transaction.
    monkeypatch.setattr(snapshot_cache, "_in_transaction", lambda: False)
    snapshot_cache.forget()
    chance = random.Random(seed)
    with transaction.atomic():
        limits(chance, worlds)
        for _ in range(25):
            # Time advances between requests, so that none have equal age.
            clock.shift(chance.choice((1, 1, 30, 900, 7200)))
            step(chance, worlds, sent)
            check()
        transaction.set_rollback(True)
    sent.clear()


def test_cached_snapshot_follows_limits_and_reloads_on_node_changes(make, alice, olga, team, pool):
    from portal.quota.limits.services import limits

    flavor = selectors.all_flavors().get(slug="sim-h100-x2")
    asked = {
        "template": selectors.all_templates().get(slug="jupyterlab"),
        "flavor": flavor,
        "team": team,
        "actor": alice,
    }
    assert assess(**asked).outcome is Outcome.FITS_NOW
    limits.set_quota(actor=olga, team=team, resource=H100, quota=1000)
    assert assess(**asked).outcome is Outcome.NEEDS_APPROVAL
    limits.set_quota(actor=olga, team=team, resource=H100, quota=4000)
    make(alice, "sim-h100-x2")
    assert assess(**asked).outcome is Outcome.FITS_NOW
    make(alice, "sim-h100-x2")
    assert assess(**asked).blocker["rule"] == "team_limit"
    limits.remove_quota(actor=olga, team=team, resource=H100)
    assert assess(**asked).outcome is Outcome.FITS_NOW
    for node in pool.nodes.all():
        inventory.set_cordon(actor=olga, node_id=node.pk, cordoned=True)
    assert assess(**asked).outcome is Outcome.QUEUED


def test_cordoned_device_in_use_does_not_reduce_free_devices(make, alice, team, pool):
    """Six devices allocated, two of them cordoned: the other two are still available."""
    held = [make(alice, "sim-h100-x1") for _ in range(6)]
    for item in AllocatedDevice.objects.filter(allocation__workspace__in=held[:2], active=True):
        cordons.cordon_device(actor=SYSTEM, device_id=item.device_id, reason="test")
    assert Device.objects.count() == 8
    for _ in range(2):
        assert make(alice, "sim-h100-x1").state == State.PROVISIONING
    assert make(alice, "sim-h100-x1").state == State.PENDING
