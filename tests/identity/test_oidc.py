"""Sign-in by OpenID Connect, with a provider in its own process that can be made to lie."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client

from portal.common.events.models import Event
from portal.people.accounts.models import User
from portal.people.identity import oidc
from portal.people.identity.models import IdentityLink
from tests.factories import PASSWORD
from tests.identity.conftest import op_settings
from tests.suite.choice import sample

pytestmark = [pytest.mark.django_db, pytest.mark.engine]
NORA = {
    "sub": "42",
    "preferred_username": "nora",
    "email": "nora@example.org",
    "email_verified": True,
    "groups": ["vision"],
}
RULES = """
[[provider.rules]]
group = "vision"
team = "vision"
"""


@pytest.fixture(autouse=True)
def _rules(op, configure, team):
    configure(op_settings(op, rules=RULES))


def signed_in_user(browser: Client) -> str:
    answer = browser.get("/api/v1/me")
    return str(answer.json()["username"]) if answer.status_code == 200 else ""


def page_message(answer: Any) -> str:
    """The message of the refusal page."""
    text = answer.content.decode()
    assert "Sign-in failed" in text
    assert 'href="/sign-in/"' in text
    return str(text.split('role="alert"', 1)[1].split("</div>", 1)[0])


# --- valid sign-ins -------------------------------------------------------------------------------


def test_first_sign_in_creates_the_account_and_redirects_to_the_requested_page(op, client):
    page = client.get("/sign-in/?next=/teams/").content.decode()
    assert "Sign in with Example Corp" in page
    assert "/sign-in/by/corp/?next=%2Fteams%2F" in page
    op.tell(claims=NORA)
    away = client.get("/sign-in/by/corp/?next=/teams/")
    query = parse_qs(urlsplit(away["Location"]).query)
    assert query["code_challenge_method"] == ["S256"]
    assert query["redirect_uri"][0].endswith("/sign-in/oidc/corp/callback/")
    assert len(query["nonce"][0]) > 30
    back = client.get(op.approve(away["Location"]))
    assert (back.status_code, back["Location"]) == (302, "/teams/")
    nora = User.objects.get(username="nora")
    assert signed_in_user(client) == "nora"
    assert list(nora.memberships.values_list("team__slug", flat=True)) == ["vision"]
    entry = Event.objects.get(kind="session.signed_in")
    assert entry.message == "signed in with corp"


def test_user_without_a_required_group_is_refused(op, configure, client):
    configure(op_settings(op, 'require = [{ group = "vision" }]'))
    op.sign_in(Client(), **NORA)
    answer = op.sign_in(client, **{**NORA, "groups": []})
    assert answer.status_code == 403
    assert "groups" in page_message(answer)
    assert signed_in_user(client) == ""


def test_each_provider_has_a_button(op, configure, client):
    second = op_settings(op).replace('"corp"', '"other"').replace("Example Corp", "Other Org")
    configure(op_settings(op) + second)
    page = client.get("/sign-in/").content.decode()
    assert "Sign in with Example Corp" in page
    assert "Sign in with Other Org" in page
    op.sign_in(client, **NORA)
    op.tell(claims={**NORA, "preferred_username": "otto", "email": ""})
    browser = Client()
    browser.get(op.approve(browser.get("/sign-in/by/other/")["Location"]))
    assert signed_in_user(browser) == "otto"
    assert set(IdentityLink.objects.values_list("provider", "subject")) == {("corp", "42"), ("other", "42")}


def test_rotated_key_works_at_once(op, client):
    op.sign_in(Client(), **NORA)
    op.tell(rotate=True)
    op.sign_in(client)
    assert signed_in_user(client) == "nora"


def test_small_clock_differences_are_accepted(op, client):
    op.tell(claims=NORA, lies={"shift": {"iat": 50, "exp": -340}})
    op.sign_in(client)
    assert signed_in_user(client) == "nora"


def test_another_signed_in_user_is_signed_out_first(op, as_user, bob):
    browser = as_user(bob)
    op.sign_in(browser, **NORA)
    assert signed_in_user(browser) == "nora"
    assert Event.objects.filter(kind="session.signed_out", actor=bob).exists()


def test_second_sign_in_in_the_same_browser(op, client):
    op.sign_in(client, **NORA)
    op.sign_in(client)
    assert signed_in_user(client) == "nora"


# --- forged responses -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lies", "reason"),
    [
        ({"id_token": {"aud": "another"}}, "meant for another application"),
        ({"id_token": {"aud": ["another", "third"]}}, "meant for another application"),
        ({"id_token": {"aud": ["berth", "another"]}}, "meant for another application"),
        ({"id_token": {"azp": "another"}}, "meant for another application"),
        ({"id_token": {"iss": "https://evil.example.org"}}, "from another issuer"),
        ({"id_token": {"nonce": "another"}}, "belongs to another sign-in"),
        ({"id_token": {"nonce": None}}, "belongs to another sign-in"),
        ({"id_token": {"exp": None}}, "not valid"),
        ({"id_token": {"sub": None}}, "not valid"),
        ({"shift": {"exp": -1000, "iat": -1000}}, "has expired"),
        ({"shift": {"iat": 1000}}, "time is in the future"),
        ({"signature": "none"}, "not allowed"),
        ({"signature": "hmac"}, "not allowed"),
        ({"signature": "other"}, "not valid"),
        ({"signature": "unknown key"}, "a key that the provider does not have"),
        ({"userinfo": {"sub": "43"}}, "describes another user"),
        ({"lacks": ["id_token"]}, "no ID token"),
        ({"discovery": {"issuer": "https://evil.example.org"}}, "names another issuer"),
        ({"id_token": {"events": {oidc.LOGOUT_EVENT: {}}}}, "the wrong type of token"),
    ],
)
def test_forged_provider_responses_are_refused(op, client, lies, reason):
    op.tell(claims=NORA)
    away = client.get("/sign-in/by/corp/")
    op.tell(lies=lies)
    answer = client.get(op.approve(away["Location"]))
    assert reason in page_message(answer)
    assert answer.status_code in (400, 502)
    assert signed_in_user(client) == ""
    assert not User.objects.filter(username="nora").exists()
    assert Event.objects.get(kind="session.provider_refused").data["code"] == "provider_wrong"


def test_userinfo_does_not_set_the_sign_in_method(op, configure, client):
    configure(op_settings(op, 'mfa = [{ claim = "amr", equals = "otp" }]'))
    op.tell(claims=NORA, lies={"id_token": {"amr": ["pwd"]}, "userinfo": {"amr": ["otp"], "sub": "42"}})
    op.sign_in(client)
    assert Event.objects.get(kind="session.signed_in").message == "signed in with corp"


def test_second_factor_at_the_provider_counts_if_configured(op, configure, client):
    configure(op_settings(op, 'mfa = [{ claim = "amr", equals = "otp" }]'))
    op.sign_in(client, **NORA, amr=["pwd", "otp"])
    assert (
        Event.objects.get(kind="session.signed_in").message
        == "signed in with corp and second factor at the provider"
    )


def test_state_is_valid_once_and_in_its_own_browser(op, client):
    op.tell(claims=NORA)
    back = op.approve(client.get("/sign-in/by/corp/")["Location"])
    stranger = Client()
    assert "started in another browser" in page_message(stranger.get(back))
    assert client.get(back).status_code == 302
    client.post("/sign-out/")
    assert "started in another browser" in page_message(client.get(back))
    assert signed_in_user(client) == signed_in_user(stranger) == ""


def test_state_of_another_provider_is_refused(op, configure, client):
    second = op_settings(op).replace('"corp"', '"other"')
    configure(op_settings(op) + second)
    op.tell(claims=NORA)
    back = op.approve(client.get("/sign-in/by/corp/")["Location"])
    assert "started in another browser" in page_message(client.get(back.replace("/corp/", "/other/")))


@pytest.mark.parametrize(
    "query", ["", "?code=x", "?code=x&state=y", "?error=access_denied", "?state=x&error=x"]
)
def test_callback_without_a_started_sign_in_is_refused(op, client, query):
    assert "started in another browser" in page_message(client.get(f"/sign-in/oidc/corp/callback/{query}"))


def test_code_of_another_browser_is_refused_by_pkce(op, client):
    """Another browser's code in the own sign-in."""
    op.tell(claims=NORA)
    victim = parse_qs(urlsplit(op.approve(Client().get("/sign-in/by/corp/")["Location"])).query)
    own = op.approve(client.get("/sign-in/by/corp/")["Location"])
    path, _, query = own.partition("?")
    state = parse_qs(query)["state"][0]
    answer = client.get(path, {"code": victim["code"][0], "state": state})
    assert "refused the sign-in" in page_message(answer)
    assert signed_in_user(client) == ""


