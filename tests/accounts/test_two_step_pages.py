"""Pages of the own second factors, roles that require one, and removal by an administrator."""

from __future__ import annotations

import base64
import re

import pytest
from allauth.mfa.models import Authenticator

from portal.common.actors import SYSTEM
from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event, Notification
from portal.people.accounts import users
from portal.people.accounts.models import SiteRole
from portal.settings import checks
from tests.accounts.authenticators import code_of, with_app, with_codes
from tests.factories import PASSWORD

pytestmark = pytest.mark.django_db
PAGE, APP, CODES = "/account/two-step/", "/account/two-step/app/", "/account/two-step/codes/"


def shown_secret(page):
    return re.search(r'<code class="mono">([A-Z2-7 ]+)</code>', page.content.decode())[1].replace(" ", "")


def shown_codes(page):
    return re.findall(r'<code class="mono">(\d{10})</code>', page.content.decode())


def test_first_code_sets_up_the_app_and_shows_recovery_codes_once(as_user, alice):
    client = as_user(alice)
    page = client.get(APP)
    secret = shown_secret(page)
    assert f"secret={secret}" in page.content.decode()
    assert "default-src" in page["Content-Security-Policy"]
    image = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', page.content.decode())[1]
    assert b"<svg" in base64.b64decode(image)
    assert client.post(APP, {"code": "000000"}).status_code == 400
    done = client.post(APP, {"code": code_of(secret)})
    codes = shown_codes(done)
    assert len(set(codes)) == 10
    assert not shown_codes(client.get(PAGE))
    assert "10 codes are left" in client.get(PAGE).content.decode()
    alice.refresh_from_db()
    assert alice.mfa_since is not None
    assert Event.objects.get(kind=AuditKind.USER_MFA_ADDED).data["factor"] == "app"
    assert Notification.objects.filter(user=alice, kind="account.mfa_changed").count() == 1


def test_setup_code_cannot_be_reused_to_sign_in(as_user, alice):
    client = as_user(alice)
    secret = shown_secret(client.get(APP))
    code = code_of(secret)
    client.post(APP, {"code": code})
    other = as_user()
    other.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    assert other.post("/sign-in/second-factor/", {"code": code}).status_code == 400


def test_setup_page_shows_a_new_secret_each_time_and_invalidates_the_previous(as_user, alice):
    client = as_user(alice)
    first, second = shown_secret(client.get(APP)), shown_secret(client.get(APP))
    assert first != second
    assert client.post(APP, {"code": code_of(first)}).status_code == 400
    assert client.post(APP, {"code": code_of(second)}).status_code == 200


def test_secrets_are_not_readable_in_the_database(alice, as_user, settings):
    client = as_user(alice)
    secret = shown_secret(client.get(APP))
    codes = shown_codes(client.post(APP, {"code": code_of(secret)}))
    stored = str(list(Authenticator.objects.values_list("data", flat=True)))
    assert secret not in stored
    assert not any(code in stored for code in codes)
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = (
        "another secret key of some length",
        [settings.SECRET_KEY],
    )
    other = as_user()
    other.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    assert other.post("/sign-in/second-factor/", {"code": codes[0]}).status_code == 302


def test_lost_secret_key_is_reported_and_codes_are_refused(alice, as_user, settings):
    secret = with_app(alice)
    client = as_user()
    settings.SECRET_KEY = "another secret key of some length"
    client.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    answered = client.post("/sign-in/second-factor/", {"code": code_of(secret)})
    assert answered.status_code == 503
    assert "secret key has changed" in answered.content.decode()


def test_recovery_codes_can_be_downloaded_as_text(as_user, alice):
    answered = as_user(alice).post(f"{CODES}download/", {"codes": "1234567890 <b>x</b> 0987654321"})
    assert "attachment" in answered["Content-Disposition"]
    assert answered["Content-Type"].startswith("text/plain")
    assert answered["Cache-Control"].count("no-store") == 1
    assert answered.content.decode().splitlines()[2:] == ["1234567890", "0987654321"]


def test_new_recovery_codes_replace_the_old(as_user, alice):
    with_app(alice)
    before = with_codes(alice)
    made = shown_codes(as_user(alice).post(CODES))
    assert set(made).isdisjoint(before)
    other = as_user()
    other.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    assert other.post("/sign-in/second-factor/", {"code": before[0]}).status_code == 400
    assert other.post("/sign-in/second-factor/", {"code": made[0]}).status_code == 302
    assert Event.objects.filter(kind=AuditKind.USER_MFA_CODES_CREATED).count() == 1


