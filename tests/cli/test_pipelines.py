"""Options for pipelines: up --reuse, --idempotency-key and --clean-up, stop and rm --wait."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import httpx
import pytest
from django.db import connection

from portal.catalog import selectors
from portal.cli.client.workspaces import Workspaces
from portal.cli.errors import Unreachable
from portal.cli.loopback import Connection
from portal.cli.signals import Terminated
from portal.common.actors import SYSTEM
from portal.quota.limits.services import limits
from portal.quota.requests.models import QuotaRequest
from portal.quota.requests.services import requests
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests.factories import UserFactory, WorkspaceFactory
from tests.workspaces.gateway.gateway_support import eventually

UP = ("up", "--flavor", "sim-cpu", "--name", "job")
GOING = (State.TERMINATING, State.TERMINATED)


def test_reuse_uses_the_existing_workspace(as_bob: Any, workers: None) -> None:
    first = as_bob(*UP, "--reuse", "--wait", "--json")
    assert first.code == 0, first.err
    again = as_bob(*UP, "--reuse", "--wait", "--json")
    assert (again.code, again.json["id"], again.json["state"]) == (0, first.json["id"], "running")
    ran = as_bob("stop", "job", "--wait")
    assert (ran.code, ran.out) == (0, "job is stopped (simulated)\n"), ran.err
    started = as_bob(*UP, "--reuse", "--wait", "--json")
    assert (started.json["id"], started.json["state"]) == (first.json["id"], "running")
    assert as_bob("rm", "job", "--yes", "--wait").out == "job deleted.\n"
    assert Workspace.objects.get().state == State.TERMINATED
    assert as_bob("rm", "job", "--yes").code == 5
    assert as_bob("rm", "job", "--yes", "--ignore-missing").code == 0


def test_reuse_refuses_a_different_flavor(as_bob: Any) -> None:
    assert as_bob(*UP).code == 0
    ran = as_bob("up", "--flavor", "sim-h100-x1", "--name", "job", "--reuse")
    assert ran.code == 2 and "with flavor sim-cpu" in ran.err
    assert as_bob("up", "--reuse").code == 2
    assert Workspace.objects.count() == 1


def test_idempotency_key_creates_one_workspace(as_bob: Any) -> None:
    first, second = (as_bob(*UP, "--idempotency-key", "job-7", "--json").json["id"] for _ in range(2))
    assert first == second
    assert Workspace.objects.count() == 1


@pytest.fixture
def petra(team: Any) -> Any:
    limits.set_quota(actor=SYSTEM, team=team, resource="gpu:simulated-h100", quota=0)
    return UserFactory(username="petra", is_approver=True)


def decided(decide: Any) -> threading.Thread:
    """Decide the request that the command waits for, once it exists."""

    def run() -> None:
        try:
            decide(eventually(QuotaRequest.objects.first).pk)
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


ASKING = ("up", "--flavor", "sim-h100-x1", "--name", "job", "--ask", "A paper")


def test_approval_is_requested_and_awaited(as_bob: Any, workers: None, petra: Any) -> None:
    thread = decided(lambda pk: requests.approve(actor=petra, request_id=pk))
    ran = as_bob(*ASKING, "--ask-hours", "8", "--wait", "--timeout", "60", "--idempotency-key", "7", "--json")
    thread.join(20)
    assert (ran.code, ran.json["state"]) == (0, "running"), ran.err
    request = QuotaRequest.objects.get()
    assert (request.note, str(request.workspace_id)) == ("A paper", ran.json["id"])
    assert request.until is not None
    again = as_bob(*ASKING, "--idempotency-key", "7", "--json")
    assert again.json["id"] == ran.json["id"] and Workspace.objects.count() == 1


def test_denial_is_reported(as_bob: Any, workers: None, petra: Any) -> None:
    thread = decided(lambda pk: requests.deny(actor=petra, request_id=pk, note="Not this week"))
    ran = as_bob(*ASKING, "--wait", "--timeout", "60")
    thread.join(20)
    assert ran.code == 7 and "petra denied the request: Not this week" in ran.err


def test_up_without_wait_returns_at_once_while_approval_is_pending(as_bob: Any, petra: Any) -> None:
    ran = as_bob(*ASKING)
    assert ran.code == 0 and "job is pending (simulated), waiting for approval" in ran.err
    late = as_bob(*ASKING, "--reuse", "--wait", "--timeout", "1")
    assert late.code == 6, late.err
    assert as_bob("up", "--flavor", "sim-h100-x1", "--ask-hours", "2").code == 2


def test_approval_is_requested_for_a_stopped_workspace(
    as_bob: Any, bob: Any, team: Any, pool: Any, petra: Any
) -> None:
    flavor = selectors.all_flavors().get(slug="sim-h100-x1")
    resources = flavor.as_request()
    WorkspaceFactory(
        owner=bob, team=team, pool=pool, name="job", state=State.STOPPED, flavor=flavor, resources=resources
    )
    ran = as_bob(*ASKING, "--reuse")
    request = QuotaRequest.objects.get()
    assert ran.code == 7 and f"Approval requested ({str(request.pk)[:8]})." in ran.err
    assert request.workspace is None


def test_request_is_cancelled_after_the_timeout(as_bob: Any, petra: Any) -> None:
    assert as_bob(*ASKING, "--wait", "--timeout", "1", "--clean-up").code == 6
    assert QuotaRequest.objects.get().state == "cancelled"
    assert Workspace.objects.get().state in GOING


def test_stop_wait_has_a_timeout(as_bob: Any, bob: Any, team: Any, pool: Any) -> None:
    WorkspaceFactory(owner=bob, team=team, pool=pool, name="job", state=State.STOPPING)
    ran = as_bob("stop", "job", "--wait", "--timeout", "1")
    assert ran.code == 6 and "It is still stopping" in ran.err


def test_workspace_is_deleted_after_a_timeout(as_bob: Any) -> None:
    ran = as_bob(*UP, "--wait", "--timeout", "1", "--clean-up")
    assert ran.code == 6
    assert "job deleted." in ran.err and "It is deleted." in ran.err
    assert Workspace.objects.get().state in GOING


def test_reused_workspace_is_kept_after_a_timeout(as_bob: Any) -> None:
    assert as_bob(*UP).code == 0
    ran = as_bob(*UP, "--reuse", "--wait", "--timeout", "1", "--clean-up")
    assert ran.code == 6 and "Its start continues" in ran.err
    assert Workspace.objects.get().state == State.PROVISIONING


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_cancelled_pipeline_leaves_no_workspace(as_bob: Any, number: Any, code: int) -> None:
    def cancel() -> None:
        try:
            eventually(Workspace.objects.first)
            os.kill(os.getpid(), number)
        finally:
            connection.close()

    thread = threading.Thread(target=cancel)
    thread.start()
    ran = as_bob(*UP, "--wait", "--timeout", "120", "--clean-up")
    thread.join(20)
    assert (ran.code, "Interrupted." in ran.err) == (code, True)
    assert Workspace.objects.get().state in GOING
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_workspace_created_before_a_cancel_is_found(as_bob: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    create, asked = Workspaces.create, []

    def interrupted(self: Workspaces, **request: Any) -> Any:
        made = create(self, **request)
        asked.append(request["idempotency_key"])
        if len(asked) == 1:
            raise Terminated
        return made

    monkeypatch.setattr(Workspaces, "create", interrupted)
    assert as_bob(*UP, "--clean-up").code == 143
    assert len(set(asked)) == 1
    assert Workspace.objects.get().state in GOING


def test_failed_clean_up_prints_the_command_to_repeat(as_bob: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> None:
        raise Unreachable("It is away.")

    monkeypatch.setattr(Workspaces, "delete", away)
    monkeypatch.setattr("portal.cli.commands.CLEAN_UP_RETRY_S", 0.01)
    ran = as_bob(*UP, "--wait", "--timeout", "1", "--clean-up")
    assert ran.code == 6
    assert f"Run `berth rm {Workspace.objects.get().pk} --yes`." in ran.err


def test_exec_needs_a_command_and_a_running_workspace(as_bob: Any) -> None:
    assert as_bob(*UP).code == 0
    assert as_bob("exec", "job").code == 2
    assert as_bob("exec", "job", "--").code == 2
    ran = as_bob("exec", "job", "--", "true")
    assert ran.code == 1 and "berth start" in ran.err


@pytest.mark.parametrize(
    ("status", "page", "code", "words"),
    [
        (302, 302, 3, "workspaces:connect"),
        (403, 403, 3, "workspaces:connect"),
        # An app that answers unknown paths with an error, as marimo does.
        (401, 200, 1, "has no Jupyter"),
        (404, 404, 1, "has no Jupyter"),
        (201, 200, 1, "Jupyter"),
    ],
)
def test_exec_without_kernel_support_is_reported(
    as_bob: Any,
    bob: Any,
    team: Any,
    pool: Any,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    page: int,
    code: int,
    words: str,
) -> None:
    WorkspaceFactory(owner=bob, team=team, pool=pool, name="job", state=State.RUNNING)

    def answer(request: httpx.Request) -> httpx.Response:
        said = page if request.method == "GET" else status
        headers = {"Location": "http://portal.example/"} if said == 302 else {}
        return httpx.Response(said, json=[], headers=headers)

    transport = httpx.MockTransport(answer)
    made = Connection("http://ws-1.localhost", "berth_x", transport=transport)
    monkeypatch.setattr(Workspaces, "connect", lambda *_: made)
    ran = as_bob("exec", "job", "--", "true")
    assert (ran.code, words in ran.err) == (code, True), ran.err
