"""Token exchange: valid tokens get a short one; invalid ones are refused and audited."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any
from urllib.parse import urlencode

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from django.test import Client

from portal.common.events.models import Event
from portal.people.accounts import deactivation, service_accounts, token_lookup
from portal.people.accounts.models import ApiToken
from portal.people.service_accounts import rules
from portal.people.service_accounts.codes import ExchangeCode
from portal.people.service_accounts.exchange import issuers, services
from portal.people.service_accounts.exchange.conditions import Condition
from portal.people.service_accounts.models import Exchange, TrustRule
from tests import sites
from tests.instance import eventually
from tests.service_accounts.conftest import CONDITIONS

pytestmark = pytest.mark.django_db
WORLD = sites.people
URL = "/api/v1/token-exchange"
GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"


def bring(token: str, client: Client | None = None, **changed: Any) -> Any:
    given = {"grant_type": GRANT, "subject_token": token, "subject_token_type": ID_TOKEN, **changed}
    body = urlencode({name: value for name, value in given.items() if value is not None}, doseq=True)
    return (client or Client()).post(URL, body, content_type="application/x-www-form-urlencoded")


def refusal(answer: Any, code: ExchangeCode, error: str = "invalid_request", status: int = 400) -> Event:
    """Assert that the response is an OAuth refusal with its reason in the audit log."""
    assert answer.status_code == status, answer.content
    body = answer.json()
    assert body["error"] == error
    assert set(body) == {"error", "error_description"}
    assert body["error_description"].isascii() and '"' not in body["error_description"]
    assert "no-store" in answer["Cache-Control"]
    assert not ApiToken.objects.filter(owner__username="svc-ci").exists()
    entry = Event.objects.get(kind="token.exchange_refused")
    assert entry.cause["code"] == code.value
    assert entry.actor is None
    return entry


# --- valid tokens ---------------------------------------------------------------------------------


def test_valid_id_token_is_exchanged_for_a_short_token(issuer, rule, ci):
    answer = bring(issuer.sign())
    assert answer.status_code == 200, answer.content
    body = answer.json()
    secret = body.pop("access_token")
    assert body == {
        "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "token_type": "Bearer",
        "expires_in": 600,
        "scope": "workspaces:read workspaces:write",
    }
    assert "no-store" in answer["Cache-Control"]
    program = Client(headers={"Authorization": f"Bearer {secret}"})
    assert program.get("/api/v1/me").json()["username"] == "svc-ci"
    assert program.get("/api/v1/workspaces").status_code == 200
    assert program.get("/api/v1/tokens").status_code == 403
    entry = Event.objects.get(kind="token.exchanged")
    assert (entry.actor, entry.team) == (ci, ci.owning_team)
    assert entry.data["claims"]["repository_id"] == "123" and entry.data["rule"] == str(rule.pk)
    rule.refresh_from_db()
    assert rule.last_used_at is not None


def test_exchanged_token_expires_and_is_purged(issuer, rule, clock):
    secret = bring(issuer.sign()).json()["access_token"]
    clock.shift(599)
    assert token_lookup.find_valid_token(secret) is not None
    clock.shift(2)
    assert token_lookup.find_valid_token(secret) is None
    assert services.purge() == 0
    clock.shift(3600)
    assert services.purge() == 1
    assert not Exchange.objects.exists()


def test_elliptic_curve_keys_and_several_audiences_are_accepted(issuer, rule):
    issuer.rotate("curve", key=ec.generate_private_key(ec.SECP256R1()))
    claims = issuer.claims(aud=["https://elsewhere.example.org", "https://berth.example.org"])
    assert bring(issuer.sign(claims, algorithm="ES256")).status_code == 200
    issuer.rotate("first")


def test_subset_of_the_scopes_can_be_requested(issuer, rule):
    assert bring(issuer.sign(), scope="workspaces:read").json()["scope"] == "workspaces:read"


def test_rule_with_all_scopes_grants_requested_subset(issuer, ci, alice):
    rules.create(
        actor=alice,
        account=ci,
        name="all",
        issuer=issuer.url,
        audience="https://berth.example.org",
        conditions=CONDITIONS,
        scopes=["all"],
        lifetime_s=60,
    )
    assert bring(issuer.sign(), scope="teams:read").json()["scope"] == "teams:read"


# --- invalid tokens -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "failed"),
    [
        ({"repository": "octo/fork"}, "repository"),
        ({"repository": "octo/app2"}, "repository"),
        ({"repository_id": "124"}, "repository_id"),
        ({"ref": "refs/tags/v1"}, "ref"),
        ({"ref": "refs/heads/feature/x"}, "ref"),
        ({"ref": "refs/heads/main\nrefs/heads/main"}, "ref"),
        ({"environment": "staging"}, "environment"),
        ({"environment": None}, "environment"),
        ({"environment": ["production"]}, "environment"),
        ({"aud": "https://elsewhere.example.org"}, "aud"),
        ({"aud": []}, "aud"),
    ],
)
def test_claims_matching_no_rule_are_refused(issuer, rule, changed, failed):
    answer = bring(issuer.sign(issuer.claims(**changed)))
    entry = refusal(answer, ExchangeCode.NO_RULE_MATCHES)
    assert entry.data["rules"] == [{"rule": str(rule.pk), "account": "svc-ci", "failed": [failed]}]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"exp": 1_600_000_000}, ExchangeCode.EXPIRED),
        ({"nbf": 9_999_999_999}, ExchangeCode.NOT_YET_VALID),
        ({"iat": 9_999_999_999}, ExchangeCode.NOT_YET_VALID),
        ({"exp": 9_999_999_999}, ExchangeCode.LIVES_TOO_LONG),
        ({"exp": None}, ExchangeCode.CLAIM_MISSING),
        ({"iat": None}, ExchangeCode.CLAIM_MISSING),
        ({"jti": None}, ExchangeCode.CLAIM_MISSING),
        ({"sub": None}, ExchangeCode.CLAIM_MISSING),
        ({"aud": None}, ExchangeCode.CLAIM_MISSING),
        ({"aud": {"a": 1}}, ExchangeCode.NOT_VALID),
        ({"jti": ""}, ExchangeCode.NOT_VALID),
        ({"iss": "https://evil.example.org"}, ExchangeCode.ISSUER_NOT_ALLOWED),
        ({"iss": None}, ExchangeCode.ISSUER_NOT_ALLOWED),
        ({"iss": ["x"]}, ExchangeCode.ISSUER_NOT_ALLOWED),
    ],
)
def test_invalid_standard_claims_are_refused(issuer, rule, changed, code):
    refusal(bring(issuer.sign(issuer.claims(**changed))), code)


def test_wrong_signature_is_refused(issuer, rule):
    other = rsa.generate_private_key(65537, 2048)
    refusal(bring(issuer.sign(key=other)), ExchangeCode.BAD_SIGNATURE)


def test_claims_changed_after_signing_are_refused(issuer, rule):
    head, _, signature = issuer.sign().split(".")
    forged = jwt.encode(issuer.claims(), "x" * 32, algorithm="HS256").split(".")[1]
    refusal(bring(f"{head}.{forged}.{signature}"), ExchangeCode.BAD_SIGNATURE)


def test_unsigned_token_is_refused(issuer, rule):
    token = jwt.encode(issuer.claims(), None, algorithm="none", headers={"kid": "first"})
    refusal(bring(token), ExchangeCode.ALGORITHM_NOT_ALLOWED)


def test_public_key_as_a_shared_secret_is_refused(issuer, rule):
    public = issuer.keys["first"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    parts = [{"alg": "HS256", "kid": "first", "typ": "JWT"}, issuer.claims()]
    text = ".".join(base64.urlsafe_b64encode(json.dumps(p).encode()).rstrip(b"=").decode() for p in parts)
    mac = base64.urlsafe_b64encode(hmac.new(public, text.encode(), hashlib.sha256).digest()).rstrip(b"=")
    refusal(bring(f"{text}.{mac.decode()}"), ExchangeCode.ALGORITHM_NOT_ALLOWED)


def test_key_for_another_algorithm_is_refused(issuer, rule):
    issuer.pages["/keys"] = {"keys": [issuer.jwk("first", alg="PS256")]}
    refusal(bring(issuer.sign()), ExchangeCode.UNKNOWN_KEY)


def test_short_key_is_refused(issuer, rule):
    issuer.rotate("short", key=rsa.generate_private_key(65537, 1024))
    with pytest.warns(Warning):
        token = issuer.sign()
    refusal(bring(token), ExchangeCode.UNKNOWN_KEY)
    issuer.rotate("first")


@pytest.mark.parametrize("header", [{"kid": "another"}, {"kid": None}])
def test_unknown_key_is_refused(issuer, rule, header):
    headers = {name: value for name, value in header.items() if value is not None}
    token = jwt.encode(issuer.claims(), issuer.keys["first"], algorithm="RS256", headers=headers)
    refusal(bring(token), ExchangeCode.UNKNOWN_KEY)


def test_key_embedded_in_the_token_is_ignored(issuer, rule):
    own = rsa.generate_private_key(65537, 2048)
    issuer.pages["/evil"] = {"keys": []}
    token = jwt.encode(
        issuer.claims(), own, algorithm="RS256", headers={"kid": "evil", "jku": f"{issuer.url}/evil"}
    )
    refusal(bring(token), ExchangeCode.UNKNOWN_KEY)
    assert "/evil" not in issuer.asked


@pytest.mark.parametrize(
    "token",
    ["x", "a.b.c", "..", "{}", "ey." * 3, "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")],
)
def test_malformed_token_is_refused(issuer, rule, token):
    refusal(bring(token), ExchangeCode.NOT_A_JWT)


def test_too_long_token_is_refused(issuer, rule):
    refusal(bring(issuer.sign(issuer.claims(more="x" * 20_000))), ExchangeCode.TOKEN_TOO_LONG)
    assert issuer.asked == []


def test_token_is_accepted_once(issuer, rule):
    token = issuer.sign()
    assert bring(token).status_code == 200
    ApiToken.objects.all().delete()
    entry = refusal(bring(token), ExchangeCode.REPLAYED)
    assert entry.targets.exists()


def test_same_jti_in_another_token_is_a_replay(issuer, rule):
    claims = issuer.claims(jti="one")
    assert bring(issuer.sign(claims)).status_code == 200
    ApiToken.objects.all().delete()
    refusal(bring(issuer.sign(issuer.claims(jti="one"))), ExchangeCode.REPLAYED)


def test_refused_token_can_be_used_later(issuer, rule, ci, alice):
    token = issuer.sign()
    deactivation.deactivate(actor=alice, user=ci)
    refusal(bring(token), ExchangeCode.ACCOUNT_INACTIVE)
    deactivation.reactivate(actor=alice, user=ci)
    assert bring(token).status_code == 200


def test_scope_not_granted_by_the_rule_is_refused(issuer, rule):
    refusal(bring(issuer.sign(), scope="users:read"), ExchangeCode.SCOPE_NOT_GRANTED, "invalid_scope")


def test_matching_rules_of_several_accounts_need_a_choice(issuer, rule, team, alice):
    other = service_accounts.create(actor=alice, team=team, name="docs")
    TrustRule.objects.create(
        account=other,
        name="docs",
        issuer=issuer.url,
        audience=rule.audience,
        conditions=rule.conditions,
        scopes=["teams:read"],
        lifetime_s=60,
        max_lifetime_s=60,
    )
    refusal(bring(issuer.sign()), ExchangeCode.SEVERAL_ACCOUNTS, "invalid_target")
    answer = bring(issuer.sign(), service_account="svc-docs")
    assert answer.json()["scope"] == "teams:read"


def test_rule_of_another_account_does_not_apply(issuer, rule, team, alice):
    service_accounts.create(actor=alice, team=team, name="docs")
    refusal(bring(issuer.sign(), service_account="svc-docs"), ExchangeCode.NO_RULE_MATCHES)


def test_deleted_rule_accepts_no_token(issuer, rule, alice):
    rules.delete(actor=alice, rule=rule)
    refusal(bring(issuer.sign()), ExchangeCode.NO_RULE_MATCHES)


def test_deactivation_ends_the_exchanged_token(issuer, rule, ci, alice):
    secret = bring(issuer.sign()).json()["access_token"]
    deactivation.deactivate(actor=alice, user=ci)
    assert token_lookup.find_valid_token(secret) is None


def test_exchanged_token_cannot_create_tokens(issuer, ci, alice):
    rules.create(
        actor=alice,
        account=ci,
        name="all",
        issuer=issuer.url,
        audience="https://berth.example.org",
        conditions=CONDITIONS,
        scopes=["all"],
        lifetime_s=60,
    )
    secret = bring(issuer.sign()).json()["access_token"]
    program = Client(headers={"Authorization": f"Bearer {secret}"})
    made = program.post("/api/v1/tokens", {"name": "mine for ever"}, content_type="application/json")
    assert made.status_code == 403
    own = program.get("/api/v1/tokens").json()["results"][0]["id"]
    turned = program.post(f"/api/v1/tokens/{own}/rotate", {}, content_type="application/json")
    assert turned.status_code == 403


# --- requests -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"grant_type": "password"}, "unsupported_grant_type"),
        ({"grant_type": None}, "unsupported_grant_type"),
        ({"subject_token": None}, "invalid_request"),
        ({"subject_token_type": "urn:ietf:params:oauth:token-type:saml2"}, "invalid_request"),
        ({"requested_token_type": "urn:ietf:params:oauth:token-type:refresh_token"}, "invalid_request"),
        ({"actor_token": "x"}, "invalid_request"),
        ({"audience": "https://elsewhere.example.org"}, "invalid_target"),
        ({"scope": "nonsense"}, "invalid_scope"),
        ({"scope": ["teams:read", "all"]}, "invalid_request"),
    ],
)
def test_malformed_requests_are_refused(issuer, rule, changed, error):
    answer = bring(issuer.sign(), **changed)
    assert (answer.status_code, answer.json()["error"]) == (400, error)
    assert not ApiToken.objects.exists()


def test_body_that_is_not_a_form_is_refused(issuer, rule):
    answer = Client().post(URL, {"grant_type": GRANT}, content_type="application/json")
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request")


def test_exchange_is_disabled_without_issuers(issuer, rule, settings):
    token = issuer.sign()
    settings.BERTH_TOKEN_EXCHANGE_ISSUERS = []
    assert bring(token).json()["error"] == "unsupported_grant_type"


def test_session_does_not_authorize_an_exchange(issuer, rule, as_user, ada):
    assert bring("x", as_user(ada)).status_code == 400


# --- issuer ---------------------------------------------------------------------------------------


def test_keys_are_fetched_once(issuer, rule):
    for _ in range(3):
        assert bring(issuer.sign()).status_code == 200
    assert issuer.asked == ["/.well-known/openid-configuration", "/keys"]


def test_rotated_key_is_fetched_and_the_old_one_dropped(issuer, rule, monkeypatch):
    monkeypatch.setattr(issuers, "RETRY_S", -1.0)
    old = issuer.sign()
    assert bring(issuer.sign()).status_code == 200
    issuer.rotate("second")
    assert bring(issuer.sign()).status_code == 200
    ApiToken.objects.all().delete()
    refusal(bring(old), ExchangeCode.UNKNOWN_KEY)
    issuer.rotate("first")


def test_unknown_keys_do_not_cause_repeated_fetches(issuer, rule):
    assert bring(issuer.sign()).status_code == 200
    for number in range(5):
        bring(issuer.sign(kid=f"made-up-{number}"))
    assert issuer.asked.count("/keys") == 1


def test_cached_keys_are_used_while_the_issuer_is_unavailable(issuer, rule, monkeypatch):
    assert bring(issuer.sign()).status_code == 200
    monkeypatch.setattr(issuers, "FRESH_S", -1.0)
    monkeypatch.setattr(issuers, "RETRY_S", -1.0)
    issuer.pages["/keys"] = (503, {}, b"away")
    assert bring(issuer.sign()).status_code == 200
    monkeypatch.setattr(issuers, "STALE_S", -1.0)
    ApiToken.objects.all().delete()
    refusal(bring(issuer.sign()), ExchangeCode.ISSUER_UNREACHABLE, "temporarily_unavailable", 503)


@pytest.mark.parametrize(
    "bend",
    [
        pytest.param({"/keys": (503, {}, b"")}, id="away"),
        pytest.param({"/keys": b"not json"}, id="no-json"),
        pytest.param({"/keys": b"[" * 100_000}, id="deep"),
        pytest.param({"/keys": ["a"]}, id="no-object"),
        pytest.param({"/keys": {"keys": "a"}}, id="no-list"),
        pytest.param({"/keys": b'{"keys": [], "more": "' + b"x" * 400_000 + b'"}'}, id="too-long"),
        pytest.param({"/keys": (302, {"Location": "/elsewhere"}, b"")}, id="elsewhere"),
        pytest.param({"/keys": (200, {"Content-Encoding": "gzip"}, b"x")}, id="packed"),
        pytest.param(
            {"/.well-known/openid-configuration": {"issuer": "https://evil.example.org"}}, id="another"
        ),
        pytest.param({"/.well-known/openid-configuration": {}}, id="nameless"),
    ],
)
def test_invalid_answers_of_the_issuer_are_refused(issuer, rule, bend):
    token = issuer.sign()
    issuer.pages.update(bend)
    refusal(bring(token), ExchangeCode.ISSUER_UNREACHABLE, "temporarily_unavailable", 503)
    assert "/elsewhere" not in issuer.asked


def test_keys_are_never_fetched_from_an_unsafe_address(issuer, rule):
    for url in ("http://10.0.0.1/keys", "file:///etc/passwd", "ftp://127.0.0.1/", "https://a@b/", ""):
        issuers.forget()
        issuer.pages["/.well-known/openid-configuration"] = {"issuer": issuer.url, "jwks_uri": url}
        assert bring(issuer.sign()).status_code == 503, url
    assert "/keys" not in issuer.asked


def test_plain_http_issuer_is_refused_unless_allowed(issuer, rule, settings):
    settings.BERTH_TOKEN_EXCHANGE_LOOPBACK = False
    assert bring(issuer.sign()).status_code == 503
    assert issuer.asked == []


def test_silent_issuer_delays_requests_only_briefly(issuer, rule, monkeypatch):
    monkeypatch.setattr(issuers, "STEP_S", 0.2)
    token = issuer.sign()
    issuer.released.clear()
    refusal(bring(token), ExchangeCode.ISSUER_UNREACHABLE, "temporarily_unavailable", 503)
    # The client has gone; the request is recorded when its thread runs.
    eventually(lambda: issuer.asked or None, limit_s=30, what="the issuer is asked")
    assert bring(token).status_code == 503
    assert len(issuer.asked) == 1


# --- conditions -----------------------------------------------------------------------------------


def test_renamed_organization_is_recognized_by_its_id(issuer, ci, alice):
    rules.create(
        actor=alice,
        account=ci,
        name="by id",
        issuer=issuer.url,
        audience="https://berth.example.org",
        conditions=[
            Condition("repository_id", "exact", "123"),
            Condition("repository_owner_id", "exact", "45"),
        ],
        scopes=["teams:read"],
        lifetime_s=60,
    )
    assert bring(issuer.sign(issuer.claims(repository="renamed/app"))).status_code == 200
    taken_over = issuer.claims(repository="octo/app", repository_id="999", repository_owner_id="999")
    assert bring(issuer.sign(taken_over)).status_code == 400
