"""Large approvals require recent authentication."""

from __future__ import annotations

import pytest

from portal.quota.requests.models import RequestState
from tests import sites
from tests.factories import PASSWORD
from tests.quota_requests.helpers import ask, in_hours

pytestmark = pytest.mark.django_db
WORLD = sites.eight_gpus
JSON = {"content_type": "application/json"}


@pytest.fixture
def made(bob, petra, team, eight, settings):
    """Bob's request for three H100; approving more than two requires reauthentication."""
    settings.BERTH_STEP_UP_APPROVALS = {"gpu": 2}
    return ask(bob, team, amount=3000, until=in_hours(48))


@pytest.fixture
def stale(as_user, petra, made, clock):
    client = as_user(petra)
    clock.shift(3600)
    return client


def decide(client, made, **body):
    return client.post(f"/quotas/requests/{made.pk}/decide/", {"decision": "approve", **body})


def status_of(made):
    made.refresh_from_db()
    return made.state


def test_large_approval_asks_for_reauthentication_and_keeps_the_input(stale, made):
    answered = decide(stale, made, note="For the paper")
    assert answered.status_code == 403
    assert 'name="note" value="For the paper"' in answered.content.decode()
    assert status_of(made) == RequestState.OPEN
    decide(stale, made, note="For the paper", confirm_password=PASSWORD)
    assert status_of(made) == RequestState.APPROVED
    assert made.decision_note == "For the paper"


def test_approval_up_to_the_limit_needs_no_reauthentication(stale, made):
    decide(stale, made, amount="2")
    assert status_of(made) == RequestState.APPROVED


def test_denial_needs_no_reauthentication(stale, made):
    decide(stale, made, decision="deny", note="No")
    assert status_of(made) == RequestState.DENIED


def test_htmx_request_redirects_to_reauthentication(stale, made):
    answered = stale.post(
        f"/quotas/requests/{made.pk}/decide/",
        {"decision": "approve"},
        headers={"HX-Request": "true", "HX-Current-URL": "http://testserver/quotas/approvals/"},
    )
    assert answered["HX-Redirect"] == "/account/confirm/?next=%2Fquotas%2Fapprovals%2F"
    assert status_of(made) == RequestState.OPEN


def test_rest_session_gets_a_code_and_tokens_are_exempt(stale, petra, made, with_token):
    path = f"/api/v1/quota-requests/{made.pk}/approve"
    answered = stale.post(path, {}, **JSON)
    assert (answered.status_code, answered.json()["code"]) == (403, "reauthentication_required")
    assert status_of(made) == RequestState.OPEN
    assert with_token(petra, "quotas:decide").post(path, {}, **JSON).status_code == 200


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"gpu": 2, "gpu:h100": 5}, id="a model that is named has its own limit"),
        pytest.param({}, id="no limit"),
    ],
)
def test_amounts_within_the_limit_never_need_reauthentication(stale, made, settings, limits):
    settings.BERTH_STEP_UP_APPROVALS = limits
    decide(stale, made)
    assert status_of(made) == RequestState.APPROVED
