"""The second step of sign-in: app codes, recovery codes, trusted browsers, and ways around it."""

from __future__ import annotations

import pytest
from allauth.mfa.models import Authenticator
from django.core.cache import cache

from portal.common.actors import SYSTEM
from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event, Notification
from portal.people.accounts import deactivation, links, sessions, users
from portal.people.accounts.models import UserSession
from tests.accounts.authenticators import code_of, with_app, with_codes
from tests.factories import PASSWORD

pytestmark = pytest.mark.django_db
STEP = "/sign-in/second-factor/"


@pytest.fixture
def secret(alice):
    """The secret of alice's authenticator app."""
    return with_app(alice)


@pytest.fixture
def awaiting_code(as_user, secret):
    """A browser that has entered alice's password and must enter a code."""
    client = as_user()
    answered = client.post("/sign-in/", {"username": "alice", "password": PASSWORD, "next": "/pools/"})
    assert answered["Location"] == STEP
    return client


def signed_in(client):
    return client.get("/").status_code == 200


def test_password_alone_creates_no_session(awaiting_code, alice):
    assert not signed_in(awaiting_code)
    assert not UserSession.objects.filter(user=alice).exists()
    page = awaiting_code.get(STEP)
    assert page.status_code == 200
    assert "Second step" in page.content.decode()


def test_code_redirects_to_the_requested_page(awaiting_code, alice, secret):
    answered = awaiting_code.post(STEP, {"code": code_of(secret)})
    assert answered["Location"] == "/pools/"
    assert signed_in(awaiting_code)
    entry = Event.objects.get(kind=AuditKind.SESSION_SIGNED_IN, actor=alice)
    assert entry.data["how"] == "password and authenticator app"


def test_wrong_code_is_refused_and_audited(awaiting_code, alice):
    answered = awaiting_code.post(STEP, {"code": "000000"})
    assert answered.status_code == 400
    assert not signed_in(awaiting_code)
    assert Event.objects.get(kind=AuditKind.SESSION_PROOF_FAILED).data["factor"] == "code"


@pytest.mark.parametrize("code", ["", " ", "x" * 500, "١٢٣٤٥٦", "12345\x00", "-1", "0x10"])
def test_malformed_codes_are_refused(awaiting_code, code):
    assert awaiting_code.post(STEP, {"code": code}).status_code == 400


@pytest.mark.parametrize(("steps", "good"), [(-2, False), (-1, True), (0, True), (1, True), (2, False)])
def test_code_is_accepted_with_30_s_clock_difference(awaiting_code, secret, clock, steps, good):
    awaiting_code.post(STEP, {"code": code_of(secret, steps=steps)})
    assert signed_in(awaiting_code) is good


def test_code_is_valid_once_across_processes(awaiting_code, as_user, secret, clock):
    """Also the code of the previous step, after a later one was used and the cache was lost."""
    earlier, present = code_of(secret, steps=-1), code_of(secret)
    awaiting_code.post(STEP, {"code": present})
    assert signed_in(awaiting_code)
    cache.clear()
    again = as_user()
    again.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    for used in (present, earlier):
        assert again.post(STEP, {"code": used}).status_code == 400
    clock.shift(31)
    again.post(STEP, {"code": present})
    assert not signed_in(again)
    again.post(STEP, {"code": code_of(secret)})
    assert signed_in(again)


def test_recovery_code_is_valid_once(awaiting_code, as_user, alice):
    codes = with_codes(alice)
    spaced = f"{codes[0][:5]} {codes[0][5:]}"
    assert awaiting_code.post(STEP, {"code": spaced}).status_code == 302
    assert signed_in(awaiting_code)
    again = as_user()
    again.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    assert again.post(STEP, {"code": codes[0]}).status_code == 400
    assert again.post(STEP, {"code": codes[1]}).status_code == 302


# --- Ways around it ---


@pytest.mark.parametrize(
    "path", ["/", "/account/", "/account/two-step/", "/account/tokens/", "/users/alice/"]
)
def test_another_page_after_the_password_redirects_to_sign_in(awaiting_code, path):
    answered = awaiting_code.get(path)
    assert answered.status_code == 302
    assert answered["Location"].startswith("/sign-in/")
    assert awaiting_code.get("/api/v1/me").status_code == 401


def test_second_step_without_password_redirects_to_sign_in(as_user, secret):
    client = as_user()
    for answered in (client.get(STEP), client.post(STEP, {"code": code_of(secret)})):
        assert answered["Location"] == "/sign-in/"
    assert not signed_in(client)


def test_password_step_expires(awaiting_code, secret, clock):
    clock.shift(601)
    assert awaiting_code.post(STEP, {"code": code_of(secret)})["Location"] == "/sign-in/"
    assert not signed_in(awaiting_code)


@pytest.mark.parametrize("change", ["password", "sessions", "deactivated"])
def test_password_step_ends_when_password_sessions_or_account_change(
    awaiting_code, alice, bob, secret, change, ada
):
    if change == "password":
        alice.set_password("another-long-password")
        alice.save()
    elif change == "sessions":
        users.end_sessions(actor=alice, user=alice)
    else:
        deactivation.deactivate(actor=ada, user=alice)
    awaiting_code.post(STEP, {"code": code_of(secret)})
    assert not signed_in(awaiting_code)


def test_code_of_another_user_is_refused(awaiting_code, bob):
    assert awaiting_code.post(STEP, {"code": code_of(with_app(bob))}).status_code == 400


