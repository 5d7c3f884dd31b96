"""Job tokens: renewed while the job runs, exchanged again after a lost response, and their workspaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from portal.common.actors import SYSTEM
from portal.common.events.models import Event
from portal.people.accounts import deactivation, token_lookup
from portal.people.accounts.models import ApiToken
from portal.people.service_accounts import rules
from portal.people.service_accounts.exchange import issuers, services
from portal.people.service_accounts.models import Exchange
from portal.quota.limits.services import limits
from portal.quota.requests.models import QuotaRequest
from portal.quota.requests.services import requests
from portal.workspaces import housekeeping
from portal.workspaces.lifecycle import State, TerminationReason
from portal.workspaces.models import Workspace
from tests import sites
from tests.factories import make_token
from tests.service_accounts.test_exchange import bring

pytestmark = pytest.mark.django_db
WORLD = sites.people
KEY = "a-random-key-that-only-this-job-has"
RENEW = "/api/v1/token-exchange/renew"
WORKSPACES = "/api/v1/workspaces"
LIFETIME_S = 600


def program(secret: str) -> Client:
    return Client(headers={"Authorization": f"Bearer {secret}"})


def keyed(token: str, key: str = KEY, **changed: Any) -> Any:
    return bring(token, Client(headers={"Idempotency-Key": key}), **changed)


@pytest.fixture
def job(issuer: Any, rule: Any, clock: Any) -> Client:
    """A job with an exchanged token, valid for 10 minutes."""
    return program(bring(issuer.sign()).json()["access_token"])


def create(client: Client, **more: Any) -> Any:
    order = {"template": "jupyterlab", "flavor": "sim-cpu", **more}
    return client.post(WORKSPACES, order, content_type="application/json")


# --- renewal --------------------------------------------------------------------------------------


def test_renewed_token_stays_valid(job: Client, clock: Any) -> None:
    clock.shift(LIFETIME_S - 1)
    answer = job.post(RENEW)
    assert (answer.status_code, answer.json()["expires_in"]) == (200, LIFETIME_S)
    clock.shift(LIFETIME_S - 1)
    assert job.get("/api/v1/me").status_code == 200
    clock.shift(2)
    refused = job.get("/api/v1/me")
    assert refused.status_code == 401
    assert refused.json()["detail"] == (
        "The token of this CI job has expired. Exchange the job's ID token again."
    )
    assert job.post(RENEW).status_code == 401


def test_the_rule_limits_the_total_lifetime(issuer: Any, rule: Any, clock: Any) -> None:
    type(rule).objects.update(max_lifetime_s=1000)
    job = program(bring(issuer.sign()).json()["access_token"])
    clock.shift(500)
    assert job.post(RENEW).json()["expires_in"] == 500
    clock.shift(499)
    assert job.post(RENEW).json()["expires_in"] == 1
    clock.shift(2)
    assert job.get("/api/v1/me").status_code == 401


def test_token_of_a_deleted_rule_is_not_renewed(job: Client, rule: Any, alice: Any, clock: Any) -> None:
    rules.delete(actor=alice, rule=rule)
    refused = job.post(RENEW)
    assert (refused.status_code, refused.json()["detail"]) == (
        409,
        "The trust rule of this token was deleted.",
    )
    clock.shift(LIFETIME_S + 1)
    assert job.get("/api/v1/me").status_code == 401


def test_token_of_a_deactivated_account_is_not_renewed(job: Client, ci: Any, alice: Any) -> None:
    deactivation.deactivate(actor=alice, user=ci)
    assert job.post(RENEW).status_code == 401


def test_only_job_tokens_are_renewed(team: Any, alice: Any, as_user: Any) -> None:
    refused = program(make_token(alice)[1]).post(RENEW)
    assert refused.status_code == 409
    assert refused.json()["detail"] == "Only the token of a CI job can be renewed."
    assert as_user(alice).post(RENEW).status_code == 401


def test_clients_recognize_job_tokens(issuer: Any, rule: Any, alice: Any) -> None:
    assert bring(issuer.sign()).json()["access_token"].startswith(token_lookup.JOB_TOKEN_PREFIX)
    assert not make_token(alice)[1].startswith(token_lookup.JOB_TOKEN_PREFIX)


def test_expired_token_of_another_kind_is_reported(team: Any, alice: Any, clock: Any) -> None:
    token, secret = make_token(alice)
    ApiToken.objects.update(expires_at=token.created_at)
    clock.shift(1)
    assert program(secret).get("/api/v1/me").json()["detail"].startswith("This token has expired.")


# --- lost responses -------------------------------------------------------------------------------


def test_repeated_exchange_returns_a_new_secret(issuer: Any, rule: Any) -> None:
    token = issuer.sign()
    first, second = (keyed(token).json()["access_token"] for _ in range(2))
    assert program(first).get("/api/v1/me").status_code == 401
    assert program(second).get("/api/v1/me").json()["username"] == "svc-ci"
    assert ApiToken.objects.count() == Exchange.objects.count() == 1
    assert [entry.data["token"] for entry in Event.objects.filter(kind="token.exchanged")] == [
        str(ApiToken.objects.get().pk)
    ] * 2


@pytest.mark.parametrize("key", ["", "a-random-key-of-somebody-else-altogether"])
def test_repeated_exchange_without_the_key_is_a_replay(issuer: Any, rule: Any, key: str) -> None:
    token = issuer.sign()
    secret = keyed(token).json()["access_token"]
    assert (keyed(token, key) if key else bring(token)).status_code == 400
    assert program(secret).get("/api/v1/me").status_code == 200


def test_an_exchange_without_a_key_cannot_be_repeated(issuer: Any, rule: Any) -> None:
    token = issuer.sign()
    assert bring(token).status_code == 200
    assert keyed(token).status_code == bring(token).status_code == 400


def test_repeated_exchange_must_equal_the_first(issuer: Any, rule: Any) -> None:
    token = issuer.sign()
    assert keyed(token).status_code == 200
    assert keyed(token, scope="workspaces:read").status_code == 400


def test_repeated_exchange_does_not_restore_a_revoked_token(issuer: Any, rule: Any, ci: Any) -> None:
    token = issuer.sign()
    assert keyed(token).status_code == 200
    deactivation.revoke_tokens(ci)
    assert keyed(token).status_code == 400


def test_repeated_exchange_does_not_extend_the_total_lifetime(issuer: Any, rule: Any, clock: Any) -> None:
    type(rule).objects.update(max_lifetime_s=700)
    token = issuer.sign()
    keyed(token)
    clock.shift(300)
    assert keyed(token).json()["expires_in"] == 400


@pytest.mark.parametrize("key", ["job-7", "job 7"])
def test_a_short_key_is_ignored(issuer: Any, rule: Any, key: str) -> None:
    token = issuer.sign()
    answer = keyed(token, key)
    assert (answer.status_code, answer["Idempotency-Key-Ignored"]) == (200, "short")
    assert keyed(token, key).status_code == keyed(token).status_code == 400
    assert "Idempotency-Key-Ignored" not in keyed(issuer.sign())


def test_long_key_is_accepted(issuer: Any, rule: Any) -> None:
    token, key = issuer.sign(), "a random key with spaces " * 40
    first, second = (keyed(token, key).json()["access_token"] for _ in range(2))
    assert first != second
    assert keyed(token, key + "x").status_code == 400


# --- workspaces of a job --------------------------------------------------------------------------


def test_a_workspace_is_deleted_after_its_job(job: Client, pool: Any, clock: Any, sent: Any) -> None:
    made = create(job).json()
    assert made["bound"]
    assert housekeeping.delete_bound() == 0
    clock.shift(LIFETIME_S + 1)
    assert housekeeping.delete_bound() == 1
    assert housekeeping.delete_bound() == 0
    workspace = Workspace.objects.get()
    assert workspace.state in (State.TERMINATING, State.TERMINATED)
    assert workspace.termination_reason == TerminationReason.JOB_ENDED
    entry = Event.objects.filter(workspace=workspace).latest("id")
    assert (entry.message, entry.reason) == ("deleted the workspace", "its CI job has ended")


def test_workspace_is_deleted_after_its_token_was_purged(job: Client, pool: Any, clock: Any) -> None:
    create(job)
    clock.shift(2 * 3600)
    assert services.purge() == 1
    assert housekeeping.delete_bound() == 1


def test_workspace_is_deleted_when_its_token_is_revoked(job: Client, pool: Any, ci: Any) -> None:
    create(job)
    deactivation.revoke_tokens(ci)
    assert housekeeping.delete_bound() == 1


@pytest.mark.parametrize("state", [State.STOPPED, State.FAILED, State.STOPPING, State.RUNNING])
def test_bound_workspace_is_deleted_in_any_state(job: Client, pool: Any, clock: Any, state: State) -> None:
    create(job)
    Workspace.objects.update(state=state, pool=pool)
    clock.shift(LIFETIME_S + 1)
    assert housekeeping.delete_bound() == 1
    assert Workspace.objects.get().termination_reason == TerminationReason.JOB_ENDED


def test_page_shows_deletion_with_the_job(job: Client, pool: Any, alice: Any, as_user: Any) -> None:
    said = "The portal deletes the workspace when its job ends."
    bound, kept = create(job, name="bound").json(), create(job, name="kept", keep_after_job=True).json()
    pages = [as_user(alice).get(f"/workspaces/{row['id']}/").content.decode() for row in (bound, kept)]
    assert [said in page for page in pages] == [True, False]


def test_a_job_can_keep_a_workspace(job: Client, pool: Any, clock: Any) -> None:
    assert not create(job, keep_after_job=True).json()["bound"]
    clock.shift(LIFETIME_S + 1)
    assert housekeeping.delete_bound() == 0


def ask_to_start(client: Client, **more: Any) -> Workspace:
    """Return the workspace that waits for approval of more GPUs."""
    start = {"template": "jupyterlab", "flavor": "sim-h100-x1", **more}
    body = {
        "team": "vision",
        "resource": "gpu:simulated-h100",
        "amount": 1000,
        "note": "CI",
        "start": start,
    }
    answer = client.post("/api/v1/quota-requests", body, content_type="application/json")
    assert answer.status_code == 201, answer.content
    return Workspace.objects.get(pk=answer.json()["workspace"])


@pytest.fixture
def short(team: Any) -> None:
    """A team quota without GPUs."""
    limits.set_quota(actor=SYSTEM, team=team, resource="gpu:simulated-h100", quota=0)


@pytest.fixture
def asking_job(issuer: Any, rule: Any, clock: Any, short: None) -> Client:
    """A job whose token may also request quota."""
    type(rule).objects.update(scopes=[*rule.scopes, "quotas:write"])
    return program(bring(issuer.sign()).json()["access_token"])


def test_a_workspace_of_a_quota_request_is_deleted_too(
    asking_job: Client, pool: Any, petra: Any, clock: Any
) -> None:
    waiting = ask_to_start(asking_job)
    assert waiting.bound and waiting.bound_to == ApiToken.objects.get(owner__username="svc-ci").pk
    requests.approve(actor=petra, request_id=QuotaRequest.objects.get().pk)
    assert housekeeping.delete_bound() == 0
    clock.shift(LIFETIME_S + 1)
    assert housekeeping.delete_bound() == 1
    waiting.refresh_from_db()
    assert waiting.termination_reason == TerminationReason.JOB_ENDED


def test_open_request_is_deleted(asking_job: Client, pool: Any, ci: Any) -> None:
    waiting = ask_to_start(asking_job)
    deactivation.revoke_tokens(ci)
    assert housekeeping.delete_bound() == 1
    waiting.refresh_from_db()
    assert waiting.state == State.TERMINATED


def test_repeated_creation_returns_the_waiting_workspace(asking_job: Client, pool: Any) -> None:
    """`berth up --ask` repeats the creation with the key of the request."""
    asking_job.defaults["HTTP_IDEMPOTENCY_KEY"] = "job-7"
    waiting = ask_to_start(asking_job)
    again = create(asking_job, flavor="sim-h100-x1").json()
    assert (again["id"], again["bound"]) == (str(waiting.pk), True)


def test_a_job_can_keep_a_workspace_of_a_quota_request(asking_job: Client, pool: Any, clock: Any) -> None:
    assert not ask_to_start(asking_job, keep_after_job=True).bound
    clock.shift(LIFETIME_S + 1)
    assert housekeeping.delete_bound() == 0


def test_other_tokens_do_not_bind_a_workspace_of_a_quota_request(
    team: Any, pool: Any, short: None, alice: Any
) -> None:
    assert not ask_to_start(program(make_token(alice)[1])).bound


def test_workspaces_of_other_tokens_are_not_bound(team: Any, pool: Any, alice: Any, as_user: Any) -> None:
    for client in (program(make_token(alice)[1]), as_user(alice)):
        assert not create(client).json()["bound"]
    ApiToken.objects.all().delete()
    assert housekeeping.delete_bound() == 0


# --- a whole pipeline -----------------------------------------------------------------------------


def restart() -> None:
    """Clear caches of portal processes."""
    token_lookup._cache.clear()
    issuers.forget()


@pytest.mark.slow("runs a pipeline for nine lives of its token")
def test_repeatedly_killed_pipeline_leaves_no_workspace(
    issuer: Any, rule: Any, pool: Any, clock: Any, settle: Callable[..., int]
) -> None:
    killed, going = (program(bring(issuer.sign()).json()["access_token"]) for _ in range(2))
    names = {"killed": create(killed, name="killed").json(), "going": create(going, name="going").json()}
    settle()

    def states() -> set[str]:
        return set(Workspace.objects.live().values_list("name", "state"))

    assert states() == {("killed", State.RUNNING), ("going", State.RUNNING)}
    for life in range(9):
        if life in (2, 6):
            restart()
        clock.shift(LIFETIME_S - 120)
        assert going.post(RENEW).status_code == 200
        if life < 3:
            assert killed.post(RENEW).status_code == 200
        housekeeping.delete_bound()
        settle()
        services.purge()
        assert going.get(f"{WORKSPACES}/{names['going']['id']}").json()["state"] == "running"
    assert states() == {("going", State.RUNNING)}
    assert killed.get("/api/v1/me").status_code == 401
    assert going.delete(f"{WORKSPACES}/{names['going']['id']}").status_code == 202
    settle()
    assert states() == set()
    clock.shift(2 * 3600)
    services.purge()
    assert not ApiToken.objects.exists()
    assert not Exchange.objects.exists()