def test_refusal_at_the_provider_is_shown(op, client):
    op.tell(claims=NORA, lies={"deny": True})
    away = client.get("/sign-in/by/corp/")
    assert "was cancelled" in page_message(client.get(op.approve(away["Location"])))


@pytest.mark.parametrize(
    "target", ["https://evil.example.org/", "//evil.example.org/", "/\\evil.example.org", "javascript:1"]
)
def test_next_does_not_redirect_to_another_site(op, client, target):
    op.tell(claims=NORA)
    away = client.get("/sign-in/by/corp/", {"next": target})
    assert client.get(op.approve(away["Location"]))["Location"] == "/"


def test_query_parameters_cannot_change_the_protocol(op, client):
    away = client.get(
        "/sign-in/by/corp/?process=connect&scope=admin&auth_params=prompt%3Dnone%26redirect_uri%3Dx"
    )
    query = parse_qs(urlsplit(away["Location"]).query)
    assert sorted(query["scope"][0].split()) == ["email", "openid", "profile"]
    assert "prompt" not in query
    assert query["redirect_uri"][0].endswith("/sign-in/oidc/corp/callback/")


# --- failures -------------------------------------------------------------------------------------


def test_unreachable_provider_is_reported_and_passwords_work(op, configure, client, ada):
    op.tell(lies={"down": True})
    answer = client.get("/sign-in/by/corp/")
    assert answer.status_code == 503
    assert "is not responding" in page_message(answer)
    configure(op_settings(op).replace(op.issuer, "http://127.0.0.1:1"))
    assert client.get("/sign-in/by/corp/").status_code == 503
    assert "is not responding" in page_message(client.get("/sign-in/by/corp/"))
    client.post("/sign-in/", {"username": "ada", "password": PASSWORD})
    assert signed_in_user(client) == "ada"


