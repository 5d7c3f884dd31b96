"""The HTTP API of agents: authentication, refusals and effects of reports."""

from __future__ import annotations

import json
import uuid

import pytest
from django.test import Client
from django.utils import timezone

from portal.common.events.models import Event
from portal.workspaces import reports, results, services
from portal.workspaces.lifecycle import HOLDING, State
from portal.workspaces.models import Workspace
from portal.workspaces.tokens import agent_token, app_token
from provisioning.types import Op
from tests import sites
from tests.factories import make_token
from tests.rows import error_message
from tests.sweeps import sweep
from tests.workspaces.helpers import active, answer, endpoint_of, run_until_ready, seen, taken

pytestmark = pytest.mark.django_db
WORLD = sites.one_workspace
REPORTS = ["ready", "heartbeat", "exited"]


@pytest.fixture
def workspace(clock, sent, shared_site) -> Workspace:
    sent.messages += shared_site.messages
    return shared_site.workspace


def post(report: str, body: object = None, *, token: str = "", raw: bytes | None = None, **headers: str):
    data = raw if raw is not None else json.dumps(body if body is not None else {}).encode()
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return Client(headers=headers).post(f"/agent/v1/{report}", data, content_type="application/json")


def token_of(workspace: Workspace, generation: int | None = None) -> str:
    return agent_token(workspace.pk, workspace.generation if generation is None else generation)


# --- authentication -------------------------------------------------------------------------------


@pytest.mark.parametrize("report", REPORTS)
def test_requests_without_a_genuine_token_are_refused(workspace, report, alice, with_token):
    genuine = token_of(workspace)
    other = Workspace(pk=uuid.uuid4(), generation=1)
    name, generation, mac = genuine.split(".")
    for token in (
        "",
        "x",
        "a.b.c",
        f"{name}.{generation}",
        f"{genuine}.x",
        f"{name}.{generation}.{mac[:-1]}",
        f"{name}.2.{mac}",
        f"{other.pk}.1.{mac}",
        f"{name}.{generation}.{app_token(workspace.pk, 1)}",
        f"{name.replace('-', '')}.{generation}.{mac}x",
        f"{name}. {generation}.{mac} y",
        app_token(workspace.pk, workspace.generation),
        make_token(alice)[1],
    ):
        answered = post(report, {"endpoint": endpoint_of(workspace)}, token=token)
        assert answered.status_code == 401, token
        assert answered["Content-Type"] == "application/problem+json"
        assert answered.json()["code"] == "bad_agent_token"
    assert Client().post(f"/agent/v1/{report}", HTTP_AUTHORIZATION=f"Basic {genuine}").status_code == 401
    workspace.refresh_from_db()
    assert workspace.state == State.PROVISIONING


@pytest.mark.parametrize("report", REPORTS)
def test_genuine_token_of_an_unknown_workspace_is_revoked(db, report):
    assert post(report, {}, token=agent_token(uuid.uuid4(), 1)).status_code == 410


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("state", [state for state in State if state not in HOLDING])
def test_ended_generation_is_refused(workspace, report, state):
    token = token_of(workspace)
    Workspace.objects.filter(pk=workspace.pk).update(state=state)
    assert post(report, {"endpoint": endpoint_of(workspace)}, token=token).status_code == 410
    workspace.refresh_from_db()
    assert workspace.state == state


@pytest.mark.parametrize("report", REPORTS)
def test_earlier_generation_is_refused(workspace, report):
    Workspace.objects.filter(pk=workspace.pk).update(generation=2)
    assert post(report, {"endpoint": endpoint_of(workspace)}, token=token_of(workspace, 1)).status_code == 410
    workspace.refresh_from_db()
    assert workspace.state == State.PROVISIONING


@pytest.mark.parametrize("report", REPORTS)
def test_get_requests_are_refused(report, db):
    assert Client().get(f"/agent/v1/{report}").status_code == 405


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"activity": {"cpu": NaN}, "endpoint": NaN, "exit_code": Infinity}',
    ],
    ids=["cut", "list", "text", "not-utf8", "deep", "nan"],
)
def test_invalid_report_is_refused(workspace, report, raw):
    answered = post(report, raw=raw, token=token_of(workspace))
    assert answered.status_code == 400
    assert answered["Content-Type"] == "application/problem+json"
    workspace.refresh_from_db()
    assert workspace.state == State.PROVISIONING


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_that_is_too_large_is_refused(workspace, report):
    assert post(report, {"x": "y" * 300_000}, token=token_of(workspace)).status_code == 413


