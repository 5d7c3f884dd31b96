"""The limits page of operators, and quota on team page and home page."""

from __future__ import annotations

import pytest

from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput
from portal.common.formatting import format_input
from portal.quota.limits.forms import parse_amount
from portal.quota.limits.models import Cohort, MemberCap, Quota, ResourceRate, SiteLimit, TeamShare
from portal.quota.limits.presenters import limits
from portal.quota.limits.services import cohorts
from portal.quota.limits.services import limits as services
from portal.workspaces.lifecycle import State
from tests.factories import TeamFactory, WorkspaceFactory

pytestmark = pytest.mark.django_db
H100 = "gpu:h100"
URL = "/quotas/limits/"


def words(response) -> str:
    return " ".join(response.content.decode().split())


@pytest.fixture
def board(as_user, olga):
    """The page as olga: `board(row="team:vision", quota="4")` saves, `board()` reads."""
    client = as_user(olga)

    def send(htmx=False, **data):
        headers = {"HX-Request": "true", "HX-Target": "board"} if htmx else {}
        if not data:
            return client.get(URL, headers=headers)
        data = {"action": "save", "resource": H100, "weight": "1", "reclaim": "on", **data}
        return client.post(URL, data, headers=headers, follow=not htmx)

    return send


def test_page_without_quotas_explains_the_default(board, team, local_pool):
    page = words(board())
    assert "No quotas set. Teams can use all capacity." in page
    assert "Vision" in page and "not set" in page


def test_quota_is_set_in_the_row_in_readable_units(board, team):
    page = words(board(row="team:vision", quota="1.5", borrowing_limit="0,5", lending_limit=""))
    assert "Quota of Vision set to 1.5 × H100." in page
    quota = Quota.objects.get()
    assert (quota.quota, quota.borrowing_limit, quota.lending_limit) == (1500, 500, None)
    board(row="team:vision", quota="2", resource="memory_mib")
    assert Quota.objects.get(resource="memory_mib").quota == 2048


def test_htmx_gets_only_the_board_and_focus_is_restored(board, team):
    answer = board(htmx=True, row="team:vision", quota="4")
    page = words(answer)
    assert answer.status_code == 200 and "<html" not in page
    assert 'id="edit-team-vision"' in page and page.count("autofocus") == 1


@pytest.mark.parametrize("quota", ["four", "-1", "NaN", "1e999", "9" * 30, "Infinity"])
def test_invalid_number_is_refused_and_kept_in_the_field(board, team, quota):
    answer = board(row="team:vision", quota=quota)
    assert answer.status_code == 400
    assert "Enter a number of at least 0" in words(answer) and f'value="{quota}"' in words(answer)
    assert not Quota.objects.exists() and not TeamShare.objects.exists(), "all or nothing"


def test_a_row_edited_without_a_change_is_unchanged(board, team):
    services.set_quota(actor=SYSTEM, team=team, resource="memory_mib", quota=81_559)
    client_page = words(board(row="team:vision", quota="", resource="cpu_milli"))
    assert "Vision unchanged." in client_page
    typed = format_input("memory_mib", 81_559)
    assert parse_amount(typed, "memory_mib", "x") == 81_559


def test_empty_quota_removes_it(board, team):
    services.set_quota(actor=SYSTEM, team=team, resource=H100, quota=1000)
    assert "Vision has no quota of H100." in words(board(row="team:vision", quota=""))
    assert not Quota.objects.exists()


def test_teams_and_cohorts_are_assigned_to_cohorts(board, team):
    assert "Cohort Research created" in words(board(action="create-cohort", name="Research", slug="research"))
    board(action="create-cohort", name="Inner", slug="inner", cohort="research")
    page = words(board(row="team:vision", cohort="inner", weight="2.5", reclaim=""))
    share = TeamShare.objects.get()
    assert (share.cohort.slug, share.weight_milli, share.reclaim) == ("inner", 2500, False)
    assert 'class="long depth-2"' in page
    board(row="cohort:research", name="Research", preempt_first="on")
    research = Cohort.objects.get(slug="research")
    assert (research.borrow_first, research.preempt_first) == (False, True)
    refused = board(row="cohort:research", name="Research", cohort="inner")
    assert refused.status_code == 400 and "would be inside itself" in words(refused)
    in_use = board(action="delete-cohort", row="cohort:inner")
    assert "Inner is in use by Vision." in words(in_use)
    board(row="team:vision", cohort="")
    board(action="delete-cohort", row="cohort:inner")
    assert not Cohort.objects.filter(slug="inner").exists()


def test_site_limit_and_rate_are_set_on_the_page(board, team, local_pool):
    board(action="site", amount="12")
    board(action="rate", rate="2.5")
    assert SiteLimit.objects.get().amount == 12_000 and ResourceRate.objects.get().rate_milli == 2500
    board(action="site", amount="")
    board(action="rate", rate="")
    assert not SiteLimit.objects.exists() and not ResourceRate.objects.exists()


