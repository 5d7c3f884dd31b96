"""Quotas, cohorts, shares, caps, site limits and rates over REST."""

from __future__ import annotations

import pytest

from portal.common.actors import SYSTEM
from portal.common.events.models import Event
from portal.quota.limits.models import Quota
from portal.quota.limits.services import cohorts, limits
from portal.workspaces.lifecycle import State
from tests import sites
from tests.factories import TeamFactory, WorkspaceFactory

pytestmark = pytest.mark.django_db
WORLD = sites.people
H100 = "gpu:h100"
V1 = "/api/v1"
JSON = {"content_type": "application/json"}


@pytest.fixture
def api(with_token):
    """`api(olga).post("/quotas", {...})` with JSON and a token."""

    class Api:
        def __init__(self, user, *scopes):
            self.client = with_token(user, *scopes)

        def get(self, path, **query):
            return self.client.get(V1 + path, query)

        def post(self, path, body):
            return self.client.post(V1 + path, body, **JSON)

        def put(self, path, body):
            return self.client.put(V1 + path, body, **JSON)

        def delete(self, path):
            return self.client.delete(V1 + path)

    return Api


def test_quota_is_created_changed_and_deleted(api, olga, team):
    operator = api(olga)
    made = operator.post(
        "/quotas", {"team": "vision", "resource": "gpu:H100", "quota": 4000, "borrowing_limit": 0}
    )
    assert made.status_code == 201 and made.json()["notes"] == []
    where = made.headers["Location"].removeprefix(V1)
    assert operator.get(where).json() == {
        "id": made.json()["id"],
        "team": "vision",
        "cohort": None,
        "resource": H100,
        "label": "H100",
        "quota": 4000,
        "borrowing_limit": 0,
        "lending_limit": None,
    }
    changed = operator.put(where, {"quota": 2000})
    assert changed.json()["quota"] == 2000 and changed.json()["borrowing_limit"] is None
    assert operator.delete(where).status_code == 204
    assert operator.get(where).status_code == 404
    kinds = list(
        Event.objects.filter(kind__startswith="quota.").order_by("pk").values_list("kind", flat=True)
    )
    assert kinds == ["quota.set", "quota.set", "quota.removed"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"resource": H100, "quota": 1}, "team"),
        ({"team": "vision", "cohort": "lab", "resource": H100, "quota": 1}, "team"),
        ({"team": "gone", "resource": H100, "quota": 1}, "team"),
        ({"cohort": "gone", "resource": H100, "quota": 1}, "cohort"),
        ({"team": "vision", "resource": "h100", "quota": 1}, "resource"),
        ({"team": "vision", "resource": H100, "quota": -1}, "quota"),
        ({"team": "vision", "resource": H100, "quota": 10**18}, "quota"),
        ({"team": "vision", "resource": H100, "quota": 1.5}, "quota"),
        ({"team": "vision", "resource": H100}, "quota"),
        ({"team": "vision", "resource": H100, "quota": 1, "gpus": 1}, "gpus"),
    ],
)
def test_invalid_body_is_refused_with_the_field(api, olga, team, body, field):
    cohorts.create_cohort(actor=SYSTEM, slug="lab")
    answer = api(olga).post("/quotas", body)
    assert answer.status_code == 400 and field in answer.json()["errors"]
    assert not Quota.objects.exists()


def test_second_quota_for_a_resource_is_a_conflict(api, olga, team):
    body = {"team": "vision", "resource": H100, "quota": 1000}
    assert api(olga).post("/quotas", body).status_code == 201
    again = api(olga).post("/quotas", {**body, "quota": 9000})
    assert again.status_code == 409 and again.json()["code"] == "already_set"
    assert Quota.objects.get().quota == 1000


def test_lists_show_visible_rows_and_filter(api, olga, bob, charlie, petra, team):
    lab = cohorts.create_cohort(actor=SYSTEM, slug="lab")
    cohorts.create_cohort(actor=SYSTEM, slug="other")
    cohorts.set_share(actor=SYSTEM, team=team, cohort=lab)
    limits.set_quota(actor=SYSTEM, team=team, resource=H100, quota=1)
    limits.set_quota(actor=SYSTEM, cohort=lab, resource="cpu_milli", quota=1)
    limits.set_quota(actor=SYSTEM, team=TeamFactory(slug="nlp"), resource=H100, quota=1)

    def seen(user, **query):
        rows = api(user).get("/quotas", **query).json()["results"]
        return [(row["team"] or row["cohort"], row["resource"]) for row in rows]

    assert len(seen(olga)) == len(seen(petra)) == 3
    assert seen(bob) == [("lab", "cpu_milli"), ("vision", H100)]
    assert seen(charlie) == []
    assert seen(olga, team="vision") == [("vision", H100)]
    assert seen(olga, cohort="lab") == [("lab", "cpu_milli")]
    assert len(seen(olga, resource=H100)) == 2
    assert [row["slug"] for row in api(bob).get("/cohorts").json()["results"]] == ["lab"]
    assert api(olga).get("/quotas", resorce=H100).status_code == 400


