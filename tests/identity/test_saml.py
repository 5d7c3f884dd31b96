"""Sign-in by SAML: only signed responses to a request of this browser are accepted."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from portal.common.events.models import Event
from portal.people.accounts.models import User
from portal.people.identity.models import IdentityLink
from tests import sites
from tests.identity.saml_idp import ENTITY, SSO, Idp, encoded, request_in

pytestmark = pytest.mark.django_db
WORLD = sites.people
OURS = "http://localhost:8000/sign-in/saml/campus/metadata/"


@pytest.fixture(scope="module")
def idp() -> Idp:
    return Idp()


def settings_of(more: str = "") -> str:
    return f"""
[[provider]]
kind = "saml"
id = "campus"
name = "Campus"
entity_id = "{ENTITY}"
sso_url = "{SSO}"
certificate = "env:CAMPUS_CERTIFICATE"
claims = {{ subject = "NameID", username = "uid", email = "mail" }}
trust_email = true
{more}

[[provider.rules]]
group = "vision"
team = "vision"
"""


@pytest.fixture(autouse=True)
def _provider(idp, configure, monkeypatch, settings, team):
    settings.BERTH_PUBLIC_URL = "http://localhost:8000"
    monkeypatch.setenv("CAMPUS_CERTIFICATE", idp.certificate)
    configure(settings_of())


class Attempt:
    """A sign-in started in `browser`: the request's id and response URL."""

    def __init__(self, browser: Client, next_url: str = "") -> None:
        self.browser = browser
        away = browser.get("/sign-in/by/campus/", {"next": next_url} if next_url else {})
        assert away.status_code == 302, away.content
        assert away["Location"].startswith(SSO)
        request = request_in(away["Location"])
        self.id = request.get("ID") or ""
        self.acs = request.get("AssertionConsumerServiceURL") or ""

    def good(self, idp: Idp, **told: Any) -> str:
        """The response of an honest provider."""
        told = {"recipient": self.acs, "audience": OURS, **told}
        return idp.response(idp.signed(idp.assertion(self.id, **told)), self.id, self.acs)


def post_response(browser: Client, xml: str) -> Any:
    """Post the response as the provider's page does, then follow the redirect; return the last response."""
    posted = Client(enforce_csrf_checks=True)
    kept = posted.post("/sign-in/saml/campus/acs/", {"SAMLResponse": encoded(xml)})
    if kept.status_code != 302:
        return kept
    for name, cookie in kept.cookies.items():
        browser.cookies[name] = cookie.value
    return browser.get(kept["Location"])


def signed_in_user(browser: Client) -> str:
    answer = browser.get("/api/v1/me")
    return str(answer.json()["username"]) if answer.status_code == 200 else ""


def refused(browser: Client, xml: str) -> str:
    """The refusal page, after checking that no one is signed in and nothing is created."""
    answer = post_response(browser, xml)
    assert answer.status_code in (400, 403, 502), answer.status_code
    assert signed_in_user(browser) == ""
    assert not User.objects.filter(username="nora").exists()
    return str(answer.content.decode())


def test_valid_response_signs_in_and_redirects_to_the_requested_page(idp, client):
    assert "Sign in with Campus" in client.get("/sign-in/").content.decode()
    attempt = Attempt(client, "/teams/")
    assert post_response(client, attempt.good(idp))["Location"] == "/teams/"
    assert signed_in_user(client) == "nora"
    nora = User.objects.get(username="nora")
    assert (nora.email, list(nora.memberships.values_list("team__slug", flat=True))) == (
        "nora@example.org",
        ["vision"],
    )
    assert IdentityLink.objects.get().subject == "nora-42"
    assert Event.objects.get(kind="session.signed_in").message == "signed in with campus"


def test_next_certificate_is_accepted_beside_the_current_one(idp, client, monkeypatch):
    monkeypatch.setenv("CAMPUS_CERTIFICATE", Idp().certificate + idp.certificate)
    post_response(client, Attempt(client).good(idp))
    assert signed_in_user(client) == "nora"


def test_sign_in_method_can_count_as_second_factor(idp, client, configure):
    context = "urn:oasis:names:tc:SAML:2.0:ac:classes:TimeSyncToken"
    configure(settings_of(f'mfa = [{{ claim = "AuthnContextClassRef", equals = "{context}" }}]'))
    post_response(client, Attempt(client).good(idp, context="TimeSyncToken"))
    assert "second factor" in Event.objects.get(kind="session.signed_in").message


def test_signature_of_another_key_is_refused(client):
    assert "not valid" in refused(client, Attempt(client).good(Idp()))


def test_unsigned_response_is_refused(idp, client):
    attempt = Attempt(client)
    bare = idp.assertion(attempt.id, recipient=attempt.acs, audience=OURS)
    refused(client, idp.response(bare, attempt.id, attempt.acs))


def test_signed_response_with_unsigned_assertion_is_refused(idp, client):
    attempt = Attempt(client)
    bare = idp.assertion(attempt.id, recipient=attempt.acs, audience=OURS)
    refused(client, idp.signed(idp.response(bare, attempt.id, attempt.acs)))


@pytest.mark.parametrize(
    "told",
    [
        {"audience": "https://another.example.org"},
        {"issuer": "https://evil.example.org"},
        {"recipient": "https://another.example.org/acs"},
        {"shift_s": "-3600"},
        {"shift_s": "3600"},
        {"answers": ""},
        {"answers": 'InResponseTo="_another"'},
    ],
)
def test_signed_response_for_another_recipient_or_time_is_refused(idp, client, told):
    refused(client, Attempt(client).good(idp, **told))


