"""Attack: a workspace or node reports infinite numbers, wrong types or unstorable texts."""

from __future__ import annotations

import json
import logging

import pytest
from django.test import Client

from portal.fleet.inventory import tasks as inventory_tasks
from portal.fleet.inventory.models import Node
from portal.workspaces import reports
from portal.workspaces import tasks as workspace_tasks
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.tokens import agent_token
from provisioning import messages
from provisioning.node import tasks as node_tasks
from provisioning.types import Inventory, NodeInfo, Observation, ObservedState, Op, Result
from tests import sites
from tests.senders import sent_by
from tests.workspaces.helpers import taken

pytestmark = pytest.mark.django_db
WORLD = sites.running_workspace
DEEP = "[" * 20_000 + "]" * 20_000

FORGED_FIGURES = {
    "negative": '{"connections": -1, "processes": -5, "rss_mib": -7, "cpu_seconds": -0.1}',
    "huge": '{"rss_mib": 9223372036854775807, "processes": 9000000000, "cpu_seconds": 1e300}',
    "wrong types": '{"rss_mib": "much", "processes": true, "kernels": 3, "gpus": {"a": 1}}',
    "lists": '{"connections": [1]}',
    "fractions": '{"rss_mib": 1.5, "processes": 0.1}',
    "thousands of kernels": json.dumps({"kernels": [{"id": str(number)} for number in range(5000)]}),
    "thousands of GPUs": json.dumps({"gpus": [{"uuid": "GPU-1"}] * 2000}),
    "kernels beyond number": '{"kernels": {"count": 99999999999, "busy": -3}}',
    "times": '{"kernels": {"count": 1, "last_activity": "<b>"}, "terminals": {"last_activity": 5}}',
    "long texts": json.dumps(
        {"gpus": [{"uuid": "G" * 100_000}], "kernels": {"count": 1, "last_activity": "9" * 9999}}
    ),
    "control characters": json.dumps({"gpus": [{"uuid": "\x1b]0;x\x07\x00"}]}),
    "per cent": '{"gpus": [{"uuid": "GPU-1", "utilization_percent": 100000}]}',
    "own fields": '{"a": {"b": [1, 2, 3]}, "\\u0000": 1}',
}
"""Each is an activity that says nothing that can be so."""

NO_REPORTS = {
    "beyond all numbers": '{"activity": {"rss_mib": 1e999}}',
    "not a number": '{"activity": {"rss_mib": NaN}}',
    "minus infinity": '{"activity": {"rss_mib": -Infinity}}',
    "ten thousand digits": '{"activity": {"rss_mib": %s}}' % ("9" * 10_000),
    "four thousand digits": '{"activity": {"rss_mib": %s}}' % ("9" * 4_000),
    "65 bits": '{"activity": {"rss_mib": 9223372036854775808}}',
    "twenty thousand levels": '{"activity": ' + DEEP + "}",
    "hundred levels": '{"activity": {"x": %s}}' % ("[" * 100 + "]" * 100),
    "activity is a list": '{"activity": [1]}',
}


@pytest.fixture
def running(clock, shared_site) -> Workspace:
    return shared_site.workspace


def post(workspace: Workspace, report: str, raw: str):
    token = agent_token(workspace.pk, workspace.generation)
    client = Client(headers={"Authorization": f"Bearer {token}"})
    return client.post(f"/agent/v1/{report}", raw.encode(), content_type="application/json")


def assert_still_shown(workspace: Workspace, user, as_user) -> None:
    """Assert that page, list and REST still work, and that stored values are plain JSON."""
    browser = as_user(user)
    assert browser.get(f"/workspaces/{workspace.pk}/").status_code == 200
    assert browser.get("/").status_code == 200
    assert browser.get("/api/v1/workspaces").status_code == 200
    answered = browser.get(f"/api/v1/workspaces/{workspace.pk}")
    assert answered.status_code == 200
    json.loads(answered.content, parse_constant=pytest.fail)


@pytest.mark.parametrize("activity", FORGED_FIGURES.values(), ids=FORGED_FIGURES)
def test_implausible_figure_counts_as_not_measured(running, alice, as_user, activity):
    assert post(running, "heartbeat", '{"activity": ' + activity + "}").status_code == 200
    running.status.refresh_from_db()
    kept = running.status.activity
    assert kept.keys() == reports.FIGURES.keys() - reports.LEFT_OUT
    assert not any(kept.values()), kept
    assert_still_shown(running, alice, as_user)


@pytest.mark.parametrize("traffic", ["-1", "9223372036854775807", '"much"', "true", "1.5", "null"])
def test_implausible_traffic_is_stored_as_not_measured(running, traffic):
    assert post(running, "heartbeat", f'{{"activity": {{"traffic_bytes": {traffic}}}}}').status_code == 200
    running.status.refresh_from_db()
    assert running.status.activity["traffic_bytes"] is None


@pytest.mark.parametrize(
    "told",
    [
        '{"tokens": -1}', '{"tokens": 0}', '{"tokens": 1e16}', '{"tokens": "5"}', '{"tokens": null}',
        '{"tokens": true}', '{"tokens": [5]}', '{"Tokens": 5}', '{"": 5}', '{"a b": 5}', '{"tokens\\n": 5}',
        '{"<b>": 5}', f'{{"{"a" * 31}": 5}}', '{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}', "[5]", "5",
    ],
)  # fmt: skip
def test_implausible_progress_is_stored_as_unknown(running, told):
    body = f'{{"activity": {{"jobs": 3, "progress": {told}}}}}'
    assert post(running, "heartbeat", body).status_code == 200
    running.status.refresh_from_db()
    assert (running.status.activity["progress"], running.status.activity["jobs"]) == (None, 3)


