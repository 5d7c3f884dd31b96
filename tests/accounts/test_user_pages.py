"""Pages for administrators of users."""

from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from portal.people.accounts.models import User
from portal.workspaces.lifecycle import State
from tests.factories import PASSWORD, MembershipFactory, UserFactory, WorkspaceFactory, make_token

pytestmark = pytest.mark.django_db


def text_of(answer) -> str:
    """The text of a page, without tags."""
    words = re.sub(r"<[^>]+>", " ", answer.content.decode())
    return " ".join(words.split())


def link_in(answer) -> str:
    found = re.search(r'id="secret" value="[^"]*?(/welcome/[^"]+)"', answer.content.decode())
    assert found, text_of(answer)
    return found[1]


def test_user_is_invited_on_the_page(as_user, ada, team):
    page = as_user(ada).post(
        "/users/",
        {"username": "gina", "email": "", "team": "vision", "role": "owner", "roles": ["operator"]},
    )
    guest = Client()
    assert "Vision" in text_of(guest.get(link_in(page)))
    assert guest.post(link_in(page), {"password": PASSWORD, "repeated": PASSWORD}).status_code == 302
    assert guest.get("/").status_code == 200
    gina = User.objects.get(username="gina")
    assert (gina.roles, gina.memberships.get().role) == (["operator"], "owner")


def test_error_is_shown_at_its_field_and_input_is_kept(as_user, ada, alice):
    page = as_user(ada).post("/users/", {"username": "alice", "email": "a@example.org", "role": "member"})
    assert page.status_code == 400
    assert "Name already in use. Choose another." in text_of(page)
    assert 'value="a@example.org"' in page.content.decode()


def test_search_over_500_users_has_a_constant_query_count(as_user, ada, team):
    browser = as_user(ada)
    counts = []
    for _ in range(2):
        with CaptureQueriesContext(connection) as queries:
            browser.get("/users/")
        counts.append(len(queries))
        if len(counts) == 1:
            for user in User.objects.bulk_create(
                User(username=f"person-{n}", email=f"p{n}@example.org", password="x") for n in range(500)
            ):
                if user.username.endswith("7"):
                    MembershipFactory(team=team, user=user)
    assert counts[1] <= counts[0] + 1  # one for the pagination
    page = text_of(browser.get("/users/?q=person-49&state=active"))
    assert "person-499" in page and "person-48" not in page
    assert "1–50 of 503 users" in text_of(browser.get("/users/"))
    assert "No matching users" in text_of(browser.get("/users/?role=approver"))


def test_deactivation_page_lists_effects_and_new_owners(as_user, ada, alice, bob, team):
    WorkspaceFactory(owner=alice, team=team, name="paper", state=State.PENDING)
    make_token(alice)
    browser = as_user(ada)
    page = text_of(browser.get("/users/alice/deactivate/"))
    for words in (
        "1 API token",
        "workspace paper stops",
        "ownership of Vision, which passes to bob",
        "home folders",
    ):
        assert words in page, words
    browser.post("/users/alice/deactivate/", {"note": "left"})
    shown = browser.get("/users/alice/")
    assert "alice deactivated" in text_of(shown)
    assert "Reactivate" in text_of(shown)
    assert "deactivated alice: left" in text_of(shown)
    browser.post("/users/alice/reactivate/")
    assert User.objects.get(pk=alice.pk).is_active


def test_deletion_needs_a_choice_about_workspaces(as_user, ada, bob, team):
    WorkspaceFactory(owner=bob, team=team, name="paper", state=State.STOPPED)
    browser = as_user(ada)
    assert "Also delete 1 workspace: paper" in text_of(browser.get("/users/bob/delete/"))
    refused = browser.post("/users/bob/delete/", follow=True)
    assert "bob still has 1 workspace: paper" in text_of(refused)
    done = browser.post("/users/bob/delete/", {"workspaces": "delete"}, follow=True)
    assert "Account of bob deleted" in text_of(done)
    assert browser.get("/users/bob/").status_code == 404


def test_a_reset_shows_a_link(as_user, ada, bob):
    page = as_user(ada).post("/users/bob/reset-password/")
    assert Client().post(link_in(page), {"password": PASSWORD, "repeated": PASSWORD}).status_code == 302


def test_all_sessions_can_be_ended_with_or_without_tokens(as_user, ada, bob, team):
    other = Client(REMOTE_ADDR="203.0.113.7")
    other.post("/sign-in/", {"username": "bob", "password": PASSWORD})
    make_token(bob)
    browser = as_user(ada)
    assert "203.0.113.7" in text_of(browser.get("/users/bob/"))
    assert "Also revoke 1 API token" in text_of(browser.get("/users/bob/sessions/revoke/"))
    browser.post("/users/bob/sessions/revoke/", {"tokens": "on"})
    assert other.get("/").status_code == 302
    assert not bob.tokens.filter(revoked_at=None).exists()


def test_last_administrator_sees_the_reason(as_user, ada):
    answer = as_user(ada).post("/users/ada/deactivate/", follow=True)
    assert "the last administrator who can sign in" in text_of(answer)
    assert User.objects.get(pk=ada.pk).is_active


def test_roles_and_teams_are_changed_on_the_page(as_user, ada, team, charlie):
    browser = as_user(ada)
    browser.post("/users/charlie/", {"email": "c@example.org", "roles": ["approver"]})
    browser.post("/users/charlie/team/", {"team": "vision", "role": "member"})
    charlie.refresh_from_db()
    assert (charlie.email, charlie.roles) == ("c@example.org", ["approver"])
    assert charlie.memberships.filter(team=team, role="member").exists()
    UserFactory(username="erin", email="e@example.org")
    page = browser.post("/users/charlie/", {"email": "E@example.org"})
    assert (page.status_code, "E-mail address already in use." in text_of(page)) == (400, True)


def test_only_administrators_see_the_link_to_users(as_user, ada, olga):
    assert 'href="/users/"' in as_user(ada).get("/").content.decode()
    assert 'href="/users/"' not in as_user(olga).get("/").content.decode()
