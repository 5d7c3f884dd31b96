"""Trust rules: permissions, valid conditions, and previews."""

from __future__ import annotations

import json
from typing import Any

import jwt
import pytest

from portal.common.errors import InvalidInput, NotAllowed, StateConflict
from portal.common.events.models import Event
from portal.people.accounts import service_accounts
from portal.people.service_accounts import rules
from portal.people.service_accounts.exchange import conditions
from portal.people.service_accounts.exchange.conditions import Condition, Problem
from portal.people.service_accounts.models import TrustRule
from tests.factories import make_token
from tests.service_accounts.conftest import CONDITIONS

pytestmark = pytest.mark.django_db
PATH = "teams/vision/service-accounts/svc-ci/trust-rules"
PAGE = "/teams/vision/service-accounts/svc-ci/trust-rules/"


def rule_body(there: Any, **changed: Any) -> dict[str, Any]:
    return {
        "name": "deploy",
        "issuer": there.url,
        "audience": "berth",
        "conditions": [{"claim": "repository_id", "match": "exact", "value": "1"}],
        "scopes": ["workspaces:read"],
        **changed,
    }


# --- conditions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("refs/heads/*", ["refs/heads/main"], ["refs/heads/a/b", "refs/tags/x", "xrefs/heads/main"]),
        ("refs/**", ["refs/heads/a/b", "refs/"], ["ref", "refs"]),
        ("v?.*", ["v1.2", "v1."], ["v10.2", "v/.1", "xv1.2"]),
        ("a.b+c(d)[e]", ["a.b+c(d)[e]"], ["axb+c(d)[e]", "a.bbc(d)[e]"]),
        ("*", ["", "abc"], ["a/b"]),
        ("release-*-*", ["release-1-2"], ["release-1"]),
    ],
)
def test_globs_match_within_their_rules(glob, yes, no):
    held = lambda text: conditions.check([Condition("ref", "glob", glob)], {"ref": text})[0].holds  # noqa: E731
    assert all(held(text) for text in yes)
    assert not any(held(text) for text in no)


@pytest.mark.parametrize(
    ("value", "text"),
    [("main", "main"), (True, "true"), (False, "false"), (12, "12"), (None, None), ([1], None)],
)
def test_claims_are_compared_as_text(value, text):
    outcome = conditions.check([Condition("x", "exact", "12")], {"x": value})[0]
    assert outcome.seen == text
    assert outcome.holds is (text == "12")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([], Problem.NO_IDENTITY),
        ([Condition("ref", "exact", "refs/heads/main")], Problem.NO_IDENTITY),
        ([Condition("repository", "glob", "*/app")], Problem.NO_IDENTITY),
        ([Condition("repository", "glob", "octo*/app")], Problem.NO_IDENTITY),
        ([Condition("repository", "glob", "**")], Problem.NO_IDENTITY),
        ([Condition("sub", "glob", "repo:octo?x/**")], Problem.NO_IDENTITY),
        ([Condition("repository", "glob", "octo/*")], None),
        ([Condition("sub", "glob", "repo:octo/app:*")], None),
        ([Condition("project_id", "exact", "7")], None),
        ([Condition("aud", "exact", "x")], Problem.CHECKED_ANYWAY),
        ([Condition("a b", "exact", "x")], Problem.CLAIM),
        ([Condition("sub", "regex", "x")], Problem.MATCH),
        ([Condition("sub", "exact", "")], Problem.VALUE),
        ([Condition("sub", "exact", "a\nb")], Problem.VALUE),
        ([Condition("sub", "exact", "x" * 256)], Problem.VALUE),
        ([Condition("sub", "exact", "x")] * 13, Problem.TOO_MANY),
    ],
)
def test_invalid_conditions_are_refused(given, problem):
    found = conditions.problem_of(given)
    assert (found[0] if found else None) is problem


def test_typed_conditions_are_parsed():
    text = " repository = octo/app \n\nref ~ refs/heads/*\nnonsense\nx ="
    found, wrong = conditions.parse(text)
    assert found == [Condition("repository", "exact", "octo/app"), Condition("ref", "glob", "refs/heads/*")]
    assert wrong == [4, 5]


# --- permissions and values -----------------------------------------------------------------------


def test_owner_creates_and_deletes_a_rule_over_rest(api, alice, ci, issuer):
    made = api(alice).post(PATH, rule_body(issuer))
    assert made.status_code == 201, made.content
    row = api(alice).get(made["Location"]).json()
    assert row["conditions"] == [{"claim": "repository_id", "match": "exact", "value": "1"}]
    assert (row["lifetime_s"], row["created_by"]) == (600, "alice")
    assert api(alice).get(PATH).json()["results"] == [row]
    assert api(alice).delete(f"{PATH}/{row['id']}").status_code == 204
    assert set(Event.objects.values_list("kind", flat=True)) >= {"trust_rule.created", "trust_rule.deleted"}


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"issuer": "https://evil.example.org"}, "issuer"),
        ({"audience": ""}, "audience"),
        ({"name": " "}, "name"),
        ({"conditions": []}, "conditions"),
        ({"conditions": [{"claim": "ref", "value": "x"}]}, "conditions"),
        ({"conditions": [{"claim": "sub", "match": "regex", "value": "x"}]}, "conditions.0.match"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["nonsense"]}, "scopes"),
        ({"lifetime_s": 59}, "lifetime_s"),
        ({"lifetime_s": 3601}, "lifetime_s"),
    ],
)
def test_invalid_rule_field_is_named(api, alice, ci, issuer, changed, field):
    refused = api(alice).post(PATH, rule_body(issuer, **changed))
    assert refused.status_code == 400
    assert list(refused.json()["errors"]) == [field]
    assert not TrustRule.objects.exists()


