"""Races between token issue and deactivation, deletion or revocation: no valid token is left."""

from __future__ import annotations

from collections import Counter

import pytest

from portal.common.actors import SYSTEM
from portal.common.errors import NotFound, StateConflict
from portal.common.events.models import Event
from portal.people.accounts import deactivation, token_lookup, tokens, users
from portal.people.accounts.models import ApiToken
from portal.people.service_accounts import rules
from portal.people.service_accounts.codes import ExchangeCode
from portal.people.service_accounts.exchange import services
from portal.people.service_accounts.exchange.assertions import ExchangeRefused
from portal.people.service_accounts.models import Exchange, TrustRule
from tests.races import Meanwhile, at_once

pytestmark = pytest.mark.django_db(transaction=True)


def exchanging(token: str):
    return lambda: services.exchange(subject_token=token)


def code(outcome) -> ExchangeCode:
    assert isinstance(outcome, ExchangeRefused), outcome
    return outcome.reason.code


def assert_no_valid_token(account, *made) -> None:
    """Assert that no token of the account is valid, also after its reactivation."""
    assert not ApiToken.objects.filter(owner=account, revoked_at=None).exists()
    secrets = [each.secret for each in made if isinstance(each, services.IssuedJobToken | tokens.NewToken)]
    assert [token_lookup.find_valid_token(secret) for secret in secrets] == [None] * len(secrets)
    if account.deleted_at is None:
        deactivation.reactivate(actor=SYSTEM, user=account)
        assert [token_lookup.find_valid_token(secret) for secret in secrets] == [None] * len(secrets)


def test_token_sent_eight_times_at_once_is_accepted_once(issuer, rule, ci):
    token = issuer.sign()
    outcomes = at_once([exchanging(token)] * 8)
    assert Counter(type(outcome) for outcome in outcomes) == {
        services.IssuedJobToken: 1,
        ExchangeRefused: 7,
    }, outcomes
    assert {code(outcome) for outcome in outcomes if isinstance(outcome, ExchangeRefused)} == {
        ExchangeCode.REPLAYED
    }
    assert ApiToken.objects.filter(owner=ci).count() == Exchange.objects.count() == 1
    assert Event.objects.filter(kind="token.exchanged").count() == 1
    assert Event.objects.filter(kind="token.exchange_refused").count() == 7


def test_replay_during_the_first_exchange_is_refused(issuer, rule, ci, monkeypatch):
    token = issuer.sign()
    second = Meanwhile(monkeypatch, tokens, "mint", exchanging(token))
    first = services.exchange(subject_token=token)
    assert code(second.outcome()) is ExchangeCode.REPLAYED
    assert ApiToken.objects.get(owner=ci) == first.token


@pytest.mark.parametrize("end", ["deactivate", "delete"])
def test_account_ended_during_an_exchange_leaves_no_valid_token(issuer, rule, ci, alice, monkeypatch, end):
    ending = deactivation.deactivate if end == "deactivate" else users.delete
    meanwhile = Meanwhile(monkeypatch, tokens, "mint", lambda: ending(actor=alice, user=ci))
    made = services.exchange(subject_token=issuer.sign())
    assert not isinstance(meanwhile.outcome(), Exception)
    ci.refresh_from_db()
    assert not ci.is_active
    assert_no_valid_token(ci, made)


def test_exchange_during_account_deactivation_leaves_no_valid_token(issuer, rule, ci, alice, monkeypatch):
    meanwhile = Meanwhile(monkeypatch, deactivation, "_end_delegations", exchanging(issuer.sign()))
    deactivation.deactivate(actor=alice, user=ci)
    assert code(meanwhile.outcome()) is ExchangeCode.ACCOUNT_INACTIVE
    assert_no_valid_token(ci)


def test_exchanges_and_account_deactivation_at_once_leave_no_valid_token(issuer, rule, ci, alice):
    outcomes = at_once(
        [
            lambda: deactivation.deactivate(actor=alice, user=ci),
            *(exchanging(issuer.sign()) for _ in range(6)),
        ]
    )
    assert not [
        outcome
        for outcome in outcomes
        if isinstance(outcome, Exception) and not isinstance(outcome, ExchangeRefused)
    ]
    assert_no_valid_token(ci, *outcomes)


