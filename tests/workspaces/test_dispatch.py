"""Commands to the node plane: content, routing, and behaviour without Redis."""

from __future__ import annotations

import json

import pytest
import redis
from django.db import transaction
from django.utils import timezone

from portal.catalog import selectors
from portal.catalog.models import Flavor
from portal.common import rate_limits
from portal.common.errors import Unavailable
from portal.common.events import live
from portal.workspaces import dispatch, services
from portal.workspaces.lifecycle import State
from provisioning import messages
from provisioning.types import Command, Op
from tests.factories import WorkspaceFactory, create_workspace, local_pool_with, node_info
from tests.senders import NODE_KEY, OTHER_KEY, sealed, trust
from tests.sweeps import sweep
from tests.workspaces.helpers import active, answer, run_until_ready, taken

pytestmark = pytest.mark.django_db


def test_command_is_sent_later_if_redis_is_unavailable(make, alice, local_pool, sent, clock):
    sent.away = True
    workspace = make(alice)
    assert workspace.state == State.PROVISIONING
    assert len(active(workspace)) == 1
    assert workspace.next_reconcile_at == workspace.lease_expires_at
    sent.away = False
    clock.shift(21)
    sweep()
    command = taken(sent, Op.START)
    assert command.ref.generation == 1


def test_stop_and_delete_work_without_redis(make, alice, local_pool, sent, clock):
    workspace = make(alice)
    run_until_ready(sent, workspace)
    sent.away = True
    services.stop(actor=alice, workspace_id=workspace.pk)
    workspace.refresh_from_db()
    assert workspace.state == State.STOPPING
    sent.away = False
    clock.shift(21)
    sweep()
    assert answer(sent, Op.STOP, "stopped")


def test_changes_succeed_without_redis_for_hints_and_gateway(make, alice, local_pool, caplog):
    make(alice)
    assert "could not send live hint" in caplog.text
    assert "could not update gateway" in caplog.text


def test_command_survives_json_serialization(make, alice, pool, sent):
    make(alice, "sim-h100-x2")
    raw = sent.of("node.execute")[0].kwargs["command"]
    command = messages.load(json.loads(json.dumps(raw)), Command)
    assert json.loads(json.dumps(messages.dump(command))) == raw
    (part,) = command.placement.nodes
    assert len(part.devices) == 2
    assert {grant.milli for grant in part.devices} == {1000}
    assert command.spec.resources.accelerators.count == 2
    assert command.pool.driver == "simulated"


def test_commands_of_a_local_pool_go_to_the_node_of_the_workspace(alice, team, catalog, sent):
    local_pool_with(node_info("alpha", cpu_milli=600), node_info("beta"))
    workspace = create_workspace(
        actor=alice,
        team=team,
        template=selectors.all_templates().get(slug="jupyterlab"),
        flavor=selectors.all_flavors().get(slug="cpu-large"),
    )
    assert [message.queue for message in sent.of("node.execute")] == ["node.beta"]
    run_until_ready(sent, workspace)
    services.stop(actor=alice, workspace_id=workspace.pk)
    assert [message.queue for message in sent.of("node.execute")] == ["node.beta"]
    answer(sent, Op.STOP, "stopped")
    services.delete(actor=alice, workspace_id=workspace.pk)
    # It has no allocation; its remains are on its last node.
    assert [message.queue for message in sent.of("node.execute")] == ["node.beta"]


def test_commands_of_an_engine_go_to_the_engine_queue(make, alice, pool, sent):
    make(alice, "sim-cpu")
    assert [message.queue for message in sent.of("node.execute")] == ["engine"]


def test_only_start_commands_contain_secrets(make, alice, local_pool, sent):
    workspace = make(alice)
    run_until_ready(sent, workspace)
    services.stop(actor=alice, workspace_id=workspace.pk)
    command = sent.commands[0]
    assert command.op is Op.STOP
    assert (command.spec, command.placement) == (None, None)


def test_rolled_back_transaction_sends_no_command(make, alice, local_pool, sent):
    class Stop(Exception):
        pass

    with pytest.raises(Stop), transaction.atomic():
        make(alice)
        raise Stop
    assert len(sent) == 0


