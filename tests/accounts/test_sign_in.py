"""Sign-in with name and password: lock-out and safe redirects."""

from __future__ import annotations

import pytest

from tests.factories import PASSWORD

pytestmark = pytest.mark.django_db
URL = "/sign-in/"


def test_failed_sign_in_does_not_reveal_whether_the_user_exists(as_user, alice):
    client = as_user()
    texts = set()
    for name in ("alice", "nobody"):
        answered = client.post(URL, {"username": name, "password": "wrong"})
        assert client.get("/").status_code == 302
        texts.add("Wrong name or password" in answered.content.decode())
    assert texts == {True}


def test_deactivated_user_cannot_sign_in(as_user, alice):
    alice.is_active = False
    alice.save()
    client = as_user()
    client.post(URL, {"username": "alice", "password": PASSWORD})
    assert client.get("/").status_code == 302


def test_repeated_wrong_passwords_lock_the_name_for_a_while(as_user, alice, bob, settings):
    client = as_user()
    for _ in range(settings.AXES_FAILURE_LIMIT):
        answered = client.post(URL, {"username": "alice", "password": "wrong"})
    assert answered.status_code == 429
    assert int(answered["Retry-After"]) > 0
    assert client.post(URL, {"username": "alice", "password": PASSWORD}).status_code == 429
    # Other users can still sign in from this address.
    assert client.post(URL, {"username": "bob", "password": PASSWORD}).status_code == 302


@pytest.mark.parametrize(
    "target",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "\\\\evil",
        "/\t/evil",
    ],
)
def test_sign_in_never_redirects_to_another_site(as_user, alice, target):
    answered = as_user().post(URL, {"username": "alice", "password": PASSWORD, "next": target})
    assert answered.status_code == 302
    assert answered["Location"] == "/"


def test_sign_in_redirects_to_the_requested_page(as_user, alice):
    answered = as_user().post(URL, {"username": "alice", "password": PASSWORD, "next": "/pools/?page=2"})
    assert answered["Location"] == "/pools/?page=2"


def test_sign_out_needs_post_and_ends_the_session(as_user, alice):
    client = as_user(alice)
    assert client.get("/sign-out/").status_code == 405
    assert client.get("/").status_code == 200
    client.post("/sign-out/")
    assert client.get("/").status_code == 302


def test_sign_in_changes_the_session_key(as_user, alice):
    client = as_user()
    client.get(URL)
    session = client.session
    session["probe"] = 1
    session.save()
    before = session.session_key
    client.post(URL, {"username": "alice", "password": PASSWORD})
    assert client.session.session_key != before
