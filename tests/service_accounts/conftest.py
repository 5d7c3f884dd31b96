"""REST clients, an issuer, and a service account with a trust rule for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from portal.people.accounts import service_accounts
from portal.people.accounts.models import User
from portal.people.service_accounts import rules
from portal.people.service_accounts.exchange import issuers, limits
from portal.people.service_accounts.exchange.conditions import Condition
from portal.people.service_accounts.models import TrustRule
from tests.api.conftest import api as api
from tests.cli.conftest import berth as berth
from tests.cli.conftest import server as server
from tests.service_accounts.issuer import TestIssuer, listening

CONDITIONS = [
    Condition("repository", "exact", "octo/app"),
    Condition("repository_id", "exact", "123"),
    Condition("ref", "glob", "refs/heads/*"),
    Condition("environment", "exact", "production"),
]


@pytest.fixture(scope="session")
def one_issuer() -> Iterator[TestIssuer]:
    with listening() as issuer:
        yield issuer


@pytest.fixture
def issuer(one_issuer: TestIssuer, settings: Any) -> Iterator[TestIssuer]:
    """An allowed issuer; it listens without TLS."""
    settings.BERTH_TOKEN_EXCHANGE_ISSUERS = [one_issuer.url]
    settings.BERTH_TOKEN_EXCHANGE_LOOPBACK = True
    one_issuer.pages.clear()
    one_issuer.publish()
    one_issuer.asked.clear()
    issuers.forget()
    limits._local_counts.clear()
    yield one_issuer
    one_issuer.released.set()
    issuers.forget()
    limits._local_counts.clear()


@pytest.fixture
def ci(team: Any, alice: User) -> User:
    return service_accounts.create(actor=alice, team=team, name="ci")


@pytest.fixture
def rule(ci: User, alice: User, issuer: TestIssuer) -> TrustRule:
    return rules.create(
        actor=alice,
        account=ci,
        name="deploy",
        issuer=issuer.url,
        audience="https://berth.example.org",
        conditions=CONDITIONS,
        scopes=["workspaces:read", "workspaces:write"],
        lifetime_s=600,
    )