def test_workspace_without_a_pool_gets_no_commands(db, sent):
    with pytest.raises(ValueError, match="no pool"):
        dispatch.send(WorkspaceFactory(state=State.PENDING), Op.START)
    assert len(sent) == 0


def test_catalog_changes_do_not_affect_running_workspaces(make, alice, local_pool, sent, clock):
    workspace = make(alice)
    before = taken(sent, Op.START)
    Flavor.objects.filter(slug="cpu-small").update(cpu_milli=7000)
    clock.shift(21)
    sweep()
    again = taken(sent, Op.START)
    assert again.spec.resources == before.spec.resources
    assert active(workspace)[0].cpu_milli == before.spec.resources.cpu_milli


class Answering:
    """A Redis with one reply for each reader."""

    replies: list[dict[str, str]] = []
    by = {"name": "node-1", "private": NODE_KEY}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def blpop(self, keys, timeout):
        assert keys[0].startswith("berth:reply:node.node-1:logs:")
        if not self.replies:
            return None
        return keys[0].encode(), sealed(self.replies.pop(0), key=keys[0], **self.by)


@pytest.fixture
def replies(monkeypatch, settings, tmp_path):
    settings.BERTH_NODE_KEYS_DIR = tmp_path / "keys"
    trust(tmp_path / "keys", "node-1", NODE_KEY)
    trust(tmp_path / "keys", "node-2", OTHER_KEY)
    Answering.replies = []
    rate_limits.connection()  # The process caches its client, which must not be this one.
    monkeypatch.setattr(redis.Redis, "from_url", lambda *_, **__: Answering())
    return Answering.replies


def test_logs_are_requested_from_the_node(make, alice, local_pool, sent, replies):
    workspace = make(alice)
    run_until_ready(sent, workspace)
    replies.append({"text": "line 1\nline 2"})
    assert services.read_logs(workspace=workspace, tail_lines=7) == "line 1\nline 2"
    (message,) = sent.of("node.read_logs")
    assert message.queue == "node.node-1"
    assert message.kwargs["tail_lines"] == 7
    assert message.kwargs["ref"] == {"workspace_id": str(workspace.pk), "generation": 1}


def test_log_read_error_of_the_node_is_shown(make, alice, local_pool, sent, replies):
    workspace = make(alice)
    run_until_ready(sent, workspace)
    replies.append({"error": "The disk is gone."})
    with pytest.raises(Unavailable, match="The disk is gone"):
        services.read_logs(workspace=workspace)


@pytest.mark.parametrize(
    ("name", "private"), [("node-2", OTHER_KEY), ("node-1", OTHER_KEY), ("node-3", NODE_KEY)]
)
def test_log_answer_of_another_node_is_rejected(
    make, alice, local_pool, sent, replies, monkeypatch, name, private
):
    workspace = make(alice)
    run_until_ready(sent, workspace)
    monkeypatch.setattr(Answering, "by", {"name": name, "private": private})
    replies.append({"text": "Type your password here."})
    with pytest.raises(Unavailable):
        services.read_logs(workspace=workspace)


def test_silent_node_gives_a_retryable_log_error(make, alice, local_pool, sent, replies):
    workspace = make(alice)
    run_until_ready(sent, workspace)
    with pytest.raises(Unavailable) as refused:
        services.read_logs(workspace=workspace)
    assert refused.value.next_action


def test_events_notify_watchers_of_the_workspace_and_its_owner(make, alice, local_pool, monkeypatch):
    told = []
    monkeypatch.setattr(live, "publish", lambda *what: told.append(what))
    workspace = make(alice)
    assert (workspace.pk, alice.pk, "workspace.requested") in told
    assert (workspace.pk, alice.pk, "workspace.place") in told


def test_start_command_is_sent_with_an_expiry(clock, make, alice, local_pool, sent):
    make(alice)
    (message,) = sent.of("node.execute")
    assert message.expires_at == pytest.approx(timezone.now().timestamp() + 20, abs=0.001)
