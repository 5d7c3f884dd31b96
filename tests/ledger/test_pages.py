"""The ledger on the team's page and over REST."""

from __future__ import annotations

import json

import pytest

from portal.quota.ledger import services
from portal.quota.ledger.accounting import GPU_HOUR
from portal.quota.ledger.models import LedgerAccount
from tests import sites

pytestmark = pytest.mark.django_db
WORLD = sites.people


def put(client, path, body):
    return client.put(f"/api/v1/{path}", json.dumps(body), content_type="application/json")


def post(client, path, body):
    return client.post(f"/api/v1/{path}", json.dumps(body), content_type="application/json")


def test_operator_opens_changes_credits_and_closes_the_ledger_on_the_page(as_user, olga, alice, team):
    page = as_user(olga)
    where = f"/quotas/teams/{team.slug}/ledger/"
    assert "Limit this team" in page.get(f"/teams/{team.slug}/").content.decode()
    page.post(where, {"do": "set", "hours": "12.5", "period": "week"})
    account = LedgerAccount.objects.get()
    assert (account.quota, account.period) == (GPU_HOUR * 25 // 2, "week")
    page.post(where, {"do": "credit", "hours": "2", "note": "conference"})
    page.post(where, {"do": "credit", "hours": "-0,5"})
    account.refresh_from_db()
    assert account.credit == GPU_HOUR * 3 // 2
    shown = as_user(alice).get(f"/teams/{team.slug}/").content.decode()
    assert "of 14 GPU-hours" in shown
    assert "conference" in shown
    assert "Change GPU-hours" not in shown
    page.post(where, {"do": "close"})
    assert not LedgerAccount.objects.exists()


@pytest.mark.parametrize(
    "wrong", [{"do": "set", "hours": "many"}, {"do": "credit", "hours": "1"}, {"do": "x"}]
)
def test_invalid_input_is_reported(as_user, olga, team, wrong):
    answer = as_user(olga).post(f"/quotas/teams/{team.slug}/ledger/", wrong, follow=True)
    assert 'class="note bad"' in answer.content.decode()
    assert not LedgerAccount.objects.exists()


def test_page_shows_nearly_used_up_and_used_up(as_user, alice, olga, team):
    services.set_ledger(actor=olga, team=team, quota=10 * GPU_HOUR)
    for spent, words in ((8, "nearly used up"), (10, "used up")):
        LedgerAccount.objects.update(spent=spent * GPU_HOUR)
        assert words in as_user(alice).get(f"/teams/{team.slug}/").content.decode()


def test_ledger_over_rest(with_token, olga, alice, charlie, team):
    operator, owner = with_token(olga), with_token(alice)
    assert owner.get("/api/v1/ledgers/vision").status_code == 404
    opened = put(operator, "ledgers/vision", {"quota": 5 * GPU_HOUR, "period": "day"}).json()
    assert (opened["balance"], opened["percent"]) == (5 * GPU_HOUR, 0)
    assert (
        post(operator, "ledgers/vision/credits", {"amount": GPU_HOUR, "note": "x"}).json()["credit"]
        == GPU_HOUR
    )
    assert [row["team"] for row in owner.get("/api/v1/ledgers").json()["results"]] == ["vision"]
    assert with_token(charlie).get("/api/v1/ledgers").json()["results"] == []
    kinds = [row["kind"] for row in owner.get("/api/v1/ledger-entries?team=vision").json()["results"]]
    assert kinds == ["credit", "opened"]
    assert operator.delete("/api/v1/ledgers/vision").status_code == 204
    assert operator.delete("/api/v1/ledgers/vision").status_code == 204
