"""Rules for claims, without accounts and database."""

from __future__ import annotations

from typing import Any

import pytest

from portal.common.reasons.wording import sentence_of
from portal.people.identity import rules
from portal.people.identity.config import Claims, Condition, Oidc, Provider, Rule
from portal.people.identity.rules import SignInRefused

ADA = {
    "sub": "42",
    "preferred_username": "ada",
    "email": "ada@example.org",
    "email_verified": True,
    "name": "Ada King Lovelace",
    "groups": ["gpu-vision", "gpu-audio", "staff"],
}


def provider(**more: Any) -> Provider:
    return Oidc(id="corp", name="Corp", issuer="https://x.org", client_id="berth", **more)


def refusal(claims: dict[str, Any], **more: Any) -> tuple[str, str]:
    with pytest.raises(SignInRefused) as caught:
        rules.read(provider(**more), claims)
    return caught.value.reason.code.value, sentence_of(caught.value.reason)


def test_claims_are_read():
    person = rules.read(provider(), ADA)
    assert (person.subject, person.username, person.email) == ("42", "ada", "ada@example.org")
    assert (person.first_name, person.last_name) == ("Ada", "King Lovelace")
    assert person.groups == ("gpu-audio", "gpu-vision", "staff")
    assert person.mfa is False


@pytest.mark.parametrize("claim", ["sub", "preferred_username"])
@pytest.mark.parametrize("value", [None, "", [], {}, True, "\x00"])
def test_missing_claim_is_reported(claim, value):
    code, sentence = refusal({**ADA, claim: value})
    assert code == "claim_missing"
    assert f"“{claim}”" in sentence


@pytest.mark.parametrize("verified", [None, False, "false", "no", 0, [], {"x": 1}])
def test_unverified_email_is_not_used(verified):
    person = rules.read(provider(), {**ADA, "email_verified": verified})
    assert (person.email, person.unverified_email) == ("", "ada@example.org")


def test_emails_can_be_trusted_by_setting():
    assert rules.read(provider(trust_email=True), {**ADA, "email_verified": None}).email == "ada@example.org"
    assert rules.read(provider(trust_email=True), {**ADA, "email": "no address"}).email == ""


def test_username_pattern_extracts_the_name():
    pattern = r"(.+)@example\.org"
    upn = {**ADA, "preferred_username": "Ada.L@example.org"}
    assert rules.read(provider(username_pattern=pattern), upn).username == "ada.l"
    code, sentence = refusal({**ADA, "preferred_username": "ada@evil.org"}, username_pattern=pattern)
    assert code == "username_not_matched"
    assert "ada@evil.org" in sentence


@pytest.mark.parametrize("name", ["аda", "ada\u212a", "ädä"])
def test_lookalike_username_is_refused(name):
    assert refusal({**ADA, "preferred_username": name})[0] == "username_not_valid"


def test_nested_claims_and_claim_names_with_dots():
    claims = {"realm_access": {"roles": ["a"]}, "https://x.org/groups": ["b"]}
    for name, found in (("realm_access.roles", ("a",)), ("https://x.org/groups", ("b",)), ("no.where", ())):
        person = rules.read(provider(claims=Claims(groups=name)), {**ADA, **claims})
        assert person.groups == found


def test_omitted_groups_are_refused():
    for more in ({"_claim_names": {"groups": "src1"}}, {"hasgroups": True}):
        assert refusal({**ADA, "groups": None, **more})[0] == "groups_left_out"


@pytest.mark.parametrize(
    ("condition", "good"),
    [
        (Condition(group="staff"), True),
        (Condition(group="sta"), False),
        (Condition(group_pattern="gpu-.*"), True),
        (Condition(group_pattern="gpu"), False),
        (Condition(claim="email_verified", equals=True), True),
        (Condition(claim="email_verified", equals=1), False),
        (Condition(claim="sub", equals="42"), True),
        (Condition(claim="sub", equals=42), False),
        (Condition(claim="email", pattern=r".*@example\.org"), True),
        (Condition(claim="email", pattern=r".*@example"), False),
        (Condition(claim="hd", equals="example.org"), False),
        (Condition(everyone=True), True),
    ],
)
def test_required_conditions(condition, good):
    if good:
        assert rules.read(provider(require=(condition,)), ADA).username == "ada"
    else:
        code, sentence = refusal(ADA, require=(condition,))
        assert code == "not_allowed_by_rule"
        assert (condition.claim or "groups") in sentence


def test_all_conditions_must_hold():
    both = (Condition(group="staff"), Condition(group="others"))
    assert refusal(ADA, require=both)[0] == "not_allowed_by_rule"


def test_second_factor_at_the_provider_counts_if_configured():
    claims = {**ADA, "amr": ["pwd", "otp"]}
    assert rules.read(provider(), claims).mfa is False
    assert rules.read(provider(mfa=(Condition(claim="amr", equals="otp"),)), claims).mfa is True
    assert rules.read(provider(mfa=(Condition(claim="amr", equals="hwk"),)), claims).mfa is False


def test_rules_grant_memberships_and_roles():
    found = rules.grants(
        provider(
            rules=(
                Rule(group_pattern="gpu-(?P<team>.+)", team=r"\g<team>"),
                Rule(group="gpu-vision", team="vision", role="owner"),
                Rule(group="staff", site_role="approver"),
                Rule(group="nobody", site_role="administrator"),
                Rule(everyone=True, team="default"),
            )
        ),
        ADA,
    )
    assert found.memberships == {"audio": "member", "default": "member", "vision": "owner"}
    assert found.roles == ("approver",)
    assert found.may_create == frozenset()


def test_higher_role_wins_in_any_order():
    owner, member = Rule(group="staff", team="t", role="owner"), Rule(everyone=True, team="t")
    for order in ((owner, member), (member, owner)):
        assert rules.grants(provider(rules=order), ADA).memberships == {"t": "owner"}


def test_long_values_are_not_matched_by_patterns():
    claims = {**ADA, "groups": ["a" * 5000 + "!"]}
    assert rules.grants(provider(rules=(Rule(group_pattern=".*", team="t"),)), claims).memberships == {}
