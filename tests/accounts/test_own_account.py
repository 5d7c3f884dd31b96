"""The own account: password, e-mail address and sessions."""

from __future__ import annotations

import pytest
from django.test import Client

from portal.common.events.models import Event
from portal.people.accounts import token_lookup
from portal.people.accounts.models import User, UserSession
from tests.accounts.test_user_pages import text_of
from tests.factories import PASSWORD, UserFactory, make_token

pytestmark = pytest.mark.django_db
NEW = "another-long-password"
CHANGE = {"old_password": PASSWORD, "new_password": NEW, "repeated": NEW}


def signed_in(name: str, address: str = "127.0.0.1", agent: str = "Test") -> Client:
    browser = Client(REMOTE_ADDR=address, headers={"User-Agent": agent})
    assert browser.post("/sign-in/", {"username": name, "password": PASSWORD}).status_code == 302
    return browser


def is_signed_in(browser: Client) -> bool:
    return browser.get("/account/").status_code == 200


# --- password -------------------------------------------------------------------------------------


def test_another_password_ends_other_sessions_only(alice):
    here, there = signed_in("alice"), signed_in("alice")
    before = here.session.session_key
    _, secret = make_token(alice)
    assert here.post("/account/", CHANGE).status_code == 302
    assert (is_signed_in(here), is_signed_in(there)) == (True, False)
    assert here.session.session_key != before
    assert token_lookup.find_valid_token(secret) is not None
    assert UserSession.objects.get(user=alice).key == here.session.session_key
    entry = Event.objects.get(kind="user.password_changed")
    assert (entry.actor, entry.data) == (alice, {"sessions": 1, "tokens": 0})


def test_password_change_revokes_tokens_if_selected(alice):
    here = signed_in("alice")
    _, secret = make_token(alice)
    assert "Also revoke my 1 API token" in text_of(here.get("/account/"))
    here.post("/account/", {**CHANGE, "end_tokens": "on"})
    assert token_lookup.find_valid_token(secret) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"old_password": "wrong"}, "current password is wrong"),
        ({"new_password": "short", "repeated": "short"}, "too short"),
        ({"repeated": "something-else"}, "The passwords do not match."),
        ({"new_password": "alice@example.org", "repeated": "alice@example.org"}, "too similar"),
    ],
)
def test_invalid_password_change_shows_the_error_and_changes_nothing(alice, change, words):
    here, there = signed_in("alice"), signed_in("alice")
    page = here.post("/account/", {**CHANGE, **change})
    assert page.status_code == 400
    assert words in text_of(page)
    assert is_signed_in(there)
    assert User.objects.get(pk=alice.pk).check_password(PASSWORD)


# --- e-mail address -------------------------------------------------------------------------------


def test_email_change_needs_the_password(alice):
    here = signed_in("alice")
    refused = here.post("/account/email/", {"email": "a@example.org", "password": "wrong"})
    assert (refused.status_code, "current password is wrong" in text_of(refused)) == (400, True)
    here.post("/account/email/", {"email": "a@example.org", "password": PASSWORD})
    assert User.objects.get(pk=alice.pk).email == "a@example.org"
    assert Event.objects.get(kind="user.email_changed").actor == alice


@pytest.mark.parametrize("address", ["x", "a@example.org\nBcc: b@example.org", "BOB@example.org"])
def test_invalid_or_taken_email_is_refused(alice, address):
    UserFactory(username="bob", email="bob@example.org")
    here = signed_in("alice")
    assert here.post("/account/email/", {"email": address, "password": PASSWORD}).status_code == 400
    assert User.objects.get(pk=alice.pk).email == "alice@example.org"


# --- sessions -------------------------------------------------------------------------------------


def test_sessions_are_listed_and_ended_one_by_one(alice):
    here, there = signed_in("alice"), signed_in("alice", "203.0.113.7", "Other/2")
    page = text_of(here.get("/account/"))
    assert "203.0.113.7" in page and "Other/2" in page and "(this session)" in page
    other = UserSession.objects.get(address="203.0.113.7")
    here.post(f"/account/sessions/{other.pk}/revoke/")
    assert (is_signed_in(here), is_signed_in(there)) == (True, False)
    assert "203.0.113.7" not in text_of(here.get("/account/"))
    assert here.post(f"/account/sessions/{other.pk}/revoke/").status_code == 404


def test_users_cannot_end_sessions_of_others(alice, bob):
    theirs = signed_in("bob")
    session = UserSession.objects.get(user=bob)
    assert signed_in("alice").post(f"/account/sessions/{session.pk}/revoke/").status_code == 404
    assert is_signed_in(theirs)


def test_all_other_sessions_can_be_ended_together(alice):
    here, others = signed_in("alice"), [signed_in("alice") for _ in range(2)]
    here.post("/account/sessions/revoke/")
    assert is_signed_in(here)
    assert not any(is_signed_in(other) for other in others)
    assert UserSession.objects.filter(user=alice).count() == 1


def test_expired_session_is_not_listed(alice, clock, settings):
    signed_in("alice", "203.0.113.7")
    clock.shift(settings.SESSION_COOKIE_AGE + 1)
    assert "203.0.113.7" not in text_of(signed_in("alice").get("/account/"))
    assert UserSession.objects.filter(user=alice).count() == 1


def test_sign_out_removes_the_session_from_the_list(alice):
    here = signed_in("alice")
    here.post("/sign-out/")
    assert not UserSession.objects.exists()
    assert Event.objects.get(kind="session.signed_out").actor == alice
