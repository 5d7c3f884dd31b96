"""Attacks on signed messages: forged, changed, replayed, forwarded, or sent by another node."""

from __future__ import annotations

import logging
import re
import time
from uuid import uuid4

import pytest

from portal.celery import app as control_app
from portal.common.events.models import Notification
from portal.embedded.clock import app as clock_app
from portal.fleet.inventory import node_messages
from portal.fleet.inventory import tasks as inventory_tasks
from portal.fleet.inventory.models import Node
from portal.workspaces import tasks as workspace_tasks
from portal.workspaces.lifecycle import State
from provisioning import messages, signing
from provisioning.errors import InvalidSpec
from provisioning.node import gpu_tasks, local_settings, preparing, tasks
from provisioning.node.worker import app as node_app
from provisioning.service.environ import ROOT
from provisioning.signed_celery import STAMP, Identity, MessageGate, SignedCelery, SignedTask
from provisioning.signing import CONTROL, LEEWAY_S, MessageRefused, Refusal, Signer, public_keys, public_text
from provisioning.types import (
    Failure,
    Inventory,
    NodeInfo,
    Observation,
    ObservedState,
    Op,
    PoolConfig,
    Result,
    WorkspaceRef,
)
from tests.senders import CONTROL_KEY, NODE_KEY, OTHER_KEY, sent_by
from tests.workspaces.helpers import taken

KEYS = {
    CONTROL: public_keys(public_text(CONTROL_KEY)),
    "node.a": public_keys(public_text(NODE_KEY)),
    "node.b": public_keys(public_text(OTHER_KEY)),
}
COMMAND = {"command": {"op": "start", "pool": {"slug": "p", "config": {"sandbox": "auto"}}, "grace_s": 1.5}}


def gate(name: str) -> MessageGate:
    """Return the gate of the control plane, or of node `name`, which knows only the control plane."""
    keys = KEYS if name == CONTROL else {CONTROL: KEYS[CONTROL]}
    return MessageGate(Identity(name, lambda: "", lambda: keys, lambda: (name,)))


def message(key=CONTROL_KEY, sender=CONTROL, to="node.a", task="node.execute", kwargs=None, at=0.0):
    """Return headers and payload as delivered by Celery."""
    kwargs = COMMAND if kwargs is None else kwargs
    stamp = Signer(sender, key).stamp(task, to, [[], kwargs], now=at or time.time())
    embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    return {"task": task, STAMP: stamp}, [[], kwargs, embed]


def reason(receiver, headers, payload, *, from_nodes=False) -> Refusal:
    with pytest.raises(MessageRefused) as refused:
        receiver.admit(headers, payload, from_nodes=from_nodes)
    return refused.value.reason


# --- messages to a node ---------------------------------------------------------------------------


def test_command_of_the_control_plane_is_accepted_once():
    node = gate("node.a")
    assert node.admit(*message(), from_nodes=False) == CONTROL
    again = message()
    assert node.admit(*again, from_nodes=False) == CONTROL
    assert reason(node, *again) is Refusal.REPEATED


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"key": OTHER_KEY}, Refusal.FORGED),
        ({"key": OTHER_KEY, "sender": "node.b"}, Refusal.UNKNOWN_SENDER),
        ({"to": "node.b"}, Refusal.NOT_FOR_US),
        ({"to": "engine"}, Refusal.NOT_FOR_US),
    ],
)
def test_command_of_or_for_another_party_is_refused(changes, expected):
    assert reason(gate("node.a"), *message(**changes)) is expected


@pytest.mark.parametrize("off_s", [-600.0, 600.0])
def test_command_with_a_wrong_time_is_refused(off_s):
    expected = Refusal.TOO_OLD if off_s < 0 else Refusal.FUTURE
    assert reason(gate("node.a"), *message(at=time.time() + off_s)) is expected
    near = message(at=time.time() + off_s / 600 * (LEEWAY_S - 30))
    assert gate("node.a").admit(*near, from_nodes=False) == CONTROL