@pytest.mark.parametrize(
    "endpoint",
    [
        5,
        "x" * 300,
        "127.0.0.1:18001",
        "ftp://127.0.0.1:1",
        "http://user:secret@127.0.0.1:1",
        "http://127.0.0.1:1/path",
        "http://127.0.0.1:1\r\nX: y",
        "http://127.0.0.1:99999",
        "javascript:alert(1)",
    ],
)
def test_invalid_endpoint_is_refused(workspace, endpoint):
    assert post("ready", {"endpoint": endpoint}, token=token_of(workspace)).status_code == 400
    workspace.refresh_from_db()
    assert workspace.state == State.PROVISIONING


@pytest.mark.parametrize("code", ["three", [], {}, 1e400])
def test_invalid_exit_code_is_refused(workspace, code):
    raw = json.dumps({"exit_code": code}).encode()
    status = post("exited", raw=raw, token=token_of(workspace)).status_code
    assert status == 400


# --- ready ----------------------------------------------------------------------------------------


def test_ready_after_the_start_result(workspace, sent):
    answer(sent, Op.START, "starting", endpoint=endpoint_of(workspace))
    assert post("ready", {"endpoint": endpoint_of(workspace)}, token=token_of(workspace)).status_code == 204
    workspace.refresh_from_db()
    assert workspace.state == State.RUNNING
    assert workspace.endpoint == endpoint_of(workspace)
    assert workspace.ready_at is not None


def test_ready_before_the_start_result(workspace, sent):
    command = taken(sent, Op.START)
    assert post("ready", {"endpoint": endpoint_of(workspace)}, token=token_of(workspace)).status_code == 204
    workspace.refresh_from_db()
    assert workspace.state == State.RUNNING
    since = workspace.state_since
    # The result arrives late and has the earlier state.
    assert results.apply_result(seen(command, "starting", endpoint=endpoint_of(workspace))) is True
    workspace.refresh_from_db()
    assert (workspace.state, workspace.state_since, workspace.lease) == (State.RUNNING, since, "")
    assert workspace.endpoint == endpoint_of(workspace)
    assert len(sent) == 0


def test_ready_without_a_start_result(workspace, sent, clock):

    taken(sent, Op.START)
    post("ready", {"endpoint": endpoint_of(workspace)}, token=token_of(workspace))
    clock.shift(46)
    sweep()
    assert answer(sent, Op.OBSERVE, "running", ready=True)
    workspace.refresh_from_db()
    assert workspace.state == State.RUNNING


def test_ready_reported_twice_is_idempotent(workspace, sent):
    token = token_of(workspace)
    for _ in range(2):
        assert post("ready", {"endpoint": endpoint_of(workspace)}, token=token).status_code == 204
    assert Event.objects.filter(workspace=workspace, kind="workspace.ready").count() == 1


def test_ready_report_does_not_revive_a_stopping_workspace(workspace, alice, sent):
    answer(sent, Op.START, "starting")
    services.stop(actor=alice, workspace_id=workspace.pk)
    assert post("ready", {"endpoint": endpoint_of(workspace)}, token=token_of(workspace)).status_code == 204
    workspace.refresh_from_db()
    assert workspace.state == State.STOPPING


# --- heartbeat ------------------------------------------------------------------------------------


