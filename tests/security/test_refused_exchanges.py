"""Attack: invalid tokens for an exchange, to block pipelines behind the same address."""

from __future__ import annotations

from typing import Any

import pytest

from portal.common.events.models import Event
from portal.people.service_accounts.exchange import issuers, limits
from tests import sites
from tests.service_accounts.conftest import ci as ci
from tests.service_accounts.conftest import issuer as issuer
from tests.service_accounts.conftest import one_issuer as one_issuer
from tests.service_accounts.conftest import rule as rule
from tests.service_accounts.test_exchange import bring

pytestmark = pytest.mark.django_db
WORLD = sites.people
LIMIT = 3


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_REFUSALS", LIMIT)


def statuses(*tokens: str) -> list[int]:
    return [bring(token).status_code for token in tokens]


def recorded() -> int:
    return Event.objects.filter(kind="token.exchange_refused").count()


def test_invalid_tokens_do_not_block_valid_ones(issuer: Any, rule: Any) -> None:
    assert statuses(*["x"] * 5) == [400, 400, 400, 429, 429]
    assert recorded() == LIMIT
    assert bring(issuer.sign()).status_code == 200


def test_refusal_above_the_limit_has_a_reason_and_retry_time(issuer: Any, rule: Any) -> None:
    statuses(*["x"] * LIMIT)
    answer = bring("x")
    assert answer.status_code == 429
    assert answer.json() == {
        "error": "temporarily_unavailable",
        "error_description": "The token is not a JWT. Too many rejected exchanges. "
        f"Try again in {answer['Retry-After']} s.",
    }
    assert 0 < int(answer["Retry-After"]) <= limits.WINDOW_S


def test_refusals_are_counted_by_identity(issuer: Any, rule: Any) -> None:
    wrong = [issuer.sign(issuer.claims(environment="staging")) for _ in range(5)]
    assert statuses(*wrong) == [400, 400, 400, 429, 429]
    other = issuer.sign(issuer.claims(sub="repo:octo/docs:ref:refs/heads/main", repository="octo/docs"))
    assert statuses(other, "x") == [400, 400]
    assert recorded() == LIMIT + 2
    # A job of the same identity that matches the rule.
    assert bring(issuer.sign()).status_code == 200


def test_refusals_are_counted_by_rule(issuer: Any, rule: Any) -> None:
    spent = issuer.sign()
    assert statuses(*[spent] * 5) == [200, 400, 400, 400, 429]
    assert statuses(issuer.sign(issuer.claims(environment="staging"))) == [400]


def test_forged_token_does_not_count_against_the_named_user(issuer: Any, rule: Any) -> None:
    forged = [issuer.sign(kid=f"made-up-{number}") for number in range(5)]
    assert statuses(*forged) == [400, 400, 400, 429, 429]
    assert statuses(issuer.sign(issuer.claims(environment="staging"))) == [400]


def test_outage_of_an_issuer_is_not_the_fault_of_its_jobs(issuer: Any, rule: Any) -> None:
    """Jobs can try again as soon as the portal asks the issuer again, and take no share of other refusals."""
    issuers.forget()
    issuer.pages["/keys"] = (503, {}, b"away")
    answers = [bring(issuer.sign()) for _ in range(5)]
    assert {answer.status_code for answer in answers} == {503}
    assert {answer["Retry-After"] for answer in answers} == {"30"}
    assert answers[-1].json()["error_description"] == f"The keys of {issuer.url} cannot be fetched."
    assert recorded() == LIMIT
    assert statuses("x") == [400]
    issuer.publish()
    issuers.forget()
    assert bring(issuer.sign()).status_code == 200
