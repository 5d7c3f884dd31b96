"""`berth service-account …`."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
from django.utils import timezone

from portal.people.accounts.models import ApiToken, User
from portal.people.service_accounts.models import TrustRule
from tests.factories import MembershipFactory, TeamFactory, UserFactory, make_token

SA = "service-account"


@pytest.fixture
def as_alice(as_bob, alice, monkeypatch):
    """`berth …` signed in as the owner of vision; bob is a member."""
    monkeypatch.setenv("BERTH_TOKEN", make_token(alice)[1])
    return as_bob


@pytest.fixture
def ci(as_alice) -> User:
    made = as_alice(SA, "create", "ci", "--description", "Nightly training")
    assert (made.code, made.out) == (0, "svc-ci\n")
    return User.objects.get(username="svc-ci")


def test_account_is_created_deactivated_and_reactivated(as_alice, ci):
    assert ci.owning_team.slug == "vision"
    listed = as_alice(SA, "ls").out.splitlines()
    assert listed[1].split() == ["svc-ci", "vision", "active", "0", "-", "Nightly", "training"]
    assert as_alice(SA, "deactivate", "ci").code == 2, "nobody was there to be asked"
    assert as_alice(SA, "deactivate", "svc-ci", "-y", "--note", "moved").out == "svc-ci is deactivated.\n"
    assert as_alice(SA, "issue", "ci", "x").code == 1
    assert as_alice(SA, "reactivate", "ci").out == "svc-ci is active.\n"
    assert as_alice(SA, "ls", "--json").json[0]["state"] == "active"


def test_token_is_issued_rotated_and_revoked(as_alice, ci, monkeypatch):
    issued = as_alice(SA, "issue", "ci", "nightly", "--days", "30", "--scope", "workspaces:read")
    secret = issued.out.strip()
    assert issued.code == 0 and secret.startswith("berth_") and issued.out.count("\n") == 1
    token = ApiToken.objects.get(owner=ci)
    assert (token.name, token.scopes) == ("nightly", ["workspaces:read"])
    assert abs(token.expires_at - timezone.now() - timedelta(days=30)) < timedelta(minutes=10)

    table = as_alice(SA, "tokens", "ci")
    assert table.out.splitlines()[1].split()[:3] == [token.prefix, "nightly", "workspaces:read"]
    assert secret not in table.out

    rotated = as_alice(SA, "rotate", "ci", token.prefix, "--overlap-hours", "1")
    assert rotated.code == 0 and rotated.out.strip() not in ("", secret)
    token.refresh_from_db()
    assert token.expires_at <= timezone.now() + timedelta(hours=1)

    twice = as_alice(SA, "revoke", "ci", "nightly", "-y")
    assert twice.code == 2 and "2 tokens" in twice.err
    assert as_alice(SA, "revoke", "ci", token.prefix).code == 2
    assert as_alice(SA, "revoke", "ci", str(token.pk), "-y").out == f"Token {token.prefix}… revoked.\n"
    token.refresh_from_db()
    assert token.revoked_at is not None
    assert as_alice(SA, "revoke", "ci", token.prefix, "-y").code == 5

    # The token works within its scopes.
    monkeypatch.setenv("BERTH_TOKEN", rotated.out.strip())
    assert as_alice("ls").code == 0
    assert as_alice("up").code == 1


def test_json_of_every_command(as_alice, ci):
    made = as_alice(SA, "create", "cd", "--json").json
    assert (made["username"], made["team"]) == ("svc-cd", "vision")
    issued = as_alice(SA, "issue", "cd", "deploy", "--json").json
    assert issued["secret"].startswith("berth_") and issued["owner"] == "svc-cd"
    [listed] = as_alice(SA, "tokens", "cd", "--json").json
    assert "secret" not in listed
    rotated = as_alice(SA, "rotate", "cd", issued["id"], "--json").json
    assert rotated["replaces"] == issued["id"]
    revoked = as_alice(SA, "revoke", "cd", rotated["id"], "-y", "--json").json
    assert revoked == {"id": rotated["id"], "prefix": rotated["prefix"], "revoked": True}
    assert as_alice(SA, "deactivate", "cd", "-y", "--json").json["state"] == "deactivated"
    assert as_alice(SA, "tokens", "svc-nobody", "--json").code == 5


ISSUER = "https://token.actions.githubusercontent.com"


def test_trust_rule_is_created_and_deleted(as_alice, ci, settings):
    settings.BERTH_TOKEN_EXCHANGE_ISSUERS = [ISSUER]
    trust = (SA, "trust", "ci", "deploy", "--issuer", ISSUER, "--scope", "workspaces:read", "--minutes", "30")
    conditions = ("--condition", "repository_id = 123456", "--condition", "ref~refs/heads/*=x")
    made = as_alice(*trust, *conditions)
    rule = TrustRule.objects.get()
    assert (made.code, made.out) == (0, f"{rule.pk}\n"), made.err
    assert (rule.name, rule.lifetime_s, rule.scopes) == ("deploy", 1800, ["workspaces:read"])
    assert rule.audience == os.environ["BERTH_URL"]
    assert rule.conditions == [
        {"claim": "repository_id", "match": "exact", "value": "123456"},
        {"claim": "ref", "match": "glob", "value": "refs/heads/*=x"},
    ]
    (listed,) = as_alice(SA, "trust-rules", "ci").out.splitlines()[1:]
    assert listed.startswith(str(rule.pk)[:8]) and "ref ~ refs/heads/*=x" in listed
    assert as_alice(SA, "trust-rules", "ci", "--json").json[0]["id"] == str(rule.pk)

    again = as_alice(*trust, *conditions, "--json").json
    twice = as_alice(SA, "untrust", "ci", "deploy", "-y")
    assert twice.code == 2 and "2 trust rules" in twice.err
    assert as_alice(SA, "untrust", "ci", again["id"], "-y", "--json").json["deleted"] is True
    assert as_alice(SA, "untrust", "ci", "deploy").code == 2, "nobody was there to be asked"
    assert as_alice(SA, "untrust", "ci", "deploy", "-y").out == "Trust rule “deploy” deleted.\n"
    assert as_alice(SA, "untrust", "ci", "deploy", "-y").code == 5
    assert not TrustRule.objects.exists()


@pytest.mark.parametrize("text", ["", "ref", "= main", "ref =", "~"])
def test_condition_needs_a_claim_and_a_value(as_alice, ci, text):
    ran = as_alice(SA, "trust", "ci", "x", "--issuer", ISSUER, "--scope", "gpus:read", "--condition", text)
    assert ran.code == 2 and "is not a condition" in ran.err


def test_token_of_a_user_cannot_be_revoked_through_an_account(as_alice, ci, bob, alice):
    for person in (alice, bob):
        theirs, _ = make_token(person, name="mine")
        for named in (str(theirs.pk), theirs.prefix, "mine"):
            assert as_alice(SA, "revoke", "ci", named, "-y").code == 5
            assert as_alice(SA, "rotate", "ci", named).code == 5
        theirs.refresh_from_db()
        assert theirs.revoked_at is None


def test_members_cannot_change_accounts(as_alice, ci, bob, monkeypatch):
    token, _ = make_token(ci, name="nightly")
    monkeypatch.setenv("BERTH_TOKEN", make_token(bob)[1])
    assert as_alice(SA, "ls").out.splitlines()[1].startswith("svc-ci")
    for refused in (
        as_alice(SA, "create", "mine"),
        as_alice(SA, "issue", "ci", "mine"),
        as_alice(SA, "tokens", "ci"),
        as_alice(SA, "rotate", "ci", token.prefix),
        as_alice(SA, "revoke", "ci", token.prefix, "-y"),
        as_alice(SA, "deactivate", "ci", "-y"),
    ):
        assert refused.code == 1 and refused.out == ""
    assert not User.objects.filter(username="svc-mine").exists()
    assert ApiToken.objects.filter(owner=ci, revoked_at=None).count() == 1


def test_team_is_required_with_several_teams(as_alice, ci, alice, monkeypatch):
    MembershipFactory(user=alice, team=TeamFactory(slug="audio"), role="owner")
    unclear = as_alice(SA, "create", "x")
    assert unclear.code == 2 and "--team" in unclear.err
    assert as_alice(SA, "create", "x", "--team", "audio").out == "svc-x\n"
    assert [row["team"] for row in as_alice(SA, "ls", "--json").json] == ["audio", "vision"]
    assert as_alice(SA, "ls", "--team", "nowhere").code == 5
    monkeypatch.setenv("BERTH_TOKEN", make_token(UserFactory(username="new"))[1])
    assert as_alice(SA, "tokens", "ci").code == 2


@pytest.mark.parametrize(
    "given", [("--days", "0"), ("--days", "-1"), ("--days", "x"), ("--scope",), ("--overlap-hours", "2")]
)
def test_invalid_arguments_exit_with_2(as_alice, ci, given):
    assert as_alice(SA, "issue", "ci", "x", *given).code == 2


def test_refusal_by_the_portal_is_printed(as_alice, ci):
    unknown = as_alice(SA, "issue", "ci", "x", "--scope", "root")
    assert unknown.code == 1 and "root" in unknown.err
    make_token(ci, name="nightly")
    assert as_alice(SA, "rotate", "ci", "nightly", "--overlap-hours", "-1").code == 1
    assert as_alice(SA, "create", "ci").code == 1
    assert ApiToken.objects.filter(owner=ci).count() == 1