def test_signed_content_cannot_be_changed():
    headers, payload = message()
    loosened = {"command": {**COMMAND["command"], "pool": {"slug": "p", "config": {"sandbox": "none"}}}}
    assert reason(gate("node.a"), headers, [[], loosened, payload[2]]) is Refusal.FORGED
    assert reason(gate("node.a"), headers, [["more"], COMMAND, payload[2]]) is Refusal.FORGED
    assert reason(gate("node.a"), {**headers, "task": "node.delete_home"}, payload) is Refusal.FORGED
    for field, value in (("at", time.time() + 60), ("nonce", "0" * 32), ("to", "node.a ")):
        changed = {**headers, STAMP: {**headers[STAMP], field: value}}
        assert reason(gate("node.a"), changed, payload) in {Refusal.FORGED, Refusal.NOT_FOR_US}


def test_callbacks_cannot_be_added_to_a_signed_message():
    """A worker would send a chain or callback itself, with its own signature."""
    headers, payload = message()
    for name in ("callbacks", "errbacks", "chain", "chord"):
        evil = [*payload[:2], {**payload[2], name: [{"task": "control.clean_up"}]}]
        assert reason(gate("node.a"), headers, evil) is Refusal.UNSIGNED


WHOLE = {"sender": "control", "to": "node.a", "at": 1.0, "nonce": "", "signature": ""}


@pytest.mark.parametrize(
    "stamp",
    [None, "", [], {}, {"sender": "control"}, WHOLE, *({**WHOLE, "at": at} for at in ("now", 1e300, None)),
     {**WHOLE, "signature": "é"}, {**WHOLE, "sender": "x" * 10_000}],
)  # fmt: skip
def test_missing_or_invalid_signature_is_refused(stamp):
    headers, payload = message()
    assert reason(gate("node.a"), {**headers, STAMP: stamp}, payload) in {Refusal.UNSIGNED, Refusal.FORGED}


def test_deeply_nested_arguments_are_refused():
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    headers, payload = message()
    assert reason(gate("node.a"), headers, [deep, {}, payload[2]]) is Refusal.FORGED


def test_number_of_remembered_messages_is_limited(monkeypatch):
    monkeypatch.setattr(signing, "MAX_REMEMBERED", 3)
    seen = signing.ReplayGuard()
    for number in range(10):
        seen.once(signing.MessageStamp(CONTROL, "node.a", 1.0, str(number), ""), now=1.0)
    assert len(seen._until) == 3
    seen.once(signing.MessageStamp(CONTROL, "node.a", 1.0, "9", ""), now=1.0 + 3 * LEEWAY_S)
    assert len(seen._until) == 1


def test_senders_sign_their_messages():
    """Also the beat process, which has its own application."""
    for app, name in ((control_app, signing.CONTROL), (clock_app, signing.CONTROL), (node_app, "node.")):
        assert isinstance(app, SignedCelery) and app.identity.name.startswith(name)
    made = [path for root in ("portal", "provisioning") for path in (ROOT / root).rglob("*.py")]
    plain = [str(path) for path in made if re.search(r"= Celery\(", path.read_text())]
    assert plain == []


def test_every_task_of_both_planes_checks_signatures():
    for app in (control_app, node_app):
        app.finalize()
        app.loader.import_default_modules()
        assert app.tasks
        for name, task in app.tasks.items():
            assert isinstance(task, SignedTask) and task.Strategy == SignedTask.Strategy, name


# --- messages to the control plane ----------------------------------------------------------------


def test_node_can_send_results_but_no_commands():
    answer = message(NODE_KEY, "node.a", "control", "control.apply_result", {"result": {}})
    assert gate(CONTROL).admit(*answer, from_nodes=True) == "node.a"
    # Repeated delivery: its worker may have been killed, and leases decide.
    control = gate(CONTROL)
    assert [control.admit(*answer, from_nodes=True) for _ in range(2)] == ["node.a"] * 2
    hint = message(NODE_KEY, "node.a", "control", "control.delete_homes", {})
    assert reason(gate(CONTROL), *hint) is Refusal.NOT_ALLOWED
    headers, payload = answer
    later = {**headers, "eta": "2099-01-01T00:00:00+00:00"}
    assert reason(gate(CONTROL), later, payload, from_nodes=True) is Refusal.NOT_ALLOWED