def test_heartbeat_is_stored_and_answered_with_the_next_interval(workspace, sent, settings):
    run_until_ready(sent, workspace)
    activity = {
        "kernels": {"count": 2, "busy": 1, "last_activity": "2026-03-01T12:00:00.5Z"},
        "terminals": {"count": 0, "last_activity": None},
        "connections": 4,
        "cpu_seconds": 12.5,
        "rss_mib": 900,
        "processes": 5,
        "jobs": 1,
        "jobs_cpu_seconds": 3.25,
        "jobs_io_bytes": 40_000,
        "kernels_cpu_seconds": 9.0,
        "kernels_io_bytes": 2_000_000,
        "jobs_unused_servers": 1,
        "monitors_cpu_seconds": 0.5,
        "editor_cpu_seconds": 2.25,
        "edited_at": "2026-03-01T12:00:00Z",
        "gpus_stale_s": None,
        "traffic_bytes": 1_234_567,
        "progress": {"tokens": 812.5, "steps": 3.0},
        "gpus": [
            {
                "uuid": "GPU-1",
                "utilization_percent": 93,
                "memory_used_mib": 5,
                "memory_total_mib": None,
            }
        ],
    }
    answered = post("heartbeat", {"activity": activity}, token=token_of(workspace))
    assert (answered.status_code, answered.json()) == (200, {"next_s": settings.HEARTBEAT_S})
    workspace.refresh_from_db()
    assert workspace.status.activity == activity
    assert workspace.status.heartbeat_at == timezone.now()


def test_unknown_heartbeat_fields_are_dropped(workspace, sent):
    run_until_ready(sent, workspace)
    raw = b'{"activity": {"title\\u0000": ["a\\u0000b", {"x": "\\ud800"}], "rss_mib": 7}}'
    assert post("heartbeat", raw=raw, token=token_of(workspace)).status_code == 200
    workspace.refresh_from_db()
    assert workspace.status.activity == {
        **dict.fromkeys(reports.FIGURES.keys() - reports.LEFT_OUT),
        "rss_mib": 7,
    }


@pytest.mark.parametrize("activity", [5, "busy", [1]])
def test_activity_must_be_an_object(workspace, activity):
    assert post("heartbeat", {"activity": activity}, token=token_of(workspace)).status_code == 400


def test_heartbeat_takes_one_query(workspace, sent, django_assert_num_queries):
    run_until_ready(sent, workspace)
    token = token_of(workspace)
    with django_assert_num_queries(1):
        post("heartbeat", {"activity": {}}, token=token)


# --- exited ---------------------------------------------------------------------------------------


def test_exited_app_is_observed_and_fails(workspace, sent):
    run_until_ready(sent, workspace)
    body = {"exit_code": 3, "log_tail": "Traceback …\x00"}
    assert post("exited", body, token=token_of(workspace)).status_code == 204
    assert answer(sent, Op.OBSERVE, "failed", exit_code=3)
    workspace.refresh_from_db()
    assert (workspace.state, workspace.termination_reason) == (State.TERMINATING, "app_exited")
    assert workspace.status.log_tail == "Traceback …"
    assert "exit code 3" in error_message(workspace)
    assert answer(sent, Op.DELETE, "absent")
    workspace.refresh_from_db()
    assert workspace.state == State.FAILED
    assert not active(workspace)


def test_exit_before_the_start_result_waits_for_it(workspace, sent):
    command = taken(sent, Op.START)
    assert post("exited", {"exit_code": 3, "log_tail": "boom"}, token=token_of(workspace)).status_code == 204
    assert len(sent) == 0
    results.apply_result(seen(command, "failed", exit_code=3))
    workspace.refresh_from_db()
    assert workspace.state == State.TERMINATING
    assert workspace.status.log_tail == "boom"


def test_exit_reported_twice_is_observed_once(workspace, sent):
    run_until_ready(sent, workspace)
    token = token_of(workspace)
    for _ in range(2):
        assert post("exited", {"exit_code": 0}, token=token).status_code == 204
    assert len(sent.commands) == 1


def test_exit_report_while_stopping_adds_no_event(workspace, alice, sent):
    run_until_ready(sent, workspace)
    services.stop(actor=alice, workspace_id=workspace.pk)
    assert post("exited", {"exit_code": 0, "log_tail": "bye"}, token=token_of(workspace)).status_code == 204
    workspace.refresh_from_db()
    assert (workspace.state, workspace.status.log_tail) == (State.STOPPING, "")


def test_the_log_is_cut_to_its_end(workspace, sent):
    run_until_ready(sent, workspace)
    post("exited", {"exit_code": 1, "log_tail": "a" * 30_000 + "end"}, token=token_of(workspace))
    workspace.refresh_from_db()
    assert len(workspace.status.log_tail) == 20_000
    assert workspace.status.log_tail.endswith("end")
