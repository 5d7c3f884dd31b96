"""Confirmation of sensitive actions: pages keep input, REST returns a code, tokens need none."""

from __future__ import annotations

import json

import pytest

from portal.people.accounts import users
from portal.people.accounts.models import ApiToken, User
from tests.accounts.authenticators import Passkey, code_of, with_app, with_codes
from tests.factories import PASSWORD, UserFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def stale(as_user, ada, clock):
    """Ada's browser, whose last confirmation is an hour old."""
    client = as_user(ada)
    clock.shift(3600)
    return client


PAGES = [
    ("/users/bob/delete/", {}),
    ("/users/bob/", {"email": "b@example.org", "roles": ["operator"]}),
    ("/users/bob/reset-password/", {}),
    ("/users/bob/reset-mfa/", {}),
    ("/users/", {"username": "hal", "roles": ["administrator"], "role": "member"}),
    ("/account/tokens/", {"name": "t", "scopes": ["all"], "expires": "7"}),
    ("/account/two-step/codes/", {}),
    ("/account/delete/", {}),
    ("/account/two-step/app/remove/", {}),
]
REST = [
    ("DELETE", "/api/v1/users/bob", None),
    ("PATCH", "/api/v1/users/bob", {"roles": ["operator"]}),
    ("POST", "/api/v1/users", {"username": "hal", "roles": ["operator"]}),
    ("POST", "/api/v1/users/bob/reset-password", {}),
    ("POST", "/api/v1/users/bob/reset-mfa", {}),
    ("POST", "/api/v1/tokens", {"name": "t"}),
]


def state():
    return list(User.objects.order_by("pk").values()), ApiToken.objects.count()


@pytest.mark.parametrize(("path", "body"), PAGES)
def test_protected_page_asks_for_confirmation_and_changes_nothing(stale, bob, path, body):
    before = state()
    answered = stale.post(path, body)
    assert answered.status_code == 403
    text = answered.content.decode()
    assert "Confirm your identity" in text
    assert f'action="{path}"' in text
    assert state() == before


@pytest.mark.parametrize(("path", "body"), PAGES)
def test_wrong_password_changes_nothing(stale, bob, path, body):
    before = state()
    answered = stale.post(path, {**body, "confirm_password": "wrong"})
    assert answered.status_code == 403
    assert "current password is wrong" in answered.content.decode()
    assert state() == before


def test_confirmation_resubmits_the_original_form(stale, bob):
    body = {"email": "new@example.org", "roles": ["operator", "approver"]}
    text = stale.post("/users/bob/", body).content.decode()
    for name, value in (("email", "new@example.org"), ("roles", "operator"), ("roles", "approver")):
        assert f'<input type="hidden" name="{name}" value="{value}">' in text
    assert "csrfmiddlewaretoken" in text
    assert stale.post("/users/bob/", {**body, "confirm_password": PASSWORD}).status_code == 302
    bob.refresh_from_db()
    assert (bob.email, bob.is_operator, bob.is_approver) == ("new@example.org", True, True)
    # The confirmation stays valid for a while.
    assert stale.post("/users/bob/delete/").status_code == 302


def test_resubmitted_values_are_escaped(stale, bob):
    text = stale.post("/users/bob/", {"email": '"><script>alert(1)</script>'}).content.decode()
    assert "<script>alert" not in text


def test_reading_needs_no_confirmation(stale, bob):
    assert stale.get("/users/bob/delete/").status_code == 200
    assert stale.get("/users/bob/").status_code == 200
    assert stale.get("/api/v1/users/bob").status_code == 200


@pytest.mark.parametrize("path", ["/account/two-step/app/", "/account/two-step/passkeys/add/"])
def test_old_session_must_confirm_before_a_secret_is_shown(stale, path):
    answered = stale.get(path)
    assert answered["Location"].startswith("/account/confirm/?next=")
    assert stale.post(answered["Location"], {"confirm_password": PASSWORD})["Location"] == path
    assert stale.get(path).status_code == 200


def test_confirmation_redirects_to_portal_paths_only(stale):
    answered = stale.post("/account/confirm/?next=https://evil.example/", {"confirm_password": PASSWORD})
    assert answered["Location"] == "/"


def test_code_recovery_code_or_passkey_confirms(as_user, ada, bob, clock):
    secret = with_app(ada)
    codes = with_codes(ada)
    for proof in (lambda: code_of(secret), lambda: codes[0]):
        client = as_user(ada)
        clock.shift(3600)
        assert client.post("/users/bob/reset-mfa/", {"confirm_code": proof()}).status_code == 302
        assert client.post("/users/bob/reset-mfa/").status_code == 302


