"""*Test this provider* for a directory: attributes of a user, without password and changes."""

from __future__ import annotations

import html
import json
import re

import pytest

from portal.common.events.models import Event
from portal.people.accounts.models import User
from portal.people.identity.lookups import redact_claims
from portal.people.identity.models import IdentityLink
from tests.factories import PASSWORD as LOCAL
from tests.factories import UserFactory
from tests.identity.slapd import ADMIN_PASSWORD, PASSWORD

pytest.importorskip("ldap", reason="python-ldap is not installed: make ldap")
from tests.identity.test_ldap import directory, ports, pytestmark, sign_in, who

__all__ = ["directory", "ports", "pytestmark"]
PAGE, REST = "/sign-in-providers/directory/test/", "/api/v1/sign-in-providers/directory/test"


@pytest.fixture
def ask(as_user, ada):
    """Request over REST as an administrator."""
    browser = as_user(ada)

    def asked(name: str, status: int = 200) -> dict:
        answer = browser.post(REST, {"username": name}, content_type="application/json")
        assert answer.status_code == status, answer.content
        return answer.json()

    return asked


def untouched() -> tuple:
    return (
        sorted(User.objects.values_list("username", "email", "linked", "last_login")),
        IdentityLink.objects.count(),
        Event.objects.exclude(kind="user.provider_tested").count(),
    )


def test_preview_of_a_sign_in(directory, ask, ada):
    before = untouched()
    found = ask("nora")
    assert found["claims"]["mail"] == ["nora@example.org"]
    assert found["claims"]["groups"] == ["vision"]
    assert found["claims"]["dn"] == "uid=nora,ou=people,dc=example,dc=org"
    outcome = found["outcome"]
    assert (outcome["action"], outcome["username"], outcome["groups"]) == ("create", "nora", ["vision"])
    assert outcome["teams"] == [{"team": "vision", "role": "member", "effect": "gained", "by_rule": True}]
    assert untouched() == before
    entry = Event.objects.get(kind="user.provider_tested")
    assert (entry.actor, entry.data) == (ada, {"provider": "directory", "username": "nora"})
    # The sign-in behaves the same.
    assert who(sign_in("nora")[0]) == "nora"
    assert User.objects.get(username="nora").memberships.get().role == "member"


def test_page_shows_attributes_and_the_resulting_account(directory, as_user, ada):
    browser = as_user(ada)
    assert PAGE in browser.get("/sign-in-providers/directory/").content.decode()
    empty = browser.get(PAGE).content.decode()
    assert "No password is needed" in empty and 'type="password"' not in empty
    before = untouched()
    page = html.unescape(browser.post(PAGE, {"username": " NORA "}).content.decode())
    assert "The account nora would be created" in page
    assert "nora@example.org" in page and "entryUUID" in page
    assert "Preview only. Nothing was changed." in page
    assert untouched() == before
    assert browser.get("/api/v1/me").json()["username"] == "ada"


def test_existing_account_and_refused_user(directory, ask):
    assert who(sign_in("nora")[0]) == "nora"
    assert ask("nora")["outcome"]["action"] == "sign_in"
    directory('require = [{ claim = "employeeType", equals = "staff" }]')
    refused = ask("otto")["outcome"]
    assert refused["action"] == "refuse" and "employeeType" in refused["refusal"]["detail"]


def test_no_password_attribute_is_shown(directory, ask, as_user, ada):
    """The search account may read password digests if the directory allows it."""
    page = as_user(ada).post(PAGE, {"username": "nora"}).content.decode()
    for text in (json.dumps(ask("nora")), page):
        assert "userpassword" not in text.lower()
        assert PASSWORD not in text and PASSWORD.encode().hex() not in text and ADMIN_PASSWORD not in text


def test_secret_attributes_are_removed_and_long_ones_truncated():
    secret = [
        "userPassword",
        "USERPASSWORD",
        "unicodePwd",
        "sambaNTPassword",
        "krbPrincipalKey",
        "ipaNTSecret",
    ]
    claims = {name: ["x"] for name in secret} | {
        "jpegPhoto": ["f" * 50_000],
        "uid": ["nora"],
        "dn": "uid=nora",
    }
    found = redact_claims(claims)
    assert set(found) == {"jpegPhoto", "uid", "dn"}
    assert len(found["jpegPhoto"][0]) == 1001


@pytest.mark.parametrize(
    "name",
    [
        "nobody",
        "*",
        "n*",
        "nora)(uid=*",
        "*)(objectClass=*",
        "\\6eora",
        "uid=nora,ou=people,dc=example,dc=org",
    ],
)
def test_username_is_never_interpreted_as_a_filter(directory, ask, name):
    refused = ask(name, 400)
    assert refused["reason"]["code"] == "directory_nobody"
    assert "username" in refused["errors"]


def test_ambiguous_name_matches_no_user(directory, ask):
    directory('user_filter = "(|(uid=%(user)s)(employeeType=staff))"')
    assert ask("nora", 400)["reason"]["code"] == "directory_nobody"


@pytest.mark.parametrize("name", ["", " ", "\x00", "x" * 151])
def test_invalid_username_is_400(directory, ask, as_user, ada, name):
    ask(name, 400)
    page = as_user(ada).post(PAGE, {"username": name})
    assert page.status_code == 400
    assert not Event.objects.filter(kind="user.provider_tested").exists()


def test_unreachable_directory_or_refused_search_is_reported(directory, ask, as_user, ada, monkeypatch):
    monkeypatch.setenv("DIRECTORY_SECRET", "wrong")
    assert ask("nora", 503)["reason"]["code"] == "provider_down"
    monkeypatch.setenv("DIRECTORY_SECRET", ADMIN_PASSWORD)
    directory('group_filter = "(objectClass=groupOfNames"')
    ask("nora", 503)
    directory(url="ldap://127.0.0.1:1")
    ask("nora", 503)
    page = as_user(ada).post(PAGE, {"username": "nora"})
    assert page.status_code == 503
    text = re.sub(r"\s+", " ", html.unescape(page.content.decode()))
    assert "Example Directory is not responding" in text and 'value="nora"' in text


def test_lookup_checks_no_passwords_and_signs_no_one_in(directory, as_user, ada, bob):
    as_user(ada).post(PAGE, {"username": "nora", "password": PASSWORD})
    assert not User.objects.filter(username="nora").exists()
    assert who(sign_in("bob", LOCAL)[0]) == "bob"


@pytest.mark.parametrize("who_asks", ["auditor", "operator", "nobody"])
def test_lookup_needs_an_administrator(directory, as_user, client, who_asks):
    roles = {"auditor": {"is_auditor": True}, "operator": {"is_operator": True}}
    browser = as_user(UserFactory(username="una", **roles[who_asks])) if who_asks in roles else client
    before = Event.objects.count()
    assert browser.get(PAGE).status_code == (403 if who_asks in roles else 302)
    assert browser.post(PAGE, {"username": "nora"}).status_code == (403 if who_asks in roles else 302)
    asked = browser.post(REST, {"username": "nora"}, content_type="application/json")
    assert asked.status_code == (403 if who_asks in roles else 401)
    assert Event.objects.count() == before
