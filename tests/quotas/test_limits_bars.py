"""Quota bars of a team, and the tree shown to operators."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.fleet.inventory import services as inventory
from portal.people.accounts.models import Role
from portal.quota.limits.models import Grant
from portal.quota.limits.presenters.bars import sort_resources
from portal.quota.limits.selectors import limits, site
from portal.quota.limits.services import cohorts
from portal.quota.limits.services import limits as services
from portal.workspaces.lifecycle import State
from tests import sites
from tests.factories import MembershipFactory, TeamFactory, WorkspaceFactory, inventory_of, node_info

pytestmark = pytest.mark.django_db
WORLD = sites.one_machine
H100 = "gpu:h100"


@pytest.fixture
def hold(team, bob, local_pool):
    """`hold(3000)`: a workspace of bob that uses, or waits for, that amount of H100."""

    def make(milli, *, owner=bob, of=team, state=State.RUNNING, **fields):
        fields["amounts"] = fields.get("amounts", {H100: milli})
        pool = local_pool if state != State.PENDING else None
        return WorkspaceFactory(owner=owner, team=of, state=state, pool=pool, **fields)

    return make


@pytest.fixture
def shared(team, olga):
    """vision (4, may borrow 2) and robots (4, lends 3) in one cohort."""
    robots = TeamFactory(slug="nlp", name="NLP")
    together = cohorts.create_cohort(actor=SYSTEM, slug="all", name="All")
    for each in (team, robots):
        cohorts.set_share(actor=SYSTEM, team=each, cohort=together)
    services.set_quota(actor=SYSTEM, team=team, resource=H100, quota=4000, borrowing_limit=2000)
    services.set_quota(actor=SYSTEM, team=robots, resource=H100, quota=4000, lending_limit=3000)
    return robots


def only(team, actor=None, resource=H100):
    return next(bar for bar in limits.team_usage(team, actor) if bar.resource == resource)


def test_team_without_quota_shows_usage_only(team, hold):
    assert limits.team_usage(team) == []
    hold(2000)
    bar = only(team)
    assert (bar.used, bar.quota, bar.limit, bar.available) == (2000, None, None, None)
    assert bar.head == "2 in use, no limit" and bar.excess == 0 and not bar.is_full


def test_bar_shows_used_waiting_and_borrowed_amounts(team, shared, hold, bob, alice):
    hold(3000)
    hold(2000, owner=alice, state=State.STOPPING)
    hold(1000, state=State.PENDING)
    hold(7000, state=State.PENDING, queue_entry__outcome="needs_approval")
    hold(9000, state=State.STOPPED)
    bar = only(team, bob)
    assert (bar.used, bar.queued, bar.borrowed, bar.mine) == (5000, 1000, 1000, 3000)
    assert (bar.quota, bar.limit, bar.available) == (4000, 6000, 1000)
    assert bar.head == "5 of 4, 1 borrowed"
    assert bar.own_percent + bar.borrowed_percent + bar.queued_percent == 100
    assert bar.quota_percent == 67 and bar.limit_percent is None
    lender = only(shared)
    assert (lender.used, lender.lendable, lender.lent) == (0, 3000, 1000)
    assert lender.available == 3000, "vision holds one of its four"


def test_limit_includes_what_the_cohort_allows(team, shared):
    assert only(team).limit == 6000, "quota and what may be borrowed"
    services.set_quota(actor=SYSTEM, team=team, resource=H100, quota=4000)
    assert only(team).limit == 7000, "all that robots lends"
    services.set_site_limit(actor=SYSTEM, resource=H100, amount=5000)
    bar = only(team)
    assert bar.limit == 5000 and bar.site_limited and bar.available == 5000


def test_site_limit_counts_usage_of_all_teams(team, hold, charlie):
    services.set_site_limit(actor=SYSTEM, resource=H100, amount=5000)
    hold(4000, owner=charlie, of=charlie.teams.get())
    hold(500)
    assert only(team).available == 500


def test_active_grants_raise_the_quota(team):
    services.set_quota(actor=SYSTEM, team=team, resource=H100, quota=4000)
    now = timezone.now()
    for began, ends in ((-2, -1), (-1, 1), (1, 2)):
        Grant.objects.create(
            team=team,
            resource=H100,
            amount=1000,
            starts_at=now + timedelta(hours=began),
            ends_at=now + timedelta(hours=ends),
        )
    bar = only(team)
    assert (bar.quota, bar.grant, bar.limit) == (5000, 1000, 5000)


def test_quota_below_usage_shows_the_excess(team, hold):
    hold(3000)
    services.set_quota(actor=SYSTEM, team=team, resource=H100, quota=1000)
    bar = only(team)
    assert (bar.excess, bar.available, bar.is_full) == (2000, 0, True)
    assert bar.limit_percent == 33 and "2 over the limit" in bar.sentence


def test_member_sees_their_own_cap(team, alice, bob, hold):
    services.set_member_cap(actor=SYSTEM, team=team, resource=H100, amount=1000)
    services.set_member_cap(actor=SYSTEM, team=team, user=bob, resource=H100, amount=3000)
    assert (only(team, bob).cap, only(team, alice).cap, only(team).cap) == (3000, 1000, None)
    hold(2000)
    uses = limits.members_use(limits.usage_snapshot([team.slug]), team.slug, [alice, bob])
    assert [(use.usage_text, use.own_cap) for use in uses[bob.pk]] == [("2 of 3", True)]
    assert [use.usage_text for use in uses[alice.pk]] == ["0 of 1"]


def test_queries_of_bars_do_not_grow_with_teams(team, alice, django_assert_max_num_queries):
    teams = [team]
    for number in range(20):
        each = TeamFactory(slug=f"t{number}")
        MembershipFactory(team=each, user=alice, role=Role.MEMBER)
        services.set_quota(actor=SYSTEM, team=each, resource=H100, quota=1000)
        teams.append(each)
    with django_assert_max_num_queries(14):
        found = limits.usage_by_team(teams, alice)
    assert len(found) == 21 and found["t7"][0].quota == 1000


def test_tree_lists_cohorts_with_their_teams(team, shared, hold, charlie):
    hold(5000)
    rows = site.tree_view(limits.usage_snapshot(), H100)
    assert [(row.kind, row.slug, row.depth, row.used) for row in rows] == [
        ("cohort", "all", 0, 5000),
        ("team", "nlp", 1, 0),
        ("team", "vision", 1, 5000),
        ("team", "robots", 0, 0),
    ]
    assert [row.quota_text for row in rows] == ["", "4", "4", ""]
    assert rows[2].borrowing == "2" and rows[1].lending_text == "3" and rows[2].borrowed_text == "1"


def test_site_view_shows_capacity_and_assigned_quota(team, shared, local_pool):
    inventory.apply_inventory(pool=local_pool, inventory=inventory_of(node_info(gpus=4)))
    local_pool.nodes.get().devices.filter(index=0).update(healthy=False)
    line = next(line for line in site.site_view(limits.usage_snapshot()) if line.resource == H100)
    assert (line.capacity, line.quota, line.promised_percent) == (3000, 8000, 267)
    assert line.oversubscribed


def test_resources_are_ordered_accelerators_machine_simulated():
    names = [
        "workspaces",
        "simulated_cpu_milli",
        "cpu_milli",
        "gpu",
        "gpu:simulated-h100",
        "mig:1g.10gb",
        H100,
    ]
    assert sort_resources(names) == [
        *(H100, "mig:1g.10gb", "gpu", "cpu_milli", "workspaces"),
        *("gpu:simulated-h100", "simulated_cpu_milli"),
    ]


def test_bar_is_full_if_borrowable_quota_is_in_use(team, shared, hold, bob):
    services.set_quota(actor=SYSTEM, team=team, resource=H100, quota=4000)
    services.set_quota(actor=SYSTEM, team=shared, resource=H100, quota=20_000)
    hold(4000)
    hold(20_000, of=shared)
    bar = only(team, bob)
    assert (bar.head, bar.is_full, bar.limit) == ("4 of 4", True, 24_000)
    assert bar.own_percent == 100
    hold(1000, state=State.PENDING)
    waiting = only(team, bob)
    assert (waiting.own_percent, waiting.queued_percent) == (80, 20)