def test_only_own_passkey_confirms(as_user, ada, bob, clock, settings):
    settings.ALLOWED_HOSTS = ["localhost"]
    path, keys = "/account/two-step/passkeys/", {}
    for user in (ada, bob):
        client = as_user(user)
        client.defaults["HTTP_HOST"] = "localhost"
        keys[user] = Passkey()
        made = keys[user].created(client.get(f"{path}options/?for=add").json())
        assert client.post(f"{path}add/", {"name": "Key", "credential": made}).status_code == 200
        user.refresh_from_db()
    client = as_user(ada)
    client.defaults["HTTP_HOST"] = "localhost"
    clock.shift(3600)
    for user, status in ((bob, 403), (ada, 302)):
        answer = keys[user].used(client.get(f"{path}options/?for=confirm").json())
        answered = client.post("/users/bob/reset-mfa/", {"confirm_credential": answer})
        assert answered.status_code == status


def test_failed_confirmations_are_limited(stale, bob, settings):
    for _ in range(settings.BERTH_CODE_FAILURES):
        stale.post("/users/bob/delete/", {"confirm_password": "wrong"})
    answered = stale.post("/users/bob/delete/", {"confirm_password": PASSWORD})
    assert "Too many failed attempts" in answered.content.decode()
    bob.refresh_from_db()
    assert bob.deleted_at is None


@pytest.mark.parametrize(("path", "field"), [("/account/", "old_password"), ("/account/email/", "password")])
def test_password_guesses_in_account_forms_are_limited(as_user, alice, settings, path, field):
    """For an attacker with a stolen session."""
    client = as_user(alice)
    body = {
        "email": "evil@example.org",
        "new_password": "evil-long-password",
        "repeated": "evil-long-password",
    }
    for _ in range(settings.BERTH_CODE_FAILURES):
        client.post(path, {**body, field: "wrong"})
    answered = client.post(path, {**body, field: PASSWORD})
    assert "Too many failed attempts" in answered.content.decode()
    before = alice.password
    alice.refresh_from_db()
    assert (alice.password, alice.email) == (before, "alice@example.org")


def test_confirmation_is_bound_to_one_session(as_user, stale, ada):
    other = as_user(ada)
    assert (
        other.post("/users/", {"username": "hal", "roles": ["operator"], "role": "member"}).status_code == 200
    )
    assert (
        stale.post("/users/", {"username": "ida", "roles": ["operator"], "role": "member"}).status_code == 403
    )


def test_ending_other_sessions_does_not_renew_a_confirmation(stale, bob):
    """The session continues under another key; the age of its confirmation stays."""
    stale.post("/account/sessions/revoke/")
    assert stale.get("/").status_code == 200
    assert stale.post("/users/bob/delete/").status_code == 403


@pytest.mark.parametrize(("method", "path", "body"), REST)
def test_rest_with_a_session_returns_a_confirmation_code(stale, bob, method, path, body):
    before = state()
    answered = stale.generic(method, path, _json(body), content_type="application/json")
    assert answered.status_code == 403
    problem = answered.json()
    assert problem["code"] == "reauthentication_required"
    assert problem["reason"]["code"] == "confirm_first"
    assert state() == before


@pytest.mark.parametrize(("method", "path", "body"), REST)
def test_tokens_need_no_confirmation(ada, bob, with_token, clock, method, path, body):
    client = with_token(ada)
    clock.shift(3600)
    answered = client.generic(method, path, _json(body), content_type="application/json")
    assert answered.status_code in {200, 201, 204}


def test_rest_works_after_confirmation(stale, bob):
    assert stale.post("/account/confirm/", {"confirm_password": PASSWORD}).status_code == 302
    assert stale.delete("/api/v1/users/bob").status_code == 204


def test_step_up_can_be_disabled(stale, bob, settings):
    settings.BERTH_STEP_UP_MINUTES = 0
    assert stale.post("/users/bob/delete/").status_code == 302


def test_inviting_a_member_needs_no_confirmation(stale):
    assert stale.post("/users/", {"username": "hal", "role": "member"}).status_code == 200


def test_session_without_password_and_factor_signs_in_again(stale, ada, bob):
    ada.set_unusable_password()
    ada.save(update_fields=["password"])
    assert UserFactory(is_superuser=True).administers
    client = stale
    client.force_login(ada, backend="django.contrib.auth.backends.ModelBackend")
    session = client.session
    session["berth_proven_at"] = 0
    session.save()
    text = client.post("/users/bob/delete/").content.decode()
    assert "Sign out and in again" in text
    assert "confirm_password" not in text


def test_role_is_unchanged_if_the_actor_lost_the_right(stale, ada, bob):
    """A confirmation grants nothing beyond the role."""
    User.objects.filter(pk=ada.pk).update(is_superuser=False)
    assert stale.post("/users/bob/delete/", {"confirm_password": PASSWORD}).status_code == 403
    bob.refresh_from_db()
    assert bob.deleted_at is None
    assert users.User.objects.filter(pk=bob.pk, is_active=True).exists()


def _json(body):
    return json.dumps(body) if body is not None else ""