def test_deleted_row_and_unknown_form_are_reported(board, team):
    assert "has been deleted" in words(board(row="team:gone", quota="1"))
    assert "Unknown form" in words(board(action="explode"))
    assert "Unknown resource" in words(board(row="team:vision", resource="<script>"))


def test_teams_can_be_searched(board, as_user, olga, monkeypatch):
    monkeypatch.setattr("portal.quota.limits.presenters.limit_board.MAX_ROWS", 5)
    for number in range(12):
        TeamFactory(slug=f"t{number}", name=f"Team {number}")
    assert "7 more rows." in words(board())
    found = words(as_user(olga).get(URL, {"q": "team 11"}))
    assert "/teams/t11/" in found and "/teams/t7/" not in found
    assert "No team or cohort name contains" in words(as_user(olga).get(URL, {"q": "zzz"}))


def test_queries_of_the_page_do_not_grow_with_teams(as_user, olga, django_assert_max_num_queries):
    made = cohorts.create_cohort(actor=SYSTEM, slug="all")
    for number in range(30):
        team = TeamFactory(slug=f"t{number}")
        cohorts.set_share(actor=SYSTEM, team=team, cohort=made)
        services.set_quota(actor=SYSTEM, team=team, resource=H100, quota=1000)
    client = as_user(olga)
    with django_assert_max_num_queries(35):
        client.get(URL)


def test_team_page_shows_bars_caps_and_usage_per_member(as_user, bob, team, local_pool):
    services.set_quota(actor=SYSTEM, team=team, resource=H100, quota=4000)
    services.set_member_cap(actor=SYSTEM, team=team, resource=H100, amount=2000)
    WorkspaceFactory(owner=bob, team=team, state=State.RUNNING, pool=local_pool, amounts={H100: 1000})
    page = words(as_user(bob).get("/teams/vision/"))
    assert "H100: 1 in use, quota 4, up to 4" in page
    assert "H100 1 of 2" in page and "Ask for more" in page
    assert "Set cap" not in page, "a member splits nothing"


def test_owners_set_member_caps_on_the_team_page(as_user, alice, bob, team):
    services.set_quota(actor=SYSTEM, team=team, resource=H100, quota=4000)
    client = as_user(alice)
    caps = "/quotas/teams/vision/caps/"
    page = words(client.post(caps, {"username": "bob", "resource": H100, "amount": "9"}, follow=True))
    assert "Cap for bob set to 9 × H100." in page and "exceeds the limit of Vision" in page
    assert MemberCap.objects.get().amount == 9000
    assert "Enter a number" in words(
        client.post(caps, {"username": "bob", "resource": H100, "amount": "x"}, follow=True)
    )
    client.post(caps, {"username": "bob", "resource": H100, "remove": "1"})
    assert not MemberCap.objects.exists()


def test_team_page_shows_results_beside_members_and_caps(as_user, alice, bob, team):
    client = as_user(alice)
    url = "/teams/vision/"
    cap = {"username": "bob", "resource": "workspaces", "amount": "2"}
    for path, data, anchor, text in (
        ("/quotas/teams/vision/caps/", cap, "caps", "Cap for bob set to 2"),
        (f"{url}members/bob/role/", {"role": "viewer"}, "members", "bob now has the role viewer."),
        (url, {"username": "bob", "role": "member"}, "members", "bob is now member of Vision."),
        (f"{url}members/bob/revoke/", {}, "members", "bob removed from Vision."),
    ):
        answer = client.post(path, data)
        assert answer["Location"] == f"{url}#{anchor}"
        page = client.get(url).content.decode()
        assert page.count(text) == 1
        assert page.index(f'id="{anchor}"') < page.index(text)


def test_home_page_shows_quotas_of_own_teams(bob, alice, team):
    assert limits.home_page_quotas(bob) == []
    for resource in ("cpu_milli", "memory_mib", "disk_mib", "workspaces"):
        services.set_quota(actor=SYSTEM, team=team, resource=resource, quota=1024_000)
    services.set_quota(actor=SYSTEM, team=team, resource=H100, quota=0)
    (mine,) = limits.home_page_quotas(bob)
    assert [bar.resource for bar in mine.bars] == [H100, "cpu_milli", "memory_mib"] and mine.more == 2


@pytest.mark.parametrize(("text", "amount"), [("1", 1000), (" 0.5 ", 500), ("1,25", 1250), ("0", 0)])
def test_amounts_are_parsed_as_typed(text, amount):
    assert parse_amount(text, H100, "x") == amount


def test_invalid_amounts_are_refused():
    for text in ("", "x", "-1", "1e30", "1" * 40):
        with pytest.raises(InvalidInput):
            parse_amount(text, H100, "x")
