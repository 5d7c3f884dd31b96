"""Passkeys over HTTP: adding, signing in, and invalid responses."""

from __future__ import annotations

import json

import pytest
from allauth.mfa.models import Authenticator

from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event
from portal.people.accounts.models import User
from tests.accounts.authenticators import Passkey, code_of, with_app
from tests.factories import PASSWORD, UserFactory

pytestmark = pytest.mark.django_db
ADD, OPTIONS = "/account/two-step/passkeys/add/", "/account/two-step/passkeys/options/"
SIGN_IN, STEP = "/sign-in/passkey/", "/sign-in/second-factor/"


@pytest.fixture(autouse=True)
def _on_localhost(settings):
    """The portal has its configured address; test clients request `testserver`."""
    settings.ALLOWED_HOSTS = ["testserver", "localhost"]
    settings.BERTH_PUBLIC_HOST, settings.BERTH_PUBLIC_ORIGIN = (
        "berth.example.org",
        "https://berth.example.org",
    )


def key(**options):
    return Passkey(rp="berth.example.org", origin="https://berth.example.org", **options)


def add(client, passkey, name="Phone"):
    options = client.get(OPTIONS, {"for": "add"}).json()
    return client.post(ADD, {"name": name, "credential": passkey.created(options)})


@pytest.fixture
def passkey(as_user, alice):
    """A passkey of alice."""
    made = key()
    answered = add(as_user(alice), made)
    assert answered.status_code == 200, "the recovery codes are shown"
    alice.refresh_from_db()
    return made


def signed_in(client):
    return client.get("/").status_code == 200


def test_first_passkey_enables_two_step_sign_in_and_shows_recovery_codes_once(as_user, alice, passkey):
    alice.refresh_from_db()
    assert alice.mfa_since is not None
    row = Authenticator.objects.get(user=alice, type="webauthn")
    assert row.data["name"] == "Phone"
    assert Event.objects.get(kind=AuditKind.USER_MFA_ADDED, actor=alice).data["factor"] == "passkey"


def test_passkey_signs_in_without_username_password_or_code(as_user, alice, passkey):
    client = as_user()
    options = client.get(SIGN_IN).json()
    assert options["publicKey"]["userVerification"] == "required"
    assert not options["publicKey"].get("allowCredentials")
    answered = client.post(SIGN_IN, {"credential": passkey.used(options), "next": "/pools/"})
    assert answered["Location"] == "/pools/"
    assert signed_in(client)
    assert Event.objects.filter(kind=AuditKind.SESSION_SIGNED_IN, actor=alice, data__how="passkey").exists()


def test_sign_in_does_not_redirect_to_another_site(as_user, passkey):
    client = as_user()
    answer = passkey.used(client.get(SIGN_IN).json())
    assert client.post(SIGN_IN, {"credential": answer, "next": "https://evil.example"})["Location"] == "/"


def test_options_do_not_reveal_whether_a_username_exists(as_user, alice, bob, passkey):
    client = as_user()
    asked = {
        name: client.get(SIGN_IN, {"username": name}).json()["publicKey"] for name in ("alice", "bob", "zoe")
    }
    assert {len(each["allowCredentials"]) for each in asked.values()} == {1}
    again = client.get(SIGN_IN, {"username": "zoe"}).json()["publicKey"]
    assert again["allowCredentials"] == asked["zoe"]["allowCredentials"]
    options = client.get(SIGN_IN, {"username": "alice"}).json()
    client.post(SIGN_IN, {"credential": passkey.used(options)})
    assert signed_in(client)


def test_passkey_works_as_second_step_after_the_password(as_user, alice, passkey):
    client = as_user()
    client.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    options = client.get(SIGN_IN, {"for": "second-factor"}).json()
    # A key without a PIN is accepted here.
    assert client.post(STEP, {"credential": passkey.used(options, verified=False)}).status_code == 302
    assert signed_in(client)


# --- Answers that do not count ---