def test_provider_failure_during_sign_in_is_reported(op, client):
    op.tell(claims=NORA)
    back = op.approve(client.get("/sign-in/by/corp/")["Location"])
    op.tell(lies={"down": True})
    assert "is not responding" in page_message(client.get(back))


def test_disabled_or_unknown_provider_is_404(op, configure, client):
    configure(op_settings(op, "enabled = false"))
    assert client.get("/sign-in/by/corp/").status_code == 404
    assert client.get("/sign-in/by/nowhere/").status_code == 404
    assert "Example Corp" not in client.get("/sign-in/").content.decode()


# --- sign-out --------------------------------------------------------------------------------------


def test_sign_out_ends_the_session_at_the_provider_if_configured(op, configure, client):
    configure(op_settings(op, "sign_out_everywhere = true"))
    op.sign_in(client, **NORA)
    left = client.post("/sign-out/")
    assert left["Location"] == "/sign-in/oidc/corp/left/"
    assert client.get("/sign-in/?next=/")["Location"] == left["Location"]
    page = client.get(left["Location"]).content.decode()
    assert f"{op.issuer}/end?id_token_hint=" in page
    assert "post_logout_redirect_uri=" in page
    assert signed_in_user(client) == ""
    assert client.get(left["Location"])["Location"] == "/sign-in/"


def test_sign_out_is_local_by_default(op, client):
    op.sign_in(client, **NORA)
    assert client.post("/sign-out/")["Location"] == "/sign-in/"


def logout_token(op: Any, **more: Any) -> str:
    now = int(time.time())
    token = {"iss": op.issuer, "aud": "berth", "iat": now, "exp": now + 100, "jti": "1", "sub": "42"}
    token |= {"events": {oidc.LOGOUT_EVENT: {}}, **more}
    told = {name: value for name, value in token.items() if value is not None}
    return str(op.tell(logout_token=told)["token"])


def test_back_channel_logout_ends_the_local_session(op, client):
    op.sign_in(client, **NORA)
    other = Client()
    op.sign_in(other, **{**NORA, "sub": "43", "preferred_username": "otto", "email": ""})
    answer = Client(enforce_csrf_checks=True).post(
        "/sign-in/oidc/corp/signed-out/", {"logout_token": logout_token(op)}
    )
    assert answer.status_code == 200
    assert "no-store" in answer["Cache-Control"]
    assert (signed_in_user(client), signed_in_user(other)) == ("", "otto")


@pytest.mark.parametrize(
    "more",
    sample(
        [
            {"iss": "https://evil.example.org"},
            {"aud": "another"},
            {"iat": 1_000_000},
            {"exp": 1_000_000},
            {"events": {}},
            {"events": None},
            {"events": "x"},
            {"nonce": "x"},
            {"sub": None},
        ],
        2,
        "each is refused by the same library",
    ),
)
def test_invalid_logout_token_signs_no_one_out(op, client, more):
    op.sign_in(client, **NORA)
    token = logout_token(op, **more)
    answer = Client().post("/sign-in/oidc/corp/signed-out/", {"logout_token": token})
    assert answer.status_code == 400
    assert signed_in_user(client) == "nora"


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "e30.e30.e30", "x" * 100_000])
def test_missing_logout_token_is_refused(op, token):
    assert Client().post("/sign-in/oidc/corp/signed-out/", {"logout_token": token}).status_code == 400


# --- provider test --------------------------------------------------------------------------------


def test_provider_test_shows_claims_and_changes_nothing(op, as_user, ada):
    browser = as_user(ada)
    op.tell(claims=NORA)
    before = (User.objects.count(), IdentityLink.objects.count())
    away = browser.get("/sign-in-providers/corp/test/")
    found = browser.get(op.approve(away["Location"]))
    assert found["Location"] == "/sign-in-providers/corp/tested/"
    page = browser.get(found["Location"]).content.decode()
    assert "The account nora would be created" in page
    assert "preferred_username" in page
    assert (User.objects.count(), IdentityLink.objects.count()) == before
    assert signed_in_user(browser) == "ada"
    assert Event.objects.filter(kind="user.provider_tested", actor=ada).exists()
    assert browser.get(found["Location"])["Location"] == "/sign-in-providers/corp/"


def test_provider_test_is_bound_to_its_administrator(op, as_user, ada, bob):
    browser = as_user(ada)
    op.tell(claims=NORA)
    back = op.approve(browser.get("/sign-in-providers/corp/test/")["Location"])
    ada.is_superuser = False
    ada.save()
    assert "Only the administrator" in page_message(browser.get(back))
    assert as_user(bob).get("/sign-in-providers/corp/test/").status_code == 403
