"""Invitations of many users to a team: permissions, results and preview."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.core import mail

from portal.common.errors import NotAllowed
from portal.common.events.models import Event
from portal.people.accounts.invitations import services
from portal.people.accounts.invitations.lines import parse_list
from portal.people.accounts.models import Membership, Role, Team, User
from tests import sites
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db
WORLD = sites.people
URL = "/teams/vision/invite/"
API = "/api/v1/teams/vision/invitations"


@pytest.fixture
def mails(settings: Any) -> Any:
    settings.BERTH_MAIL = True
    settings.BERTH_OWNER_INVITATION_DOMAINS = frozenset({"example.org"})
    return settings


def outcomes(results: list[services.LineResult]) -> dict[str, str]:
    return {
        result.line.who: result.error.reason.code if result.error else result.outcome for result in results
    }


def words(answer: Any) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", answer.content.decode())).split())


def test_each_line_has_its_own_result_as_previewed(team: Team, ada: User, una: User) -> None:
    UserFactory(username="gina", email="Gina@example.org", email_confirmed=True)
    UserFactory(username="mallory", email="ceo@example.org", email_confirmed=False)
    UserFactory(username="gone", is_active=False)
    people = parse_list(
        "gina@EXAMPLE.org, owner\ngina\nbob, owner\nceo@example.org\ngone\nnobody\nno@where@\n"
        "una, member\nhal@example.org, king\nhal@example.org, viewer\nhal@corp.example\nx,y,z"
    )
    planned = services.plan(actor=ada, team=team, people=people)
    assert outcomes(planned) == {
        "gina@EXAMPLE.org": "added",
        "gina": "listed_before",
        "bob": "already_member",
        "ceo@example.org": "address_not_confirmed",
        "gone": "user_deactivated",
        "nobody": "new_account_needs_address",
        "no@where@": "address_not_valid",
        "una": "auditor_only_views",
        "hal@example.org": "listed_before",
        "hal@corp.example": "invited",
        "x": "too_many_columns",
    }
    assert not User.objects.filter(email="hal@corp.example").exists()
    results = services.invite(actor=ada, team=team, people=people)
    assert outcomes(results) == outcomes(planned)
    assert [each.username for each in results] == [each.username for each in planned]
    roles = dict(Membership.objects.filter(team=team).values_list("user__username", "role"))
    assert roles["gina"] == "owner" and roles["bob"] == "member" and roles["hal"] == "member"
    again = services.invite(actor=ada, team=team, people=people)
    assert {each.outcome for each in again} == {"already_member", "refused"}


def test_new_users_with_equal_names_get_distinct_accounts(team: Team, ada: User) -> None:
    people = parse_list("svc-hal@a.org\nhal@b.org\n")
    planned = services.plan(actor=ada, team=team, people=people)
    results = services.invite(actor=ada, team=team, people=people)
    assert [each.username for each in results] == ["hal", "hal-2"] == [each.username for each in planned]
    assert all(each.link is not None for each in results)


def test_names_of_many_people_are_read_in_one_query(
    team: Team, ada: User, django_assert_max_num_queries: Any
) -> None:
    for name in ("hal", "hal-2", f"{'x' * 30}-2", "halfdan"):
        UserFactory(username=name)
    long = "x" * 40
    people = parse_list("\n".join(f"{name}@{place}.org" for place in "abc" for name in ("hal", "ida", long)))
    with django_assert_max_num_queries(8):
        results = services.plan(actor=ada, team=team, people=people)
    assert [result.username for result in results] == [
        *("hal-3", "ida", "x" * 32),
        *("hal-4", "ida-2", f"{'x' * 30}-3"),
        *("hal-5", "ida-3", f"{'x' * 30}-4"),
    ]
    more = parse_list("\n".join(f"person{number}@a.org" for number in range(60)))
    with django_assert_max_num_queries(8):
        assert services.plan(actor=ada, team=team, people=more)[59].username == "person59"


def test_owners_create_accounts_only_for_allowed_domains_and_by_mail(
    team: Team, alice: User, mails: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(
        "portal.people.accounts.mails.order_link", lambda user_id, kind: sent.append(str(kind))
    )
    people = parse_list("hal@example.org, owner\nida@elsewhere.org")
    results = services.invite(actor=alice, team=team, people=people)
    assert outcomes(results) == {"hal@example.org": "invited", "ida@elsewhere.org": "cannot_create_accounts"}
    assert results[0].link is None and results[0].mailed and sent == ["invitation"]
    hal = User.objects.get(email="hal@example.org")
    assert hal.roles == [] and dict(hal.memberships.values_list("team__slug", "role"))["vision"] == "owner"
    assert Event.objects.filter(kind="user.invited", actor=alice).count() == 1
    monkeypatch.setattr(services, "MAX_NEW_A_DAY", 1)
    more = services.invite(actor=alice, team=team, people=parse_list("jo@example.org"))
    assert outcomes(more) == {"jo@example.org": "too_many_invitations"}
    mails.BERTH_MAIL = False
    assert outcomes(services.plan(actor=alice, team=team, people=people)) == {
        "hal@example.org": "already_member",
        "ida@elsewhere.org": "cannot_create_accounts",
    }
    assert not mail.outbox


def test_only_team_managers_invite(team: Team, bob: User) -> None:
    for act in (services.plan, services.invite):
        with pytest.raises(NotAllowed):
            act(actor=bob, team=team, people=parse_list("charlie"))


def test_page_previews_a_list_before_inviting(as_user: Any, ada: User, team: Team, charlie: User) -> None:
    client = as_user(ada)
    list_ = {"people": "charlie, viewer\nhal@example.org", "role": "member"}
    preview = client.post(URL, list_)
    assert "Invite 2 people" in words(preview) and "Nothing has changed yet" in words(preview)
    checked = re.search(r'name="checked" value="(\w+)"', preview.content.decode())
    assert checked and not Membership.objects.filter(team=team, user=charlie).exists()
    edited = client.post(URL, {**list_, "role": "owner", "checked": checked[1], "invite": "1"})
    assert "The list changed after the check" in words(edited)
    assert not Membership.objects.filter(team=team, user=charlie).exists()
    done = client.post(URL, {**list_, "checked": checked[1], "invite": "1"})
    assert "2 people invited" in words(done) and "/welcome/" in done.content.decode()
    assert Membership.objects.get(team=team, user=charlie).role == Role.VIEWER
    wrong = client.post(URL, {"people": " "})
    assert wrong.status_code == 400 and "The list is empty" in words(wrong)


def test_page_keeps_refused_lines_to_correct_them(as_user: Any, ada: User, team: Team, charlie: User) -> None:
    client = as_user(ada)
    list_ = {"people": "charlie\nnobody-here, viewer\ncharlie, boss", "role": "member"}
    checked = re.search(r'name="checked" value="(\w+)"', client.post(URL, list_).content.decode())
    assert checked
    done = client.post(URL, {**list_, "checked": checked[1], "invite": "1"}).content.decode()
    area = re.search(r'<textarea id="people"[^>]*>(.*?)</textarea>', done, re.DOTALL)
    assert area and area[1].split("\n") == ["nobody-here, viewer", "charlie, boss"]
    assert 'name="invite"' not in done, "the list has not been checked"


def test_rest_returns_a_result_per_person_and_checks_the_scope(
    with_token: Any, ada: User, team: Team, charlie: User
) -> None:
    people = [{"who": "charlie", "role": "viewer"}, {"who": "hal@example.org"}, {"who": "nobody"}]

    def post(client: Any, **more: Any) -> Any:
        return client.post(API, {"people": people, **more}, content_type="application/json")

    narrow = post(with_token(ada, "teams:write")).json()["results"]
    assert [each["status"] for each in narrow] == [200, 403, 400]
    assert narrow[1]["problem"]["code"] == "not_allowed"
    wide = with_token(ada, "teams:write", "users:write")
    assert post(wide, preview=True).json()["results"][1]["invite_url"] is None
    answer = post(wide)
    assert answer.headers["Cache-Control"] == "no-store"
    results = answer.json()["results"]
    assert [each["result"] for each in results] == ["already_member", "invited", "refused"]
    assert results[1]["username"] == "hal" and "/welcome/" in results[1]["invite_url"]
    many = {"people": [{"who": f"user{number}"} for number in range(201)]}
    assert wide.post(API, many, content_type="application/json").status_code == 400
