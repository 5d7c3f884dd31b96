"""Setting quotas, cohorts, shares, caps, site limits and rates."""

from __future__ import annotations

import pytest

from portal.common.errors import InvalidInput, NotAllowed, StateConflict
from portal.common.events.models import Event
from portal.quota.limits.models import Cohort, MemberCap, Quota, ResourceRate, SiteLimit, TeamShare
from portal.quota.limits.services import cohorts, limits
from portal.workspaces.lifecycle import State
from tests import sites
from tests.factories import WorkspaceFactory

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]
WORLD = sites.people
H100 = "gpu:h100"


@pytest.fixture
def running(team, bob, local_pool):
    """`running(3000)`: a workspace of bob that uses that amount of H100."""

    def hold(milli, owner=bob, of=team, **fields):
        fields = {"state": State.RUNNING, "pool": local_pool, **fields}
        return WorkspaceFactory(owner=owner, team=of, amounts={H100: milli, "workspaces": 1}, **fields)

    return hold


def last() -> Event:
    return Event.objects.latest("pk")


def test_quota_changes_are_audited(olga, team):
    limits.set_quota(actor=olga, team=team, resource=" GPU:H100 ", quota=4000)
    assert last().message == "set H100 of Vision: quota none → 4"
    changed = limits.set_quota(actor=olga, team=team, resource=H100, quota=8000, borrowing_limit=2000)
    assert changed.changed
    assert last().message == "set H100 of Vision: quota 4 → 8, borrowing limit all → 2"
    assert last().data["before"] == {"quota": 4000, "borrowing_limit": None, "lending_limit": None}
    assert last().team == team and last().actor == olga
    before = Event.objects.count()
    assert not limits.set_quota(
        actor=olga, team=team, resource=H100, quota=8000, borrowing_limit=2000
    ).changed
    assert Event.objects.count() == before
    limits.remove_quota(actor=olga, team=team, resource=H100)
    assert not Quota.objects.exists() and last().kind == "quota.removed"
    assert not limits.remove_quota(actor=olga, team=team, resource=H100).changed


def test_every_change_triggers_a_scheduling_cycle(olga, team, bob, sent):
    limits.set_quota(actor=olga, team=team, resource=H100, quota=1000)
    limits.set_member_cap(actor=olga, team=team, user=bob, resource=H100, amount=1000)
    limits.set_site_limit(actor=olga, resource=H100, amount=1000)
    limits.set_rate(actor=olga, resource=H100, rate_milli=2000)
    made = cohorts.create_cohort(actor=olga, slug="all")
    cohorts.set_share(actor=olga, team=team, cohort=made)
    assert [message.task for message in sent] == ["control.schedule"] * 6


@pytest.mark.parametrize("resource", ["", "gpu:", "h100", "gpu:H 100", "gpu_hours", "x" * 200])
def test_unknown_resource_is_refused(olga, team, resource):
    with pytest.raises(InvalidInput) as refusal:
        limits.set_quota(actor=olga, team=team, resource=resource, quota=1)
    assert "resource" in refusal.value.extra["errors"]


@pytest.mark.parametrize("amounts", [{"quota": -1}, {"quota": 10**18}, {"quota": 1, "lending_limit": -1}])
def test_amounts_out_of_bounds_are_refused(olga, team, amounts):
    with pytest.raises(InvalidInput):
        limits.set_quota(actor=olga, team=team, resource=H100, **amounts)


def test_quota_belongs_to_a_team_or_a_cohort(olga, team):
    with pytest.raises(InvalidInput):
        limits.set_quota(actor=olga, resource=H100, quota=1)
    made = cohorts.create_cohort(actor=olga, slug="all")
    with pytest.raises(InvalidInput):
        limits.set_quota(actor=olga, team=team, cohort=made, resource=H100, quota=1)
    limits.set_quota(actor=olga, cohort=made, resource=H100, quota=1000)
    assert made.quotas.get().quota == 1000


def test_only_operators_set_limits(alice, team):
    with pytest.raises(NotAllowed, match="operator"):
        limits.set_quota(actor=alice, team=team, resource=H100, quota=1)
    with pytest.raises(NotAllowed):
        limits.set_site_limit(actor=alice, resource=H100, amount=1)
    with pytest.raises(NotAllowed):
        limits.set_rate(actor=alice, resource=H100, rate_milli=1)
    with pytest.raises(NotAllowed):
        cohorts.create_cohort(actor=alice, slug="mine")
    with pytest.raises(NotAllowed):
        cohorts.set_share(actor=alice, team=team, cohort=None, weight_milli=9000)


def test_quota_below_usage_stops_no_workspace_and_is_reported(olga, team, running):
    workspace = running(3000)
    changed = limits.set_quota(actor=olga, team=team, resource=H100, quota=1000)
    workspace.refresh_from_db()
    assert workspace.state == State.RUNNING
    assert "3 × H100" in changed.notes[0] and "2 over" in changed.notes[0]


