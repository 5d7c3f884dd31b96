"""Quota requests, grants, rules and delegations over REST."""

from __future__ import annotations

import pytest

from portal.common.scopes import Scope
from portal.quota.limits.models import Grant, Quota
from portal.quota.requests.models import QuotaRequest
from portal.workspaces.models import Workspace
from tests import sites
from tests.quota_requests.helpers import ask, in_hours

pytestmark = pytest.mark.django_db
WORLD = sites.eight_gpus
JSON = {"content_type": "application/json"}
BODY = {"team": "vision", "resource": "gpu:h100", "amount": 2000, "note": "The review"}


def test_request_is_created_approved_for_less_and_revoked(bob, petra, team, eight, with_token):
    member = with_token(bob, "quotas:read", "quotas:write")
    answer = member.post("/api/v1/quota-requests", {**BODY, "until": in_hours(5).isoformat()}, **JSON)
    assert answer.status_code == 201
    made = answer.json()
    assert (made["state"], made["kind"], made["requester"]) == ("open", "quota", "bob")
    assert answer["Location"] == f"/api/v1/quota-requests/{made['id']}"
    assert member.get(answer["Location"]).json()["evidence"] is None

    approver = with_token(petra, "quotas:read", "quotas:decide")
    (listed,) = approver.get("/api/v1/quota-requests?state=open&team=vision").json()["results"]
    assert listed == made
    evidence = approver.get(answer["Location"]).json()["evidence"]
    assert evidence["site_size"] == 8000
    assert evidence["idle_percent"] is None
    assert evidence["effect"] == "no effect on other teams; 8 free now"
    url = f"/api/v1/quota-requests/{made['id']}"
    assert approver.post(f"{url}/approve", {"amount": 3000}, **JSON).status_code == 400
    approved = approver.post(f"{url}/approve", {"amount": 500, "note": "For now"}, **JSON).json()
    assert (approved["state"], approved["granted_amount"], approved["decided_by"]) == (
        "approved",
        500,
        "petra",
    )
    again = approver.post(f"{url}/deny", {"note": "No"}, **JSON)
    assert (again.status_code, again.json()["code"]) == (409, "decided_already")
    assert "petra approved the request" in again.json()["detail"]

    (grant,) = member.get("/api/v1/grants?active=true").json()["results"]
    assert (grant["id"], grant["amount"], grant["username"]) == (approved["grant"], 500, None)
    taken = approver.post(f"/api/v1/grants/{grant['id']}/revoke", {"note": "A mistake"}, **JSON)
    assert taken.json()["ended_at"]
    assert member.get("/api/v1/grants?active=true").json()["results"] == []
    assert len(member.get("/api/v1/grants?active=false").json()["results"]) == 1


def test_requesting_twice_is_a_conflict_naming_the_first(bob, team, eight, with_token):
    client = with_token(bob)
    first = client.post("/api/v1/quota-requests", BODY, **JSON).json()
    second = client.post("/api/v1/quota-requests", BODY, **JSON)
    assert second.status_code == 409
    assert second.json()["quota_request"] == first["id"]
    assert client.post(f"/api/v1/quota-requests/{first['id']}/cancel").json()["state"] == "cancelled"
    assert client.post("/api/v1/quota-requests", BODY, **JSON).status_code == 201


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("amount", 0),
        ("amount", 10**18),
        ("amount", 9000),
        ("note", ""),
        ("resource", "gpu:b200"),
        ("team", "robots"),
        ("kind", "friendship"),
        ("until", "2020-01-01T00:00:00Z"),
        ("nonsense", 1),
    ],
)
def test_invalid_field_is_named(bob, charlie, team, eight, with_token, field, value):
    answer = with_token(bob).post("/api/v1/quota-requests", {**BODY, field: value}, **JSON)
    assert (answer.status_code, list(answer.json()["errors"])) == (400, [field])
    assert not QuotaRequest.objects.exists()


def test_workspace_waits_for_the_requested_quota(bob, petra, team, eight, with_token):
    Quota.objects.create(team=team, resource="gpu:h100", quota=0, borrowing_limit=0)
    start = {"template": "jupyterlab", "flavor": "gpu-2"}
    made = with_token(bob).post("/api/v1/quota-requests", {**BODY, "start": start}, **JSON).json()
    assert made["workspace"] == str(Workspace.objects.get(state="pending").pk)
    denied = with_token(petra).post(
        f"/api/v1/quota-requests/{made['id']}/deny", {"note": "Not this week"}, **JSON
    )
    assert denied.json()["decision_note"] == "Not this week"
    assert Workspace.objects.get().state == "terminated"