def test_token_cannot_create_a_rule_with_wider_scopes(ci, alice, issuer):
    narrow = make_token(alice, "tokens:write")[0]
    given = {
        "actor": alice,
        "account": ci,
        "name": "x",
        "issuer": issuer.url,
        "audience": "berth",
        "conditions": CONDITIONS,
        "lifetime_s": 60,
        "made_with": narrow,
    }
    with pytest.raises(NotAllowed):
        rules.create(**given, scopes=["all"])
    assert rules.create(**given, scopes=["tokens:write"]).scopes == ["tokens:write"]


def test_members_and_other_owners_cannot_create_rules(api, ci, issuer, bob, charlie, team, alice):
    other = service_accounts.create(actor=alice, team=team, name="docs")
    for actor, status in ((bob, 403), (charlie, 404)):
        assert api(actor).post(PATH, rule_body(issuer)).status_code == status
        assert api(actor).get(PATH).status_code == status
    rule = rules.create(
        actor=alice,
        account=other,
        name="x",
        issuer=issuer.url,
        audience="berth",
        conditions=CONDITIONS,
        scopes=["teams:read"],
        lifetime_s=60,
    )
    # The rule of another account is not found under this one.
    assert api(alice).delete(f"{PATH}/{rule.pk}").status_code == 404
    assert TrustRule.objects.filter(pk=rule.pk).exists()


def test_rules_per_account_are_limited(rule, alice, issuer, monkeypatch):
    monkeypatch.setattr(rules, "MAX_RULES", 1)
    with pytest.raises(StateConflict):
        rules.create(
            actor=alice,
            account=rule.account,
            name="x",
            issuer=issuer.url,
            audience="berth",
            conditions=CONDITIONS,
            scopes=["teams:read"],
            lifetime_s=60,
        )


def test_rule_for_a_disallowed_issuer_is_refused(ci, alice, issuer, settings):
    settings.BERTH_TOKEN_EXCHANGE_ISSUERS = []
    with pytest.raises(InvalidInput):
        rules.create(
            actor=alice,
            account=ci,
            name="x",
            issuer=issuer.url,
            audience="berth",
            conditions=CONDITIONS,
            scopes=["teams:read"],
            lifetime_s=60,
        )


# --- previews -------------------------------------------------------------------------------------


def test_preview_names_the_failing_condition(api, alice, rule, issuer):
    seen = api(alice).post(f"{PATH}/check", {"claims": issuer.claims(ref="refs/tags/v1", environment=None)})
    assert seen.status_code == 200
    assert [(row["matches"], row["issuer"], row["audience"]) for row in seen.json()] == [(False, True, True)]
    failed = {row["claim"]: row["seen"] for row in seen.json()[0]["conditions"] if not row["holds"]}
    assert failed == {"ref": "refs/tags/v1", "environment": None}
    assert api(alice).post(f"{PATH}/check", {"claims": issuer.claims()}).json()[0]["matches"] is True
    assert not Event.objects.filter(kind__startswith="token.exchange").exists()


def test_page_creates_previews_and_deletes_rules(as_user, alice, ci, issuer):
    client = as_user(alice)
    assert "No trust rules yet" in client.get(PAGE).content.decode()
    assert "repository = OWNER/NAME" in client.get(f"{PAGE}?preset=github").content.decode()
    form = {
        "name": "deploy",
        "issuer": issuer.url,
        "audience": "https://berth.example.org",
        "conditions": "repository = octo/app\nref ~ refs/heads/*",
        "lifetime": "600",
        "max_lifetime": "21600",
        "scopes": ["workspaces:read"],
    }
    wrong = client.post(PAGE, {**form, "conditions": "ref = x\nwhat"})
    assert wrong.status_code == 400 and "Line 2 is not a condition" in wrong.content.decode()
    open_ = client.post(PAGE, {**form, "conditions": "ref = x"})
    assert open_.status_code == 400 and "does not identify a pipeline" in open_.content.decode()
    assert client.post(PAGE, form).status_code == 302
    page = client.post(
        f"{PAGE}check/", {"claims": json.dumps(issuer.claims(ref="refs/tags/v1"))}
    ).content.decode()
    assert "rejected" in page and "value: refs/tags/v1" in page
    page = client.post(f"{PAGE}check/", {"claims": issuer.sign()}).content.decode()
    assert "accepted" in page
    for nonsense in ("x", "[1]", "{", jwt.encode({}, "x" * 32)[:20], '{"a": ' * 9000):
        assert client.post(f"{PAGE}check/", {"claims": nonsense}).status_code == 400, nonsense[:20]
    rule = TrustRule.objects.get()
    assert client.post(f"{PAGE}{rule.pk}/delete/").status_code == 302
    assert not TrustRule.objects.exists()


def test_page_without_issuers_names_the_setting(as_user, alice, ci, settings):
    settings.BERTH_TOKEN_EXCHANGE_ISSUERS = []
    assert "BERTH_TOKEN_EXCHANGE_ISSUERS" in as_user(alice).get(PAGE).content.decode()
