"""Member shares in the queue: order, disabling, and explanations."""

from __future__ import annotations

import pytest
from django.test import override_settings

from portal.common.errors import NotAllowed
from portal.common.events.models import Event
from portal.people.accounts import teams
from portal.quota.limits.models import MemberShare
from portal.quota.limits.services import limits
from portal.scheduling import admission, cycle, share_averages
from portal.workspaces import services
from portal.workspaces.lifecycle import State
from portal.workspaces.models import QueueEntry, Workspace
from tests import sites
from tests.factories import MembershipFactory, UserFactory

pytestmark = pytest.mark.django_db
WORLD = sites.simulated_machines
H100 = "gpu:simulated-h100"


@pytest.fixture
def backlog(make, alice, bob, pool, clock):
    """Alice uses both nodes, and queued three more before bob queued two."""
    for name in ("a", "b"):
        make(alice, "sim-h100-x4", name=name)
    rows = {}
    for owner, name in ((alice, "a1"), (alice, "a2"), (alice, "a3"), (bob, "b1"), (bob, "b2")):
        clock.shift(1)
        rows[name] = make(owner, "sim-h100-x4", name=name)
    return rows


def in_order() -> list[str]:
    waiting = QueueEntry.objects.filter(workspace__state=State.PENDING).order_by("position")
    return list(waiting.values_list("workspace__name", flat=True))


def test_member_with_less_use_is_next(backlog, alice, settle):
    assert in_order() == ["b1", "b2", "a1", "a2", "a3"]
    services.stop(actor=alice, workspace_id=Workspace.objects.get(name="a").pk)
    settle(60)
    assert Workspace.objects.get(name="b1").state != State.PENDING
    assert in_order() == ["a1", "a2", "a3", "b2"], "both hold one now, so the older request comes first"


def test_disabled_member_shares_order_by_age(backlog, alice, bob, team):
    with pytest.raises(NotAllowed):
        teams.set_member_shares(actor=bob, team=team, on=False)
    for _ in range(2):
        teams.set_member_shares(actor=alice, team=team, on=False)
    cycle.run()
    assert in_order() == ["a1", "b1", "a2", "a3", "b2"], "a1 and b1 keep their reserved starts"
    event = Event.objects.get(kind="team.member_shares_set")
    assert event.data == {"before": True, "after": False}
    assert QueueEntry.objects.get(workspace__name="b1").member_order == {}
    teams.set_member_shares(actor=alice, team=team, on=True)
    cycle.run()
    assert in_order() == ["b1", "b2", "a1", "a2", "a3"]


def test_order_change_is_explained_to_the_members_concerned(backlog, as_user, alice, bob, charlie, olga):
    less = "Ahead of alice’s next request: your recent usage is lower."
    more = "Behind bob’s next request: your recent usage is higher."
    pages = {user.username: as_user(user).get("/queue/").content.decode() for user in (bob, charlie, olga)}
    assert pages["bob"].count(less) == 2 and less not in pages["charlie"] and more in pages["olga"]
    rows = as_user(charlie).get("/api/v1/queue").json()["results"]
    assert [row["member_order"] for row in rows] == [""] * 5
    said = as_user(bob).get(f"/api/v1/workspaces/{backlog['b1'].pk}").json()["queue"]["member_order"]
    assert said == less
    assert more in as_user(alice).get(f"/workspaces/{backlog['a1'].pk}/").content.decode()


def test_preview_shows_the_position_by_member_shares(backlog, make, team, clock):
    cem = UserFactory(username="cem")
    MembershipFactory(team=team, user=cem)
    clock.shift(1)
    order = {"template": backlog["a1"].template, "flavor": backlog["a1"].flavor, "team": team, "actor": cem}
    verdict = admission.assess(**order)
    assert verdict.member_order_text == "Ahead of alice’s next request: your recent usage is lower."
    entry = QueueEntry.objects.get(workspace=make(cem, "sim-h100-x4", name="c"))
    assert (verdict.position, verdict.eta_at) == (entry.position, entry.eta_at) == (3, entry.eta_at)
    assert verdict.member_order.as_json() == entry.member_order


def test_member_usage_decays(make, alice, bob, team, pool, clock, settle):
    run = make(alice, "sim-h100-x4")
    assert share_averages.update_members() == 0
    averages = MemberShare.objects.filter(team=team)
    with override_settings(BERTH_SHARE_HALF_LIFE_S=3600):
        clock.shift(3600)
        assert share_averages.update_members() == 1
        cores = run.amounts["simulated_cpu_milli"] // 16
        assert averages.get().use_avg == pytest.approx((4000 + cores) / 2, rel=0.01)
        services.stop(actor=alice, workspace_id=run.pk)
        settle(60)
        clock.shift(3600)
        share_averages.update_members()
        assert averages.get().use_avg == pytest.approx((4000 + cores) / 4, rel=0.05)
        clock.shift(40 * 3600)
        share_averages.update_members()
        assert not averages.exists()


def test_past_usage_decides_without_allocations(make, alice, bob, charlie, team, pool, clock, settle):
    MembershipFactory(team=team, user=charlie)
    MemberShare.objects.create(team=team, user=alice, use_avg=500, averaged_at=team.created_at)
    for name in ("a", "b"):
        make(charlie, "sim-h100-x4", name=name)
    make(alice, "sim-h100-x4", name="of-alice")
    clock.shift(1)
    make(bob, "sim-h100-x4", name="of-bob")
    assert in_order() == ["of-bob", "of-alice"]


def test_accelerators_count_by_their_rate(make, alice, team, pool, clock, olga):
    limits.set_rate(actor=olga, resource=H100, rate_milli=2500)
    run = make(alice, "sim-h100-x4")
    share_averages.update_members()
    clock.shift(10 * 86400)
    share_averages.update_members()
    expected = 10_000 + run.amounts["simulated_cpu_milli"] // 16
    assert MemberShare.objects.get().use_avg == pytest.approx(expected, rel=0.01)


def test_page_and_rest_disable_member_shares(as_user, alice, team):
    browser = as_user(alice)
    assert 'name="member_shares" checked' in browser.get("/teams/vision/").content.decode()
    assert browser.post("/teams/vision/member-shares/", {}).status_code == 302
    shown = browser.get("/api/v1/teams/vision")
    assert shown.json()["member_shares"] is False
    body = {"name": "Seeing", "member_shares": True}
    stale = browser.patch("/api/v1/teams/vision", body, "application/json", headers={"If-Match": '"x"'})
    assert stale.status_code == 412
    changed = browser.patch(
        "/api/v1/teams/vision", body, "application/json", headers={"If-Match": shown["ETag"]}
    )
    assert (changed.json()["name"], changed.json()["member_shares"]) == ("Seeing", True)
