"""A user's own GPU-hours by day: the amounts of the ledger, on the page and in REST."""

from __future__ import annotations

import pytest

from portal.quota.ledger import services as ledger
from portal.quota.ledger.accounting import GPU_HOUR
from portal.quota.ledger.own_use import own_use
from portal.quota.ledger.selectors import statement
from portal.quota.limits.models import ResourceRate
from tests import sites

pytestmark = pytest.mark.django_db
WORLD = sites.people


def test_own_days_add_up_to_the_charge_of_the_ledger(make, alice, bob, olga, team, pool, clock, as_user):
    ResourceRate.objects.create(resource="gpu:simulated-h100", rate_milli=1000)
    ledger.set_ledger(actor=olga, team=team, quota=100 * GPU_HOUR, period="month")
    make(alice, "sim-h100-x2")
    # Longer than a day, so that a midnight is in between.
    clock.shift(26 * 3600)
    ledger.tick()
    use = own_use(alice)
    assert use.total == 52 * GPU_HOUR == statement(team).spent
    amounts = [amount for _day, amount in use.days]
    assert len(amounts) == 7 and sum(1 for amount in amounts if amount) >= 2
    assert max(amounts) <= 48 * GPU_HOUR
    assert own_use(bob).total == 0
    client = as_user(alice)
    page = client.get("/account/gpu-hours/").content.decode()
    assert "52 GPU-hours in 7 days" in page and page.count('<th scope="row">') == 7
    body = client.get("/api/v1/me/gpu-hours").json()
    assert body["total"] == use.total
    assert [row["amount"] for row in body["days"]] == amounts