@pytest.mark.parametrize(
    "origin",
    [
        "https://ws-1234.berth.example.org",
        "https://evil.example",
        "http://berth.example.org",
        "https://berth.example.org:8443",
        "https://berth.example.org.evil.example",
        "http://localhost",
    ],
)
def test_response_from_another_origin_is_refused(as_user, passkey, origin):
    """Workspaces are the main risk: browsers let pages of a subdomain request the portal's passkeys."""
    client = as_user()
    passkey.origin = origin
    client.post(SIGN_IN, {"credential": passkey.used(client.get(SIGN_IN).json())})
    assert not signed_in(client)


def test_response_from_a_frame_is_refused(as_user, passkey):
    client = as_user()
    client.post(SIGN_IN, {"credential": passkey.used(client.get(SIGN_IN).json(), crossOrigin=True)})
    assert not signed_in(client)


def test_response_without_user_verification_cannot_replace_the_password(as_user, passkey):
    client = as_user()
    client.post(SIGN_IN, {"credential": passkey.used(client.get(SIGN_IN).json(), verified=False)})
    assert not signed_in(client)


def test_response_to_another_browser_or_used_twice_is_refused(as_user, passkey):
    first, second = as_user(), as_user()
    answer = passkey.used(first.get(SIGN_IN).json())
    second.get(SIGN_IN)
    second.post(SIGN_IN, {"credential": answer})
    assert not signed_in(second)
    first.post(SIGN_IN, {"credential": answer})
    first.post("/sign-out/")
    first.post(SIGN_IN, {"credential": answer})
    assert not signed_in(first)


def test_response_to_a_challenge_for_another_purpose_is_refused(as_user, alice, passkey):
    """A response for confirmation or as a second step does not create a session."""
    client = as_user()
    client.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    options = client.get(SIGN_IN, {"for": "second-factor"}).json()
    client.post(SIGN_IN, {"credential": passkey.used(options)})
    assert not signed_in(client)


def test_response_to_an_expired_challenge_is_refused(as_user, passkey, clock):
    client = as_user()
    options = client.get(SIGN_IN).json()
    clock.shift(301)
    client.post(SIGN_IN, {"credential": passkey.used(options)})
    assert not signed_in(client)


def test_response_of_another_key_with_the_same_id_is_refused(as_user, passkey):
    client, other = as_user(), key()
    other.id, other.handle = passkey.id, passkey.handle
    client.post(SIGN_IN, {"credential": other.used(client.get(SIGN_IN).json())})
    assert not signed_in(client)


def test_response_with_the_handle_of_another_user_is_refused(as_user, bob, passkey):
    client = as_user()
    client.post(SIGN_IN, {"credential": passkey.used(client.get(SIGN_IN).json(), handle=bob.pk.bytes)})
    assert not signed_in(client)


def test_response_with_a_repeated_counter_is_refused(as_user, passkey):
    """A cloned authenticator repeats counters."""
    passkey.counter = 5
    client = as_user()
    client.post(SIGN_IN, {"credential": passkey.used(client.get(SIGN_IN).json())})
    assert signed_in(client)
    passkey.counter = 5
    copy = as_user()
    copy.post(SIGN_IN, {"credential": passkey.used(copy.get(SIGN_IN).json())})
    assert not signed_in(copy)


def test_deactivated_user_cannot_use_a_passkey(as_user, alice, passkey):
    User.objects.filter(pk=alice.pk).update(is_active=False)
    client = as_user()
    client.post(SIGN_IN, {"credential": passkey.used(client.get(SIGN_IN).json())})
    assert not signed_in(client)


@pytest.mark.parametrize(
    "answer",
    ["", "null", "[]",
      "{}", '{"id": 1}', '{"rawId": "!!", "response": {}}', "x" * 30_000, '{"response": null}',
     '{"id": "AA", "rawId": "AA", "type": "public-key", "response": {"clientDataJSON": "AA"}}'],
)  # fmt: skip
def test_malformed_response_is_refused(as_user, alice, answer):
    client = as_user()
    client.get(SIGN_IN)
    assert client.post(SIGN_IN, {"credential": answer})["Location"] == "/sign-in/"
    own = as_user(alice)
    own.get(OPTIONS, {"for": "add"})
    assert own.post(ADD, {"name": "x", "credential": answer}).status_code == 400
    assert not Authenticator.objects.exists()