def test_rule_deleted_during_an_exchange_leaves_no_valid_token(issuer, rule, ci, alice, monkeypatch):
    meanwhile = Meanwhile(monkeypatch, tokens, "mint", lambda: rules.delete(actor=alice, rule=rule))
    try:
        services.exchange(subject_token=issuer.sign())
    except ExchangeRefused as refused:
        assert refused.reason.code is ExchangeCode.NO_RULE_MATCHES
    assert not isinstance(meanwhile.outcome(), Exception)
    assert not TrustRule.objects.exists()
    with pytest.raises(ExchangeRefused):
        services.exchange(subject_token=issuer.sign())


def test_account_deactivated_while_a_token_is_issued_leaves_no_valid_token(ci, alice, monkeypatch):
    meanwhile = Meanwhile(monkeypatch, tokens, "mint", lambda: deactivation.deactivate(actor=alice, user=ci))
    made = tokens.create_token(actor=alice, user=ci, name="nightly", scopes=["workspaces:read"])
    assert not isinstance(meanwhile.outcome(), Exception)
    assert_no_valid_token(ci, made)


def test_token_issued_during_account_deactivation_is_not_valid(ci, alice, monkeypatch):
    meanwhile = Meanwhile(
        monkeypatch,
        deactivation,
        "_end_delegations",
        lambda: tokens.create_token(actor=alice, user=ci, name="nightly", scopes=["workspaces:read"]),
    )
    deactivation.deactivate(actor=alice, user=ci)
    assert isinstance(meanwhile.outcome(), StateConflict)
    assert_no_valid_token(ci)


def test_account_deactivated_during_a_rotation_leaves_no_valid_token(ci, alice, monkeypatch):
    old = tokens.create_token(actor=alice, user=ci, name="nightly", scopes=["workspaces:read"])
    meanwhile = Meanwhile(monkeypatch, tokens, "mint", lambda: deactivation.deactivate(actor=alice, user=ci))
    made = tokens.rotate_token(actor=alice, token_id=old.token.pk)
    assert not isinstance(meanwhile.outcome(), Exception)
    assert_no_valid_token(ci, old, made)


def test_token_rotated_during_account_deactivation_is_not_valid(ci, alice, monkeypatch):
    old = tokens.create_token(actor=alice, user=ci, name="nightly", scopes=["workspaces:read"])
    meanwhile = Meanwhile(
        monkeypatch,
        deactivation,
        "_end_delegations",
        lambda: tokens.rotate_token(actor=alice, token_id=old.token.pk),
    )
    deactivation.deactivate(actor=alice, user=ci)
    assert isinstance(meanwhile.outcome(), NotFound | StateConflict), meanwhile.outcome()
    assert_no_valid_token(ci, old)


def test_token_revoked_during_rotation_has_no_successor(ci, alice, monkeypatch):
    """Revoked between lookup and lock, it is not found for the rotation."""
    old = tokens.create_token(actor=alice, user=ci, name="nightly", scopes=["workspaces:read"])
    meanwhile = Meanwhile(
        monkeypatch,
        tokens,
        "_lock_user",
        lambda: tokens.revoke_token(actor=alice, token_id=old.token.pk),
    )
    try:
        made = [tokens.rotate_token(actor=alice, token_id=old.token.pk)]
    except NotFound:
        made = []
    assert meanwhile.outcome() is None
    works = [each for each in made if token_lookup.find_valid_token(each.secret)]
    assert token_lookup.find_valid_token(old.secret) is None
    # SQLite serialises transactions: the token was rotated first, and the old one revoked then.
    rotated = ApiToken.objects.filter(replaces=old.token)
    assert len(works) == rotated.count()
    old.token.refresh_from_db()
    for each in rotated:
        assert each.created_at <= old.token.revoked_at


def test_one_token_rotated_eight_times_at_once_has_one_successor(ci, alice):
    old = tokens.create_token(actor=alice, user=ci, name="nightly", scopes=["workspaces:read"])
    outcomes = at_once([lambda: tokens.rotate_token(actor=alice, token_id=old.token.pk)] * 8)
    assert Counter(type(outcome) for outcome in outcomes) == {tokens.NewToken: 1, StateConflict: 7}, outcomes
    assert ApiToken.objects.filter(replaces=old.token).count() == 1
