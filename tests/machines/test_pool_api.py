"""Missing requirements of a pool and its versions, over REST."""

from __future__ import annotations

import pytest

from portal.fleet.inventory import pools
from portal.fleet.inventory.models import Pool
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db


def test_operators_and_auditors_see_missing_requirements(as_user, olga, local_pool):
    path = "/api/v1/pools/this-machine/missing"
    assert as_user(olga).get(path).json() == []
    Pool.objects.update(retiring=True)
    local_pool.nodes.update(online=False)
    for reader in (olga, UserFactory(is_auditor=True)):
        found = as_user(reader).get(path).json()
        assert [each["reason"]["code"] for each in found] == ["pool_retiring", "nodes_all_offline"]
        assert all(each["message"] for each in found)
    assert as_user(olga).get("/api/v1/pools/nowhere/missing").status_code == 404


def test_only_operators_read_and_restore_versions(as_user, olga, bob, local_pool):
    pools.change(actor=olga, pool=local_pool, fields={"name": "Two"})
    pools.change(actor=olga, pool=local_pool, fields={"name": "Three"})
    browser, path = as_user(olga), "/api/v1/pools/this-machine/versions"
    found = browser.get(path).json()
    two = next(each for each in found if each["data"]["name"] == "Two")
    assert {"field": "name", "before": "Two", "after": "Three"} in found[0]["changes"]
    for reader in (bob, UserFactory(is_auditor=True)):
        assert as_user(reader).get(path).status_code == 403
        assert as_user(reader).post(f"{path}/{two['number']}/restore").status_code == 403
    stale = browser.post(f"{path}/{two['number']}/restore", headers={"If-Match": '"old"'})
    assert stale.status_code == 412
    assert browser.post(f"{path}/{two['number']}/restore").json()["name"] == "Two"
    assert browser.post(f"{path}/999/restore").status_code == 404