def test_change_after_signing_is_refused(idp, client):
    attempt = Attempt(client)
    refused(client, attempt.good(idp).replace("<saml:AttributeValue>nora<", "<saml:AttributeValue>admin<"))


def test_comment_does_not_truncate_a_name(idp, client):
    attempt = Attempt(client)
    xml = attempt.good(idp, name_id="nora-42.evil").replace("nora-42.evil", "nora-42<!-- -->.evil")
    post_response(client, xml)
    assert not IdentityLink.objects.filter(subject="nora-42").exists()


def test_response_is_valid_once_and_in_its_own_browser(idp, client):
    attempt = Attempt(client)
    xml = attempt.good(idp)
    assert "started in another browser" in refused(Client(), xml)
    post_response(client, xml)
    assert signed_in_user(client) == "nora"
    client.post("/sign-out/")
    assert "started in another browser" in post_response(client, xml).content.decode()
    assert signed_in_user(client) == ""


def test_assertion_of_another_sign_in_is_refused(idp, client):
    """An attacker puts a signed assertion for another request into the response to their own."""
    stolen = idp.signed(idp.assertion(Attempt(Client()).id, recipient=Attempt(Client()).acs, audience=OURS))
    own = Attempt(client)
    refused(client, idp.response(stolen, own.id, own.acs))


def test_unsolicited_response_is_refused(idp, client):
    attempt = Attempt(client)
    unasked = idp.signed(idp.assertion("", recipient=attempt.acs, audience=OURS))
    assert "started in another browser" in refused(client, idp.response(unasked, "", attempt.acs))


@pytest.mark.parametrize("place", ["before", "after", "inside"])
def test_signature_wrapping_is_refused(idp, client, place):
    """A forged assertion beside the signed one, with the same or another id."""
    attempt = Attempt(client)
    signed = idp.signed(idp.assertion(attempt.id, recipient=attempt.acs, audience=OURS))
    forged = idp.assertion(attempt.id, recipient=attempt.acs, audience=OURS, name_id="admin-1").replace(
        ">nora<", ">admin<"
    )
    both = {
        "before": forged + signed,
        "after": signed + forged,
        "inside": forged.replace(
            "</saml:Assertion>", f"<saml:Advice>{signed}</saml:Advice></saml:Assertion>"
        ),
    }[place]
    refused(client, idp.response(both, attempt.id, attempt.acs))
    assert not User.objects.filter(username="admin").exists()


def test_signed_assertion_in_an_extension_of_a_forged_one_is_refused(idp, client):
    attempt = Attempt(client)
    signed = idp.signed(idp.assertion(attempt.id, recipient=attempt.acs, audience=OURS, assertion_id="_same"))
    forged = idp.assertion(
        attempt.id, recipient=attempt.acs, audience=OURS, assertion_id="_same", name_id="admin-1"
    )
    xml = idp.response(forged, attempt.id, attempt.acs).replace(
        "<samlp:Status>", f"<samlp:Extensions>{signed}</samlp:Extensions><samlp:Status>"
    )
    refused(client, xml)


@pytest.mark.parametrize(
    "doctype",
    [
        '<!DOCTYPE x [<!ENTITY nora SYSTEM "file:///etc/hostname">]>',
        '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY nora "&a;&a;&a;&a;&a;&a;&a;&a;">]>',
        '<!DOCTYPE x SYSTEM "http://127.0.0.1:1/x.dtd">',
    ],
)
def test_document_types_and_entities_are_refused(idp, client, doctype):
    attempt = Attempt(client)
    page = refused(client, doctype + attempt.good(idp).replace(">nora<", ">&nora;<"))
    assert "root:" not in page


@pytest.mark.parametrize("given", ["", "x", "!!!", encoded("<x/>"), encoded("not xml"), "A" * 300_000])
def test_malformed_response_is_refused(client, given):
    Attempt(client)
    answer = Client().post("/sign-in/saml/campus/acs/", {"SAMLResponse": given})
    if answer.status_code == 302:
        client.cookies["saml-response"] = answer.cookies["saml-response"].value
        answer = client.get(answer["Location"])
    assert answer.status_code in (400, 502)
    assert signed_in_user(client) == ""


def test_refusal_at_the_provider_is_shown(idp, client):
    attempt = Attempt(client)
    refused(client, idp.response("", attempt.id, attempt.acs, status="Responder"))


def test_transient_name_id_is_refused(idp, client):
    transient = "urn:oasis:names:tc:SAML:2.0:nameid-format:transient"
    assert "changes with each sign-in" in refused(client, Attempt(client).good(idp, name_format=transient))


def test_provider_test_shows_claims_and_changes_nothing(idp, as_user, ada):
    browser = as_user(ada)
    request = request_in(browser.get("/sign-in-providers/campus/test/")["Location"])
    assert request.get("ForceAuthn") == "true"
    attempt = Attempt.__new__(Attempt)
    attempt.id, attempt.acs = request.get("ID"), request.get("AssertionConsumerServiceURL")
    found = post_response(browser, attempt.good(idp))
    assert "The account nora would be created" in browser.get(found["Location"]).content.decode()
    assert signed_in_user(browser) == "ada"
    assert not User.objects.filter(username="nora").exists()


def test_metadata_has_entity_id_and_urls(client):
    text = client.get("/sign-in/saml/campus/metadata/").content.decode()
    assert f'entityID="{OURS}"' in text
    assert 'Location="http://localhost:8000/sign-in/saml/campus/acs/"' in text
    assert 'WantAssertionsSigned="true"' in text