def test_unbounded_progress_rate_is_refused(running):
    for rate in ("1e999", "NaN", "Infinity"):
        body = f'{{"activity": {{"progress": {{"tokens": {rate}}}}}}}'
        assert post(running, "heartbeat", body).status_code == 400


@pytest.mark.parametrize("raw", NO_REPORTS.values(), ids=NO_REPORTS)
def test_invalid_report_is_dropped_completely(running, alice, as_user, raw):
    before = running.status.activity
    answered = post(running, "heartbeat", raw)
    assert answered.status_code == 400
    assert answered["Content-Type"] == "application/problem+json"
    running.status.refresh_from_db()
    assert running.status.activity == before
    assert_still_shown(running, alice, as_user)


def test_invalid_figure_does_not_affect_others(running, clock):
    raw = '{"activity": {"rss_mib": -1, "processes": 4, "kernels": {"count": 2, "busy": 1}}}'
    assert post(running, "heartbeat", raw).status_code == 200
    running.status.refresh_from_db()
    assert running.status.activity["processes"] == 4
    assert running.status.activity["kernels"] == {"count": 2, "busy": 1, "last_activity": None}
    assert running.status.activity["rss_mib"] is None


def test_many_forged_figures_make_one_log_line(running, caplog):
    reports._logged.clear()
    with caplog.at_level(logging.WARNING, logger="portal.workspaces.reports"):
        for _ in range(20):
            post(running, "heartbeat", '{"activity": {"rss_mib": -1}}')
    assert len([line for line in caplog.records if "ignored invalid figures" in line.getMessage()]) == 1


@pytest.mark.parametrize("code", ["1e999", "99999999999", '"3"', "true", "[]", "1.5"])
def test_impossible_exit_code_is_refused(running, code):
    assert post(running, "exited", '{"exit_code": ' + code + "}").status_code == 400
    running.refresh_from_db()
    assert running.state == State.RUNNING


@pytest.mark.parametrize(
    "forged",
    [
        {"exit_code": 10**30},
        {"endpoint": "http://127.0.0.1:1/" + "x" * 300},
        {"endpoint": 5},
        {"state": "marvellous"},
        {"log_tail": "x" * 1_000_000},
        {"message": ["x"]},
    ],
    ids=lambda forged: next(iter(forged)),
)
def test_invalid_result_of_a_node_is_dropped(clock, make, alice, local_pool, sent, forged, caplog):
    workspace = make(alice)
    command = taken(sent, Op.START)
    good = messages.dump(
        Result(command.op, command.ref, command.lease, Observation(command.ref, ObservedState.FAILED))
    )
    with sent_by("node.node-1"):
        workspace_tasks.apply_result.run({**good, "observation": {**good["observation"], **forged}})
    workspace.refresh_from_db()
    assert workspace.state == State.PROVISIONING
    assert "ignored message from" in caplog.text


def test_deeply_nested_result_is_dropped(make, alice, local_pool, sent):
    workspace = make(alice)
    command = taken(sent, Op.START)
    deep: list[object] = []
    for _ in range(20_000):
        deep = [deep]
    good = messages.dump(Result(command.op, command.ref, command.lease))
    with sent_by("node.node-1"):
        workspace_tasks.apply_result.run({**good, "observation": deep})
    workspace.refresh_from_db()
    assert workspace.state == State.PROVISIONING


@pytest.mark.parametrize(
    "forged",
    [
        {"cpu_milli": -1},
        {"memory_mib": 10**30},
        {"disk_mib": float("inf")},
        {"name": "x" * 500},
        {"driver_version": "5" * 41},
        {"devices": [{"uuid": "G" * 200, "index": 0, "model": "H100", "memory_mib": 1}]},
        {"devices": [{"uuid": "GPU-1", "index": -3, "model": "H100", "memory_mib": 1}]},
        {"warnings": ["x"] * 10_000},
    ],
    ids=lambda forged: next(iter(forged)),
)
def test_invalid_inventory_is_dropped(local_pool, forged, caplog):
    node = Node.objects.get(pool=local_pool)
    good = messages.dump(
        Inventory((NodeInfo(node.name, cpu_milli=5, memory_mib=5, disk_mib=5),), frozenset(), observed_at=1.0)
    )
    good["nodes"][0].update(forged)
    with sent_by("node.node-1"):
        inventory_tasks.apply_inventory.run(local_pool.slug, good, None)
    after = Node.objects.get(pool=local_pool)
    assert (after.cpu_milli, after.memory_mib, after.disk_mib) == (
        node.cpu_milli,
        node.memory_mib,
        node.disk_mib,
    )
    assert "ignored message from" in caplog.text


def test_unstorable_characters_in_node_texts_are_removed(local_pool):
    node = Node.objects.get(pool=local_pool)
    info = NodeInfo(node.name, cpu_milli=5, memory_mib=5, disk_mib=5, accelerator_note="a\x00b\ud800")
    seen = messages.dump(Inventory((info,), frozenset(), observed_at=1.0))
    with sent_by("node.node-1"):
        inventory_tasks.apply_inventory.run(local_pool.slug, seen, None)
    assert Node.objects.get(pool=local_pool).accelerator_note == "ab?"


def test_app_writing_without_line_breaks_still_ends(make, alice, local_pool, sent, monkeypatch):
    make(alice)
    command = taken(sent, Op.START)
    seen = Observation(command.ref, ObservedState.FAILED, log_tail="x" * 2_000_000 + "end")
    monkeypatch.setattr(node_tasks, "_call", lambda _command: seen)
    result = messages.receive(messages.dump(node_tasks.run(command, now=0.0)), Result)
    assert result.observation is not None
    assert result.observation.log_tail.endswith("xend")