def test_password_reset_link_still_requires_the_second_factor(as_user, alice, secret):
    link = links.make(alice, links.LinkKind.FORGOTTEN).partition("//")[2].partition("/")[2]
    client = as_user()
    answered = client.post(
        f"/{link}", {"password": "another-long-password", "repeated": "another-long-password"}
    )
    assert answered["Location"] == STEP
    assert not signed_in(client)
    assert client.post(STEP, {"code": code_of(secret)}).status_code == 302
    assert signed_in(client)


@pytest.mark.parametrize("username", ["alice", "bob"])
def test_reset_link_in_a_signed_in_browser_ends_the_session_and_needs_the_code(
    as_user, alice, bob, secret, username
):
    link = links.make(alice, links.LinkKind.FORGOTTEN).partition("//")[2].partition("/")[2]
    client = as_user({"alice": alice, "bob": bob}[username])
    body = {"password": "another-long-password", "repeated": "another-long-password"}
    assert client.post(f"/{link}", body)["Location"] == STEP
    assert not signed_in(client)
    assert "You are signed in" not in client.get(STEP).content.decode()
    client.post(STEP, {"code": code_of(secret)})
    assert signed_in(client)
    assert client.get("/api/v1/me").json()["username"] == "alice"


def test_session_key_changes_after_password_and_after_code(as_user, secret):
    """A planted session key is useless at every step."""
    client = as_user()
    client.get("/sign-in/")
    session = client.session
    session["planted"] = 1
    session.save()
    keys = [session.session_key]
    client.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    keys.append(client.session.session_key)
    client.post(STEP, {"code": code_of(secret)})
    keys.append(client.session.session_key)
    assert len(set(keys)) == 3
    store = sessions._store()
    assert not any(store().exists(key) for key in keys[:2])


def test_next_does_not_redirect_to_another_site_after_the_code(as_user, secret):
    client = as_user()
    client.post("/sign-in/", {"username": "alice", "password": PASSWORD, "next": "https://evil.example/"})
    assert client.post(STEP, {"code": code_of(secret), "next": "//evil.example"})["Location"] == "/"


# --- Too many tries ---


def test_wrong_codes_are_limited_per_user_and_reported(awaiting_code, as_user, alice, secret, settings):
    for _ in range(settings.BERTH_CODE_FAILURES):
        awaiting_code.post(STEP, {"code": "000000"})
    assert "Too many failed attempts" in awaiting_code.post(STEP, {"code": code_of(secret)}).content.decode()
    other = as_user()
    other.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    other.post(STEP, {"code": code_of(secret)})
    assert not signed_in(other)
    assert Event.objects.filter(kind=AuditKind.SESSION_LOCKED_OUT, data__factor="code").count() == 1
    assert Notification.objects.filter(user=alice, kind="account.codes_locked").count() == 1


def test_failures_elsewhere_do_not_lock_the_owners_known_browser(as_user, alice, secret, settings, clock):
    own = as_user()
    own.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    own.post(STEP, {"code": code_of(secret)})
    own.post("/sign-out/")
    stranger = as_user()
    stranger.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    for _ in range(settings.BERTH_CODE_FAILURES + 1):
        stranger.post(STEP, {"code": "000000"})
    clock.shift(30)
    own.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    own.post(STEP, {"code": code_of(secret)})
    assert signed_in(own)


def test_code_limit_resets_after_the_window(awaiting_code, as_user, secret, settings, clock):
    for _ in range(settings.BERTH_CODE_FAILURES + 1):
        awaiting_code.post(STEP, {"code": "000000"})
    clock.shift(15 * 60 + 1)
    again = as_user()
    again.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    again.post(STEP, {"code": code_of(secret)})
    assert signed_in(again)


# --- Remembered browsers ---


@pytest.fixture
def trusted(awaiting_code, secret):
    """A signed-out browser that alice trusts."""
    awaiting_code.post(STEP, {"code": code_of(secret), "trust": "on"})
    awaiting_code.post("/sign-out/")
    return awaiting_code


def enters_by_password(client):
    client.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    return signed_in(client)


def test_trusted_browser_skips_the_second_step(trusted):
    assert enters_by_password(trusted)


def test_untrusted_browser_needs_the_second_step(awaiting_code, secret):
    awaiting_code.post(STEP, {"code": code_of(secret)})
    awaiting_code.post("/sign-out/")
    assert not enters_by_password(awaiting_code)


def test_trust_expires(trusted, settings, clock):
    clock.shift(settings.BERTH_TRUSTED_DEVICE_DAYS * 86_400 + 1)
    assert not enters_by_password(trusted)


def test_trust_can_be_switched_off(trusted, settings):
    settings.BERTH_TRUSTED_DEVICE_DAYS = 0
    assert not enters_by_password(trusted)


def test_trust_ends_with_sessions(trusted, alice):
    users.end_sessions(actor=alice, user=alice)
    assert not enters_by_password(trusted)


def test_trust_ends_with_deactivation(trusted, alice):
    deactivation.deactivate(actor=SYSTEM, user=alice)
    deactivation.reactivate(actor=SYSTEM, user=alice)
    assert not enters_by_password(trusted)


def test_trust_ends_when_factors_are_replaced(trusted, alice):
    Authenticator.objects.filter(user=alice).delete()
    with_app(alice)
    assert not enters_by_password(trusted)


def test_trust_cookie_is_signed_and_bound_to_one_user(trusted, bob, alice, settings):
    with_app(bob)
    trusted.post("/sign-in/", {"username": "bob", "password": PASSWORD})
    assert not signed_in(trusted)
    cookie = trusted.cookies[settings.BERTH_DEVICE_COOKIE].value
    trusted.cookies[settings.BERTH_DEVICE_COOKIE] = cookie[:-2] + "xx"
    assert not enters_by_password(trusted)
