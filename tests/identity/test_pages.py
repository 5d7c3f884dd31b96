"""Sign-in providers on pages and over REST."""

from __future__ import annotations

import json

import pytest

from portal.common.events.models import Event
from portal.people.accounts.models import User
from portal.people.identity.models import IdentityLink, LinkOrigin
from tests import sites
from tests.factories import UserFactory
from tests.fixtures import PROVIDER

pytestmark = pytest.mark.django_db
WORLD = sites.people
CLAIMS = {"sub": "42", "preferred_username": "nora", "groups": ["vision"], "email": "n@example.org"}
RULES = """
client_secret = "env:CORP_SECRET"

[[provider.rules]]
group = "vision"
team = "vision"

[[provider.rules]]
group = "ghosts"
team = "ghosts"
"""


@pytest.fixture(autouse=True)
def _provider(configure, monkeypatch, team) -> None:
    monkeypatch.setenv("CORP_SECRET", "hush-hush")
    configure(PROVIDER + RULES)


@pytest.fixture
def browser(as_user, ada):
    return as_user(ada)


def test_list_shows_each_state(browser, bob):
    IdentityLink.objects.create(user=bob, provider="corp", subject="b", how=LinkOrigin.CREATED)
    page = browser.get("/sign-in-providers/").content.decode()
    assert "Example Corp" in page
    assert "Teams missing" in page
    assert "http://127.0.0.1:1" in page


def test_no_page_or_response_contains_a_secret(browser):
    for url in ("/sign-in-providers/", "/sign-in-providers/corp/", "/api/v1/sign-in-providers"):
        text = browser.get(url).content.decode()
        assert "hush-hush" not in text
    assert "env:CORP_SECRET" in browser.get("/sign-in-providers/corp/").content.decode()


def test_empty_list_explains_the_setting(browser, settings):
    settings.BERTH_SIGN_IN_PROVIDERS = ""
    page = browser.get("/sign-in-providers/").content.decode()
    assert "BERTH_SIGN_IN_PROVIDERS" in page


def test_preview_shows_the_result_of_claims_and_changes_nothing(browser):
    before = (User.objects.count(), Event.objects.count())
    page = browser.post("/sign-in-providers/corp/", {"claims": json.dumps(CLAIMS)}).content.decode()
    assert "The account nora would be created" in page
    assert "Team vision" in page
    assert "(not verified, not used)" in page
    assert (User.objects.count(), Event.objects.count()) == before


@pytest.mark.parametrize("text", ["", "[]", "nonsense", '"x"', "[" * 40_000])
def test_invalid_claims_are_a_field_error(browser, text):
    answer = browser.post("/sign-in-providers/corp/", {"claims": text})
    assert answer.status_code == 400
    assert 'id="id_claims_error"' in answer.content.decode()


def test_claims_are_escaped(browser):
    claims = {**CLAIMS, "preferred_username": "<script>alert(1)</script>"}
    page = browser.post("/sign-in-providers/corp/", {"claims": json.dumps(claims)}).content.decode()
    assert "<script>alert" not in page
    assert "is not a valid username" in page


def test_rest_preview_matches_the_page(api, ada):
    answer = api(ada).post("sign-in-providers/corp/preview", {"claims": CLAIMS})
    body = answer.json()
    assert (body["action"], body["username"], body["refusal"]) == ("create", "nora", None)
    assert body["teams"] == [{"team": "vision", "role": "member", "effect": "gained", "by_rule": True}]
    refused = api(ada).post("sign-in-providers/corp/preview", {"claims": {"sub": "1"}}).json()
    assert refused["refusal"]["code"] == "claim_missing"
    assert refused["refusal"]["params"]["claim"] == "preferred_username"
    assert "preferred_username" in refused["refusal"]["detail"]


def test_links_are_created_and_removed_on_the_page(browser, bob):
    url = "/sign-in-providers/corp/"
    assert browser.post(f"{url}link/", {"username": "bob", "subject": "42"}).status_code == 302
    assert "42" in browser.get(url).content.decode()
    again = browser.post(f"{url}link/", {"username": "bob", "subject": "43"})
    assert again.status_code == 400
    assert "already linked" in again.content.decode()
    assert (
        "nobody-there"
        in browser.post(f"{url}link/", {"username": "nobody-there", "subject": "1"}).content.decode()
    )
    assert "Unlink account" in browser.get(f"{url}unlink/bob/").content.decode()
    browser.post(f"{url}unlink/bob/")
    assert not IdentityLink.objects.exists()


def test_links_are_created_and_removed_over_rest(api, ada, bob):
    program = api(ada)
    made = program.post("sign-in-providers/corp/links", {"username": "bob", "expected": "robert"})
    assert (made.status_code, made.json()["linked_by"]) == (201, "administrator")
    assert program.post("sign-in-providers/corp/links", {"username": "bob"}).status_code == 400
    assert program.delete("sign-in-providers/corp/links/bob").status_code == 204
    assert program.delete("sign-in-providers/corp/links/bob").status_code == 404
    assert program.get("sign-in-providers/nowhere").status_code == 404


def test_list_of_500_links_is_paged_with_few_queries(browser, django_assert_max_num_queries):
    people = User.objects.bulk_create(UserFactory.build_batch(500, password="!"))
    IdentityLink.objects.bulk_create(
        IdentityLink(user=user, provider="corp", subject=user.username, how=LinkOrigin.CREATED)
        for user in people
    )
    with django_assert_max_num_queries(16):
        page = browser.get("/sign-in-providers/corp/?page=2").content.decode()
    assert page.count("/unlink/") == 50