def test_repeated_failures_block_the_address_for_a_while(as_user, passkey, settings, clock):
    settings.BERTH_SIGN_IN_FAILURES_PER_ADDRESS = 3
    client = as_user()
    for _ in range(3):
        client.post(SIGN_IN, {"credential": "{}"})
    answer = passkey.used(client.get(SIGN_IN).json())
    assert client.post(SIGN_IN, {"credential": answer}).status_code == 429
    clock.shift(15 * 60 + 1)
    client.post(SIGN_IN, {"credential": passkey.used(client.get(SIGN_IN).json())})
    assert signed_in(client)


# --- Adding, naming, removing ---


def test_passkey_from_another_origin_cannot_be_added(as_user, alice):
    client = as_user(alice)
    made = key()
    made.origin = "https://ws-1.berth.example.org"
    assert add(client, made).status_code == 400
    assert not Authenticator.objects.exists()


def test_passkey_belongs_to_one_account(as_user, bob, passkey):
    assert add(as_user(bob), passkey).status_code == 400


def test_passkeys_can_be_named_renamed_and_removed(as_user, alice, passkey):
    client = as_user(alice)
    assert add(client, key(), name="Stick")["Location"] == "/account/two-step/"
    first, second = Authenticator.objects.filter(type="webauthn").order_by("pk")
    client.post(f"/account/two-step/passkeys/{second.pk}/", {"name": " Blue \n stick "})
    second.refresh_from_db()
    assert second.data["name"] == "Blue stick"
    client.post(f"/account/two-step/passkeys/{first.pk}/remove/")
    alice.refresh_from_db()
    assert alice.mfa_since is not None
    client.post(f"/account/two-step/passkeys/{second.pk}/remove/")
    alice.refresh_from_db()
    assert alice.mfa_since is None
    assert not Authenticator.objects.filter(user=alice).exists(), "recovery codes go with the last factor"


def test_passkeys_of_others_are_hidden_and_unchanged(as_user, bob, passkey):
    row = Authenticator.objects.get(type="webauthn")
    client = as_user(bob)
    assert client.get(f"/account/two-step/passkeys/{row.pk}/remove/").status_code == 404
    assert client.post(f"/account/two-step/passkeys/{row.pk}/remove/").status_code == 404
    assert client.post(f"/account/two-step/passkeys/{row.pk}/", {"name": "Mine"}).status_code == 404


def test_passkeys_per_user_are_limited(as_user, alice, monkeypatch, passkey):
    monkeypatch.setattr("portal.people.accounts.mfa.factors.MAX_PASSKEYS", 1)
    assert add(as_user(alice), key()).status_code == 400


def test_first_factor_ends_other_sessions_only(as_user, alice):
    here, there = as_user(alice), as_user(alice)
    assert add(here, key()).status_code == 200
    assert signed_in(here)
    assert not signed_in(there)


def test_localhost_uses_the_origin_of_the_request(as_user, alice):
    """Even if the portal has another public address."""
    client = as_user(alice)
    client.defaults["HTTP_HOST"] = "localhost:8000"
    made = Passkey(rp="localhost", origin="http://localhost:8000")
    assert add(client, made).status_code == 200
    stranger = as_user()
    stranger.defaults["HTTP_HOST"] = "localhost:8000"
    made.origin = "http://ws-1.localhost:8000"
    stranger.post(SIGN_IN, {"credential": made.used(stranger.get(SIGN_IN).json())})
    assert not signed_in(stranger)
    made.origin = "http://localhost:8000"
    stranger.post(SIGN_IN, {"credential": made.used(stranger.get(SIGN_IN).json())})
    assert signed_in(stranger)


def test_app_code_works_beside_a_passkey(as_user, passkey, alice):
    secret = with_app(alice)
    client = as_user()
    client.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    client.post(STEP, {"code": code_of(secret)})
    assert signed_in(client)


def test_options_contain_no_secret(as_user, alice, passkey):
    shown = json.dumps(as_user(alice).get(OPTIONS, {"for": "confirm"}).json())
    assert "example.org" in shown
    assert UserFactory.build().password not in shown
