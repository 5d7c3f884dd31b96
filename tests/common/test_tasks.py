"""Both Celery planes agree: each sent message has a task on the other side."""

from __future__ import annotations

import inspect
import json
from types import SimpleNamespace

import pytest
import redis

from portal.celery import app as control
from portal.common.errors import Unavailable
from portal.embedded.clock import SCHEDULE
from portal.fleet.inventory import polling
from portal.fleet.inventory.models import Pool
from portal.workspaces import housekeeping, results, services
from provisioning import messages
from provisioning.node.tasks import run
from provisioning.node.worker import announce
from provisioning.node.worker import app as node
from provisioning.types import (
    Command,
    Failure,
    Inventory,
    Observation,
    ObservedState,
    Op,
    PoolConfig,
    Result,
    WorkspaceRef,
)
from tests.factories import inventory_of, node_info
from tests.workspaces.helpers import seen

REF = WorkspaceRef("00000000-0000-0000-0000-000000000001", 1)
POOL = PoolConfig("p", "simulated", {"nodes": 1})


def test_every_entry_of_the_schedule_is_a_task():
    control.loader.import_default_modules()
    control.finalize(auto=True)
    for name, entry in SCHEDULE.items():
        assert entry["task"] in control.tasks, name
        task = control.tasks[entry["task"]]
        inspect.signature(task.run).bind(**entry.get("kwargs", {}))
        assert entry["schedule"] > 0


def test_task_names_have_the_prefix_of_their_plane():
    for app in (control, node):
        for name, task in app.tasks.items():
            if not name.startswith("celery."):
                plane = "control." if type(task).__module__.startswith("portal.") else "node."
                assert name.startswith(plane)
    assert {"control.sweep", "control.apply_result"} <= set(control.tasks)
    assert {"node.execute", "node.inventory", "node.list_owned", "node.read_logs"} <= set(node.tasks)


def test_both_planes_are_safe_against_lost_workers():
    for app in (control, node):
        assert app.conf.task_acks_late
        assert app.conf.task_ignore_result
        assert app.conf.accept_content == ["json"]
        assert 0 < app.conf.task_soft_time_limit < app.conf.task_time_limit


@pytest.mark.django_db
def test_every_sent_message_matches_the_signature_of_its_task(
    make, alice, pool, local_pool, sent, clock, monkeypatch
):
    """A full lifecycle with all messages of both planes."""
    monkeypatch.setattr("redis.Redis.from_url", _no_redis)
    workspace = make(alice, "sim-cpu")
    sent_tasks = set()

    def deliver_all() -> None:
        while len(sent):
            for message in sent.take():
                app = control if message.task.startswith("control.") else node
                signature = inspect.signature(app.tasks[message.task].run)
                signature.bind(**message.kwargs)
                sent_tasks.add(message.task)
                json.dumps(message.kwargs)
                if message.task != "node.read_logs":
                    sent.deliver(message)

    deliver_all()
    Pool.objects.update(inventory_due_at=None)
    polling.refresh_due()
    housekeeping.ask_for_owned()
    local = make(alice)
    run_until_ready_of(local, sent)
    with pytest.raises(Unavailable):
        services.read_logs(workspace=local)
    services.stop(actor=alice, workspace_id=local.pk)
    announce(SimpleNamespace(task_consumer=SimpleNamespace(queues=["engine", "node.elsewhere"])))
    services.delete(actor=alice, workspace_id=workspace.pk)
    sent.messages = [message for message in sent if message.queue != "node.node-1"] + _checked(sent)
    deliver_all()
    assert sent_tasks >= {
        "node.execute",
        "node.inventory",
        "node.list_owned",
        "control.apply_result",
        "control.apply_inventory",
        "control.apply_owned",
        "control.worker_ready",
    }


def _no_redis(*_: object, **__: object) -> object:
    raise redis.ConnectionError("none here")


def run_until_ready_of(workspace, sent) -> None:
    own = [message for message in sent.of("node.execute") if message.queue == "node.node-1"]
    for message in own:
        sent.messages.remove(message)
        results.apply_result(seen(message.command, "running", ready=True))


def _checked(sent) -> list:
    """Check messages to the real node without running a local driver."""
    for message in sent:
        if message.queue == "node.node-1":
            inspect.signature(node.tasks[message.task].run).bind(**message.kwargs)
    return []


# --- messages -------------------------------------------------------------------------------------

VALUES = [
    POOL,
    REF,
    Observation(REF, ObservedState.FAILED, exit_code=3, log_tail="x", code="c", message="m"),
    Failure("code", "message", retryable=True, blame="user"),
    Result(Op.STOP, REF, "lease", observation=Observation(REF, ObservedState.ABSENT)),
    Result(Op.START, REF, "lease", failure=Failure("c", "m", retryable=False, blame="backend")),
    Command(Op.DELETE, POOL, REF, "lease", 1.5),
    inventory_of(node_info(gpus=2, warnings=("w",))),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_round_trip_through_json(value):
    assert messages.load(json.loads(json.dumps(messages.dump(value))), type(value)) == value


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        ({}, WorkspaceRef, "workspace_id"),
        ({"workspace_id": "x", "generation": "two"}, WorkspaceRef, "generation"),
        ({"op": "explode"}, Command, "op"),
        ([], Inventory, "Inventory"),
        (None, Result, "Result"),
    ],
)
def test_invalid_message_is_refused_with_its_field(data, kind, words):
    with pytest.raises(ValueError, match=words):
        messages.load(data, kind)


# --- the node plane's one entry -------------------------------------------------------------------


def test_every_outcome_of_a_command_is_a_result(tmp_path):
    good = PoolConfig("p", "simulated", {"state": str(tmp_path)})
    for command, code in (
        (Command(Op.OBSERVE, good, REF, "l", 10.0), ""),
        (Command(Op.OBSERVE, good, REF, "l", 4.0), "stale"),
        (Command(Op.OBSERVE, PoolConfig("p", "nonsense"), REF, "l", 10.0), "unknown_driver"),
        (Command(Op.OBSERVE, PoolConfig("p", "simulated", {"x": 1}), REF, "l", 10.0), "invalid_config"),
        (Command(Op.START, good, REF, "l", 10.0), "backend_unavailable"),
    ):
        result = run(command, now=5.0)
        assert (result.op, result.ref, result.lease) == (command.op, REF, "l")
        if code:
            assert result.observation is None
            assert result.failure.code == code
            assert result.failure.message
        else:
            assert result.failure is None
            assert result.observation.state is ObservedState.ABSENT