def test_cohort_is_created_changed_and_deleted(api, olga, team):
    operator = api(olga)
    assert operator.post("/cohorts", {"slug": "lab", "name": "Lab"}).status_code == 201
    inner = operator.post(
        "/cohorts", {"slug": "inner", "parent": "lab", "weight_milli": 2000, "preempt_first": True}
    )
    assert inner.json() == {
        "slug": "inner",
        "name": "inner",
        "parent": "lab",
        "weight_milli": 2000,
        "borrow_first": True,
        "preempt_first": True,
        "team_count": 0,
    }
    circle = operator.put("/cohorts/lab", {"name": "Lab", "parent": "inner"})
    assert circle.status_code == 400 and "inside itself" in circle.json()["detail"]
    used = operator.delete("/cohorts/lab")
    assert (
        used.status_code == 409
        and used.json()["code"] == "cohort_in_use"
        and "inner" in used.json()["detail"]
    )
    assert operator.delete("/cohorts/inner").status_code == 204


def test_share_is_replaced_as_a_whole(api, olga, alice, team):
    cohorts.create_cohort(actor=SYSTEM, slug="lab")
    assert api(alice).get("/teams/vision/share").json() == {
        "team": "vision",
        "cohort": None,
        "weight_milli": 1000,
        "reclaim": True,
    }
    changed = api(olga).put("/teams/vision/share", {"cohort": "lab", "weight_milli": 500, "reclaim": False})
    assert changed.json() == {"team": "vision", "cohort": "lab", "weight_milli": 500, "reclaim": False}
    assert api(olga).put("/teams/vision/share", {"cohort": "gone"}).status_code == 400


def test_usage_in_numbers_for_members_and_approvers(api, bob, petra, charlie, team, local_pool):
    limits.set_quota(actor=SYSTEM, team=team, resource=H100, quota=4000)
    WorkspaceFactory(owner=bob, team=team, state=State.RUNNING, pool=local_pool, amounts={H100: 5500})
    (row,) = api(bob).get("/teams/vision/usage").json()["resources"]
    assert (row["resource"], row["label"], row["factor"], row["unit"]) == (H100, "H100", 1000, "")
    amounts = {name: row[name] for name in ("used", "quota", "limit", "available", "over", "mine", "cap")}
    assert list(amounts.values()) == [5500, 4000, 4000, 0, 1500, 5500, None]
    assert api(petra).get("/teams/vision/usage").json()["resources"][0]["mine"] == 0
    missing = api(charlie).get("/teams/vision/usage").json()
    assert missing["status"] == 404 and "Vision" not in str(missing)


def test_owner_sets_member_caps(api, alice, bob, charlie, team):
    owner = api(alice)
    made = owner.post("/member-caps", {"team": "vision", "username": "bob", "resource": H100, "amount": 2000})
    assert made.status_code == 201 and made.json()["username"] == "bob"
    assert (
        owner.post("/member-caps", {"team": "vision", "resource": H100, "amount": 1}).json()["username"]
        is None
    )
    twice = owner.post("/member-caps", {"team": "vision", "resource": H100, "amount": 2})
    assert twice.status_code == 409
    where = f"/member-caps/{made.json()['id']}"
    assert owner.put(where, {"amount": 1000}).json()["amount"] == 1000
    for name in ("charlie", "nobody", ""):
        body = {"team": "vision", "username": name, "resource": H100, "amount": 1}
        assert owner.post("/member-caps", body).status_code == 400
    rows = api(bob).get("/member-caps", username="bob").json()["results"]
    assert [row["amount"] for row in rows] == [1000]
    assert api(charlie).get("/member-caps").json()["results"] == []
    assert owner.delete(where).status_code == 204


def test_site_limits_and_rates_over_rest(api, olga, bob):
    operator = api(olga)
    assert operator.put(f"/site-limits/{H100}", {"amount": 12_000}).json() == {
        "resource": H100,
        "label": "H100",
        "amount": 12_000,
        "notes": [],
    }
    assert operator.put("/site-limits/nothing", {"amount": 1}).status_code == 400
    assert api(bob).get("/site-limits").json()["results"][0]["amount"] == 12_000
    assert operator.delete(f"/site-limits/{H100}").status_code == 204
    assert operator.put("/rates/mig:1g.10gb", {"rate_milli": 200}).json()["rate_milli"] == 200
    assert operator.put("/rates/cpu_milli", {"rate_milli": 200}).status_code == 400
    assert operator.delete("/rates/mig:1g.10gb").status_code == 204
    assert api(bob).get("/rates").json()["results"] == []


def test_read_token_cannot_change_limits(api, olga, team):
    reader = api(olga, "quotas:read")
    assert reader.get("/quotas").status_code == 200
    assert reader.post("/quotas", {"team": "vision", "resource": H100, "quota": 1}).status_code == 403