def test_cohort_in_use_is_not_deleted_and_names_its_members(olga, team):
    outer = cohorts.create_cohort(actor=olga, slug="outer", name="Outer")
    inner = cohorts.create_cohort(actor=olga, slug="inner", name="Inner", parent=outer)
    cohorts.set_share(actor=olga, team=team, cohort=outer)
    with pytest.raises(StateConflict, match="the cohort Inner, Vision"):
        cohorts.delete_cohort(actor=olga, cohort=outer)
    cohorts.delete_cohort(actor=olga, cohort=inner)
    cohorts.set_share(actor=olga, team=team, cohort=None)
    cohorts.delete_cohort(actor=olga, cohort=outer)
    assert not Cohort.objects.exists()


def test_cohort_cycles_are_refused(olga):
    a = cohorts.create_cohort(actor=olga, slug="a", name="A")
    b = cohorts.create_cohort(actor=olga, slug="b", name="B", parent=a)
    c = cohorts.create_cohort(actor=olga, slug="c", name="C", parent=b)
    for cohort, parent in ((a, a), (a, c), (b, c)):
        with pytest.raises(InvalidInput, match="inside itself"):
            cohorts.change_cohort(
                actor=olga, cohort=cohort, name=cohort.name, parent=parent, weight_milli=1000
            )
    cohorts.change_cohort(actor=olga, cohort=c, name="See", parent=a, weight_milli=2500)
    assert "name C → See, parent B → A, weight 1 → 2.5" in last().message


def test_cohort_nesting_is_limited(olga):
    parent = None
    for number in range(cohorts.MAX_DEPTH):
        parent = cohorts.create_cohort(actor=olga, slug=f"c{number}", parent=parent)
    with pytest.raises(InvalidInput, match="deep"):
        cohorts.create_cohort(actor=olga, slug="deeper", parent=parent)
    top = cohorts.create_cohort(actor=olga, slug="top")
    with pytest.raises(InvalidInput, match="deep"):
        cohorts.change_cohort(
            actor=olga, cohort=Cohort.objects.get(slug="c0"), name="c0", parent=top, weight_milli=1000
        )


@pytest.mark.parametrize("slug", ["Bad Name", "", "-a", "a" * 41])
def test_cohort_requires_a_valid_slug(olga, slug):
    with pytest.raises(InvalidInput):
        cohorts.create_cohort(actor=olga, slug=slug)
    assert not Cohort.objects.exists()


def test_cohort_slug_is_unique(olga):
    cohorts.create_cohort(actor=olga, slug="a")
    with pytest.raises(InvalidInput):
        cohorts.create_cohort(actor=olga, slug="a")


def test_a_share_has_cohort_weight_and_reclaim(olga, team):
    made = cohorts.create_cohort(actor=olga, slug="all", name="All")
    cohorts.set_share(actor=olga, team=team, cohort=made, weight_milli=2000, reclaim=False)
    share = TeamShare.objects.get()
    assert (share.cohort, share.weight_milli, share.reclaim) == (made, 2000, False)
    assert last().message == (
        "changed the share of Vision: cohort none → All, weight 1 → 2, no longer reclaims lent quota"
    )
    with pytest.raises(InvalidInput):
        cohorts.set_share(actor=olga, team=team, cohort=made, weight_milli=0)


def test_owner_sets_caps_of_members(alice, bob, charlie, team, olga, running):
    limits.set_quota(actor=olga, team=team, resource=H100, quota=4000)
    assert limits.set_member_cap(actor=alice, team=team, user=bob, resource=H100, amount=2000).notes == ()
    limits.set_member_cap(actor=alice, team=team, resource=H100, amount=1000)
    assert {(cap.user, cap.amount) for cap in MemberCap.objects.all()} == {(bob, 2000), (None, 1000)}
    assert last().message == "set the cap of each member in Vision on H100: none → 1"
    above = limits.set_member_cap(actor=alice, team=team, resource=H100, amount=9000)
    assert "exceeds the limit of Vision" in above.notes[0]
    running(3000)
    below = limits.set_member_cap(actor=alice, team=team, user=bob, resource=H100, amount=1000)
    assert "bob uses 3 × H100" in below.notes[0]
    with pytest.raises(InvalidInput, match="not a member of Vision"):
        limits.set_member_cap(actor=alice, team=team, user=charlie, resource=H100, amount=1)
    with pytest.raises(NotAllowed, match="owner"):
        limits.set_member_cap(actor=bob, team=team, user=bob, resource=H100, amount=8000)
    limits.remove_member_cap(actor=alice, team=team, user=bob, resource=H100)
    assert MemberCap.objects.get().user is None


def test_owner_of_another_team_cannot_set_caps(charlie, team):
    with pytest.raises(NotAllowed):
        limits.set_member_cap(actor=charlie, team=team, resource=H100, amount=1)


def test_site_limits_and_rates_are_set(olga, running, alice):
    running(5000)
    changed = limits.set_site_limit(actor=olga, resource=H100, amount=2000)
    assert "3 over this limit" in changed.notes[0]
    limits.remove_site_limit(actor=olga, resource=H100)
    assert not SiteLimit.objects.exists()
    limits.set_rate(actor=olga, resource=H100, rate_milli=2500)
    assert ResourceRate.objects.get().rate_milli == 2500
    assert last().message == "set the rate of H100 per hour: 1 → 2.5 GPU-hours"
    with pytest.raises(InvalidInput, match="accelerators"):
        limits.set_rate(actor=olga, resource="cpu_milli", rate_milli=1)
    limits.remove_rate(actor=olga, resource=H100)
    assert not ResourceRate.objects.exists()