@pytest.mark.parametrize("path", ["workspaces", "admission/preview"])
def test_ask_of_a_refusal_is_a_valid_request_body(bob, team, eight, with_token, path):
    Quota.objects.create(team=team, resource="gpu:h100", quota=0, borrowing_limit=0)
    client = with_token(bob)
    start = {"template": "jupyterlab", "flavor": "gpu-2", "start_without_gpu": False}
    start |= {"name": "big", "priority": -5, "git": None} if path == "workspaces" else {}
    refused = client.post(f"/api/v1/{path}", {**start, "team": "vision"}, **JSON).json()
    assert refused["ask"]["start"] == start and refused["ask"]["team"] == "vision"
    assert not Workspace.objects.exists()
    made = client.post("/api/v1/quota-requests", refused["ask"], **JSON)
    assert made.status_code == 201, made.json()
    workspace = Workspace.objects.get(pk=made.json()["workspace"])
    assert workspace.state == "pending" and workspace.priority == start.get("priority", 0)


def test_idempotency_key_returns_the_workspace_of_the_request(bob, petra, team, eight, with_token):
    Quota.objects.create(team=team, resource="gpu:h100", quota=0, borrowing_limit=0)
    client, key = with_token(bob), {"HTTP_IDEMPOTENCY_KEY": "job-7", **JSON}
    order = {"template": "jupyterlab", "flavor": "gpu-2", "team": "vision"}
    ask = client.post("/api/v1/workspaces", order, **key).json()["ask"]
    made = client.post("/api/v1/quota-requests", ask, **key).json()
    url = f"/api/v1/quota-requests/{made['id']}/approve"
    assert with_token(petra).post(url, {}, **JSON).json()["state"] == "approved"
    again = client.post("/api/v1/workspaces", order, **key)
    assert (again.status_code, again.json()["id"]) == (201, made["workspace"])


def test_request_with_a_workspace_requires_the_workspace_scope(bob, team, eight, with_token):
    Quota.objects.create(team=team, resource="gpu:h100", quota=0, borrowing_limit=0)
    start = {"template": "jupyterlab", "flavor": "gpu-2"}
    client = with_token(bob, "quotas:read", "quotas:write")
    assert client.post("/api/v1/quota-requests", {**BODY, "start": start}, **JSON).status_code == 403


def test_approvers_create_change_and_delete_rules(bob, alice, petra, team, eight, with_token):
    approver = with_token(petra, "quotas:read", "quotas:decide")
    body = {"resource": "gpu:h100", "amount_at_most": 2000, "hours_at_most": 8}
    answer = approver.post("/api/v1/auto-approve-rules", {**body, "team": "vision"}, **JSON)
    assert answer.status_code == 201
    url = answer["Location"]
    member = with_token(bob)
    assert member.get(url).json()["amount_at_most"] == 2000
    made = member.post("/api/v1/quota-requests", {**BODY, "until": in_hours(5).isoformat()}, **JSON).json()
    assert (made["state"], made["rule"], made["decided_by"]) == ("approved", answer.json()["id"], None)
    assert Grant.objects.count() == 1
    changed = approver.patch(url, {"enabled": False, "hours_at_most": 4}, **JSON).json()
    assert (changed["enabled"], changed["hours_at_most"]) == (False, 4)
    for user in (bob, alice):
        client = with_token(user)
        assert client.post("/api/v1/auto-approve-rules", body, **JSON).status_code == 403
        assert client.patch(url, {"enabled": True}, **JSON).status_code == 403
        assert client.delete(url).status_code == 403
    assert approver.delete(url).status_code == 204
    assert approver.get(url).status_code == 404
    assert approver.post("/api/v1/auto-approve-rules", {**body, "team": "no"}, **JSON).status_code == 400


def test_delegations_are_managed_over_rest(bob, alice, olga, petra, team, eight, with_token):
    made = ask(bob, team)
    approver = with_token(petra, "quotas:read", "quotas:decide")
    body = {"delegate": "olga", "ends_at": in_hours(5).isoformat()}
    answer = approver.post("/api/v1/delegations", body, **JSON)
    assert answer.status_code == 201
    assert approver.post("/api/v1/delegations", body, **JSON).status_code == 409
    assert with_token(alice).get(answer["Location"]).status_code == 404
    assert with_token(alice).post("/api/v1/delegations", body, **JSON).status_code == 403
    url = f"/api/v1/quota-requests/{made.pk}/approve"
    assert with_token(olga).post(url, {}, **JSON).json()["decided_by"] == "olga"
    assert approver.post(f"{answer['Location']}/revoke").status_code == 204


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("post", "/api/v1/auto-approve-rules"),
        ("post", "/api/v1/delegations"),
    ],
)
def test_approver_actions_require_the_decide_scope(petra, with_token, method, path):
    others = [scope for scope in Scope.values if scope not in {"quotas:decide", "all", "scim"}]
    assert getattr(with_token(petra, *others), method)(path, {}, **JSON).status_code == 403
    assert getattr(with_token(petra, "quotas:decide"), method)(path, {}, **JSON).status_code == 400