def test_node_cannot_sign_for_another_or_the_control_plane():
    for sender in ("node.b", CONTROL):
        forged = message(NODE_KEY, sender, "control", "control.apply_result", {"result": {}})
        assert reason(gate(CONTROL), *forged, from_nodes=True) is Refusal.FORGED


def test_only_result_tasks_accept_nodes():
    control_app.loader.import_default_modules()
    assert {name for name, task in control_app.tasks.items() if task.from_nodes} == {
        "control.worker_ready", "control.apply_inventory", "control.apply_samples", "control.message_refused",
        "control.apply_result", "control.apply_home_deleted", "control.apply_home_usage",
        "control.apply_observed",
        "control.apply_owned", "control.gpu_check_progress", "control.apply_gpu_check", "control.node_hello",
        "control.apply_device_errors",
        "control.apply_memory_kills", "control.apply_share_notes",
        "control.environment_progress", "control.apply_environment_build",
        "control.apply_leftovers", "control.apply_leftover_removed", "control.apply_home_move",
        "control.apply_home_archive",
    }  # fmt: skip


def failed(command) -> dict:
    failure = Failure("start_failed", "It is gone.", retryable=False, blame="user")
    return messages.dump(Result(command.op, command.ref, command.lease, failure=failure))


@pytest.mark.django_db
def test_unrequested_result_of_a_node_is_refused_and_shown(make, alice, olga, local_pool, sent, caplog):
    workspace = make(alice)
    answer = failed(taken(sent, Op.START))
    for sender in ("node.node-2", "node.", "control", ""):
        with sent_by(sender), caplog.at_level(logging.WARNING):
            workspace_tasks.apply_result.run(answer)
        workspace.refresh_from_db()
        assert workspace.state == State.PROVISIONING, sender
    assert "rejected message from node.node-2" in caplog.text
    told = Notification.objects.filter(user=olga, kind="node.message_refused")
    assert told.count() == 1, "however often, it is one notice"
    with sent_by("node.node-1"):
        workspace_tasks.apply_result.run(answer)
    workspace.refresh_from_db()
    assert workspace.state != State.PROVISIONING


def of_node(name: str) -> Inventory:
    return Inventory((NodeInfo(name, cpu_milli=1, memory_mib=5, disk_mib=5),), frozenset(), observed_at=1.0)


@pytest.mark.django_db
@pytest.mark.parametrize("sender", ["node.node-2", "node.sim-001", ""])
def test_an_inventory_for_another_pool_is_refused(local_pool, sender):
    before = Node.objects.get(pool=local_pool).cpu_milli
    seen = Inventory(
        (NodeInfo("node-1", cpu_milli=1, memory_mib=5, disk_mib=5),), frozenset(), observed_at=1.0
    )
    with sent_by(sender):
        inventory_tasks.apply_inventory.run(local_pool.slug, messages.dump(seen), None)
        inventory_tasks.apply_inventory.run(
            local_pool.slug, None, messages.dump(Failure("x", "gone", retryable=True, blame="operator"))
        )
    assert Node.objects.get(pool=local_pool).cpu_milli == before
    local_pool.refresh_from_db()
    assert local_pool.state != "unreachable"


@pytest.mark.django_db
def test_node_can_report_only_itself(local_pool):
    seen = Inventory(
        (NodeInfo("node-2", cpu_milli=1, memory_mib=5, disk_mib=5),), frozenset(), observed_at=1.0
    )
    with sent_by("node.node-1"):
        inventory_tasks.apply_inventory.run(local_pool.slug, messages.dump(seen), None)
        assert not Node.objects.filter(name="node-2").exists()
        assert node_messages.queues_of_sender(["node.node-1", "node.node-2", "engine"]) == ["node.node-1"]
        assert not node_messages.is_from_node("node-2")


@pytest.mark.django_db
def test_workspace_list_for_another_node_is_ignored(local_pool, sent):
    stray = messages.dump([Observation(WorkspaceRef(str(uuid4()), 1), ObservedState.RUNNING)])
    with sent_by("node.node-2"):
        workspace_tasks.apply_owned.run(local_pool.slug, "node-1", stray)
    assert not sent.of("node.execute")
    with sent_by("node.node-1"):
        workspace_tasks.apply_owned.run(local_pool.slug, "node-1", stray)
    assert len(sent.of("node.execute")) == 1