def test_removing_the_app_removes_recovery_codes(as_user, alice):
    with_app(alice)
    with_codes(alice)
    as_user(alice).post(f"{APP}remove/")
    assert not Authenticator.objects.exists()
    client = as_user()
    client.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    assert client.get("/").status_code == 200
    assert Event.objects.get(kind=AuditKind.USER_MFA_REMOVED).data["factor"] == "app"


# --- Demanded by a role ---


@pytest.fixture
def factor_required(settings):
    settings.BERTH_MFA_REQUIRED_FOR = frozenset({"administrator", "operator"})


PATHS = ["/", "/users/", "/account/", "/account/tokens/", "/workspaces/new/", "/gpus/", "/audit/export/csv/"]


@pytest.mark.parametrize("path", PATHS)
def test_user_without_a_required_factor_is_redirected_to_setup(as_user, ada, factor_required, path):
    client = as_user(ada)
    assert client.get(path)["Location"] == PAGE
    assert client.post(path, {"username": "hal"})["Location"] == PAGE


def test_htmx_requests_are_redirected_to_setup(as_user, ada, factor_required):
    answered = as_user(ada).get("/", headers={"HX-Request": "true", "HX-Current-URL": "http://testserver/"})
    assert answered["HX-Redirect"] == PAGE


def test_rest_with_a_session_is_403_and_tokens_still_work(as_user, with_token, ada, factor_required):
    answered = as_user(ada).get("/api/v1/users")
    assert (answered.status_code, answered.json()["code"]) == (403, "mfa_required")
    assert (
        as_user(ada).post("/api/v1/tokens", {"name": "t"}, content_type="application/json").status_code == 403
    )
    assert with_token(ada).get("/api/v1/users").status_code == 200


def test_event_streams_are_refused(as_user, ada, factor_required):
    assert as_user(ada).get("/events/").status_code == 401


def test_setup_unlocks_the_portal(as_user, ada, factor_required):
    client = as_user(ada)
    assert "Your role requires a second factor" in client.get(PAGE).content.decode()
    client.post(APP, {"code": code_of(shown_secret(client.get(APP)))})
    assert client.get("/users/").status_code == 200


def test_sign_out_works_without_the_required_factor(as_user, ada, factor_required):
    client = as_user(ada)
    assert client.post("/sign-out/").status_code == 302
    assert client.get(PAGE)["Location"].startswith("/sign-in/")


def test_last_factor_cannot_be_removed_if_the_role_requires_one(as_user, ada, factor_required):
    with_app(ada)
    client = as_user(ada)
    client.post(f"{APP}remove/")
    assert Authenticator.objects.filter(user=ada).exists()
    assert "this is your only one" in client.get(PAGE).content.decode()


def test_roles_without_the_requirement_are_not_redirected(as_user, alice, petra, factor_required):
    assert as_user(alice).get("/").status_code == 200
    assert as_user(petra).get("/").status_code == 200


def test_setting_accepts_all_site_roles():
    """The setting is checked before models can be imported, so the roles are listed twice."""
    assert set(SiteRole.values) == checks.SITE_ROLES


# --- Taken off by an administrator ---


def test_administrator_removes_factors_and_notifies_the_user(as_user, ada, alice):
    with_app(alice)
    with_codes(alice)
    there = as_user(alice)
    assert as_user(ada).post("/users/alice/reset-mfa/").status_code == 302
    assert there.get("/").status_code == 302, "signed out"
    alice.refresh_from_db()
    assert alice.mfa_since is None
    assert not Authenticator.objects.filter(user=alice).exists()
    entry = Event.objects.get(kind=AuditKind.USER_MFA_RESET, actor=ada)
    assert entry.data["username"] == "alice"
    assert Notification.objects.filter(user=alice, kind="account.mfa_changed").exists()


def test_factors_are_removed_over_rest_and_removing_twice_succeeds(with_token, ada, alice):
    with_app(alice)
    client = with_token(ada)
    assert client.get("/api/v1/users/alice").json()["mfa"] is True
    for _ in range(2):
        answered = client.post("/api/v1/users/alice/reset-mfa")
        assert (answered.status_code, answered.json()["mfa"]) == (200, False)
    assert Event.objects.filter(kind=AuditKind.USER_MFA_RESET).count() == 1


def test_users_are_filtered_by_mfa(with_token, ada, alice, bob):
    with_app(alice)
    client = with_token(ada)
    names = {
        value: [row["username"] for row in client.get("/api/v1/users", {"mfa": value}).json()["results"]]
        for value in ("true", "false")
    }
    assert names == {"true": ["alice"], "false": ["ada", "bob"]}


def test_deleted_account_has_no_factors(alice):
    with_app(alice)
    users.delete(actor=SYSTEM, user=alice)
    assert not Authenticator.objects.exists()