@pytest.mark.django_db
def test_wrong_clock_of_a_node_is_shown_to_operators(olga):
    report = {
        "claimed": "control",
        "reason": "future",
        "queue": "node.node-1",
        "task": "node.execute",
        "count": 3,
        "off_s": 600.0,
    }
    with sent_by("node.node-1"):
        for _ in range(3):
            inventory_tasks.message_refused.run(report)
        inventory_tasks.message_refused.run({**report, "off_s": "soon"})
        inventory_tasks.message_refused.run({**report, "claimed": "x" * 10_000, "reason": "forged"})
    (told,) = Notification.objects.filter(user=olga)
    assert told.title == "The clock of node-1 is wrong"
    assert "600 s" in told.body


# --- settings of the node -------------------------------------------------------------------------


def local(**config) -> PoolConfig:
    return PoolConfig("p", "local", config)


def within(config: dict, **environ: str):
    return local_settings.apply_local_settings(
        local(**config), {"BERTH_HOME": "/srv/berth", **environ}
    ).config


@pytest.mark.parametrize(
    ("config", "environ"),
    [
        ({"sandbox": "none"}, {}),
        ({"sandbox": "none"}, {"BERTH_SANDBOX": "bwrap"}),
        ({"sandbox": "off"}, {"BERTH_SANDBOX": "none"}),
        ({"home": "/root"}, {}),
        ({"homes": "/etc"}, {}),
        ({"homes": "/srv/berth/homes"}, {"BERTH_HOMES_DIR": "/data/homes"}),
        ({"environment": "/tmp/evil"}, {}),
        ({"egress_allow": "10.0.0.0/8"}, {}),
        ({"egress_allow": "169.254.169.254"}, {"BERTH_EGRESS_ALLOW": "10.0.0.0/8"}),
        ({"egress_allow": "0.0.0.0/0"}, {}),
        ({"egress": "list", "egress_allow": "8.8.8.0/24"}, {"BERTH_EGRESS": "list"}),
        ({"egress_allow": "::/0"}, {}),
    ],
)
def test_message_cannot_weaken_node_settings(config, environ):
    with pytest.raises(InvalidSpec):
        within(config, **environ)


@pytest.mark.parametrize(
    ("config", "environ", "expected"),
    [
        ({}, {}, ("auto", "open", "")),
        ({"sandbox": "bwrap", "egress": "none"}, {}, ("bwrap", "none", "")),
        ({"sandbox": "auto", "egress": "open"}, {"BERTH_SANDBOX": "bwrap", "BERTH_EGRESS": "list"},
         ("bwrap", "list", "")),
        ({"sandbox": "none"}, {"BERTH_SANDBOX": "none"}, ("none", "open", "")),
        ({"egress": "list", "egress_allow": "8.8.8.0/24"}, {}, ("auto", "list", "8.8.8.0/24")),
        ({"egress_allow": "10.1.0.0/16"}, {"BERTH_EGRESS_ALLOW": "10.0.0.0/8"},
         ("auto", "open", "10.1.0.0/16")),
        ({}, {"BERTH_EGRESS_ALLOW": "10.0.0.0/8"}, ("auto", "open", "10.0.0.0/8")),
        ({"home": "/srv/berth/"}, {}, ("auto", "open", "")),
    ],
)  # fmt: skip
def test_message_can_restrict_node_settings(config, environ, expected):
    found = within(config, **environ)
    assert (found["sandbox"], found["egress"], found["egress_allow"]) == expected
    assert (found["home"], found["homes"]) == ("/srv/berth", "/srv/berth/homes")


def test_home_folders_are_set_by_the_node(tmp_path, monkeypatch):
    monkeypatch.setenv("BERTH_HOME", str(tmp_path / "berth"))
    monkeypatch.setenv("BERTH_HOMES_DIR", str(tmp_path / "data"))
    driver = local_settings.driver_for(local())
    assert (driver.home, driver.homes) == (tmp_path / "berth", tmp_path / "data")


def test_every_node_task_uses_the_driver_with_node_settings():
    assert {module.driver_for for module in (gpu_tasks, preparing, tasks)} == {local_settings.driver_for}
