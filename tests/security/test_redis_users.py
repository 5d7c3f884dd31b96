"""Attacks with the Redis user of a node: real server, real users, real node worker."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from redis import Redis
from redis.exceptions import NoPermissionError

from portal.embedded import configs
from provisioning import messages
from provisioning.celery_config import CONTROL_QUEUE, KEY_PREFIX, configure, node_queue, outbox
from provisioning.service.environ import ROOT
from provisioning.signed_celery import STAMP, Identity, SignedCelery
from provisioning.signing import CONTROL, public_text
from provisioning.types import PoolConfig
from tests import mounts
from tests.senders import CONTROL_KEY, NODE_KEY, OTHER_KEY
from tests.workspaces.gateway.gateway_support import free_port, running, valkey_binary

pytestmark = pytest.mark.engine
NODES = (configs.RedisNode("a", "secret-a", engine=True), configs.RedisNode("b", "secret-b"))
LIMIT_S = 60


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder, number = tmp_path_factory.mktemp("valkey"), free_port()
    users = folder / "redis.acl"
    users.write_text(configs.redis_acl("secret-control", NODES))
    argv = [
        valkey_binary(),
        "--port",
        str(number),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--aclfile",
        str(users),
    ]
    with running(argv, ready="Ready to accept connections", log=folder / "valkey.log"):
        yield number


def url(port: int, user: str) -> str:
    return f"redis://{user}:secret-{user.removeprefix('node-')}@127.0.0.1:{port}/0"


@pytest.fixture
def control(port: int) -> Iterator[Redis]:
    with Redis.from_url(url(port, "control")) as client:
        client.flushall()
        yield client


@pytest.fixture
def node_a(port: int) -> Iterator[Redis]:
    with Redis.from_url(url(port, "node-a")) as client:
        yield client


@pytest.mark.parametrize(
    "attempt",
    [
        lambda a: a.lrange("berth:q:node.b", 0, -1),
        lambda a: a.rpop("berth:q:node.b"),
        lambda a: a.brpop(["berth:q:node.b"], 1),
        lambda a: a.lpush("berth:q:node.b", "{}"),
        lambda a: a.delete("berth:q:node.b"),
        lambda a: a.hgetall("berth:q:node.b:unacked"),
        lambda a: a.sadd("berth:q:_kombu.binding.node.b", "x"),
        lambda a: a.hgetall("berth:q:unacked"),
        lambda a: a.rpop("berth:q:control"),
        lambda a: a.lrange("berth:q:control", 0, -1),
        lambda a: a.delete("berth:q:control"),
        lambda a: a.ltrim("berth:q:control", 1, 0),
        lambda a: a.get("berth:gw:ws:x"),
        lambda a: a.set("berth:gw:ws:x", "{}"),
        lambda a: a.get("berth:gw:session:x"),
        lambda a: a.rpush("berth:reply:node.b:logs:x", "{}"),
        lambda a: a.rpush("berth:reply:logs:x", "{}"),
        lambda a: a.publish("berth:q:/0.celery.pidbox", "{}"),
        lambda a: a.publish("berth:events", "{}"),
        lambda a: a.execute_command("PSUBSCRIBE", "*"),
        lambda a: a.execute_command("SUBSCRIBE", "berth:events"),
        lambda a: a.dbsize(),
        lambda a: a.keys("*"),
        lambda a: a.scan(),
        lambda a: a.randomkey(),
        lambda a: a.delete("berth:q:heartbeat"),
        lambda a: a.hdel("berth:q:heartbeat", "control@x"),
        lambda a: a.hset("berth:q:heartbeat", "control@x", "{}"),
        lambda a: a.hdel("berth:q:node.b:heartbeat", "node@b"),
        lambda a: a.hset("berth:q:node.b:samples", "GPU-1", "{}"),
        lambda a: a.lpush("berth:q:control", "{}"),
        lambda a: a.lpush("berth:q:control.node.b", "{}"),
        lambda a: a.brpop(["berth:q:control.node.a"], 1),
        lambda a: a.sadd("berth:q:_kombu.binding.control", "control\x06\x16\x06\x16node.a"),
        lambda a: a.setbit("berth:q:node.a", 2**31, 1),
        lambda a: a.lrange("berth:q:node.a", 0, -1),
        lambda a: a.script_load("while true do end"),
        lambda a: a.evalsha("0" * 40, 0),
        lambda a: a.set("berth:paused:a", "1"),
        lambda a: a.eval("return redis.call('lrange', 'berth:q:node.b', 0, -1)", 0),
        lambda a: a.function_flush(),
        lambda a: a.script_flush(),
        lambda a: a.execute_command("CLIENT", "TRACKING", "ON", "BCAST"),
        lambda a: a.config_get("*"),
        lambda a: a.acl_list(),
        lambda a: a.flushall(),
        lambda a: a.copy("berth:q:node.b", "berth:q:node.a"),
        lambda a: a.rename("berth:q:control", "berth:q:node.a"),
    ],
)
def test_node_cannot_access_queues_of_another_or_the_gateway(
    control: Redis, node_a: Redis, attempt: Callable[[Redis], Any]
) -> None:
    control.lpush("berth:q:node.b", "secret")
    control.lpush("berth:q:control", "secret")
    with pytest.raises(NoPermissionError):
        attempt(node_a)
    assert control.lrange("berth:q:node.b", 0, -1) == control.lrange("berth:q:control", 0, -1) == [b"secret"]


def test_node_can_use_its_own_queue_and_outbox(control: Redis, node_a: Redis) -> None:
    control.lpush("berth:q:node.a", "one")
    assert node_a.brpop(["berth:q:node.a"], 1) == (b"berth:q:node.a", b"one")
    assert node_a.lpush("berth:q:control.node.a", "{}") == 1
    with node_a.pipeline() as pipe:
        pipe.rpush("berth:reply:node.a:logs:x", "{}").expire("berth:reply:node.a:logs:x", 60)
        assert pipe.execute() == [1, True]
    assert node_a.hset("berth:q:node.a:heartbeat", "node@a", "{}") == 1


# --- a real worker --------------------------------------------------------------------------------


class Worker:
    """A node worker under its own user, with its messages to the control plane."""

    def __init__(self, client: Redis, process: subprocess.Popen[bytes]) -> None:
        self.client, self.process = client, process

    def told(self, task: str) -> dict[str, Any]:
        """Wait until the worker has sent `task`. Returns its arguments."""
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            assert self.process.poll() is None, "the worker has ended"
            raw = self.client.brpop([KEY_PREFIX + outbox("a")], 1)
            if raw is None:
                continue
            message = json.loads(raw[1])
            if message["headers"]["task"] == task:
                found: dict[str, Any] = json.loads(base64.b64decode(message["body"]))[1]
                return found.get("report", found) | {"stamp": message["headers"].get(STAMP)}
        raise AssertionError(f"the worker did not send {task}")


@pytest.fixture
def worker(control: Redis, port: int, tmp_path: Path) -> Iterator[Worker]:
    with started(control, port, tmp_path) as found:
        found.told("control.worker_ready")
        yield found


@contextmanager
def started(control: Redis, port: int, tmp_path: Path) -> Iterator[Worker]:
    argv = [
        sys.executable, "-m", "celery", "-A", "provisioning.node.worker", "worker", "-Q", "node.a,engine",
        "-c", "1", "-n", "node@a", "--without-gossip", "--without-mingle", "--without-heartbeat",
        "-l", "WARNING",
    ]  # fmt: skip
    environment = {
        **os.environ,
        "BERTH_NODE_NAME": "a",
        "BERTH_NODE_REDIS_URL": url(port, "node-a"),
        "BERTH_HOME": str(tmp_path / "home"),
        "BERTH_NODE_KEY": NODE_KEY,
        "BERTH_CONTROL_PUBLIC_KEY": public_text(CONTROL_KEY),
    }
    with subprocess.Popen(argv, cwd=ROOT, env=environment, start_new_session=True) as process:
        try:
            yield Worker(control, process)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    mounts.detach(tmp_path)


def as_control(port: int, key: str = CONTROL_KEY) -> SignedCelery:
    app = SignedCelery("t", identity=Identity(CONTROL, lambda: key, dict, tuple), set_as_current=False)
    configure(app, broker_url=url(port, "control"), default_queue=CONTROL_QUEUE)
    return app


def as_attacker(port: int) -> Celery:
    app = Celery("attacker", set_as_current=False)
    configure(app, broker_url=url(port, "control"), default_queue=CONTROL_QUEUE)
    return app


def inventory_of(config: dict[str, Any]) -> dict[str, Any]:
    return {"pool": messages.dump(PoolConfig(uuid.uuid4().hex, "local", config))}


def test_forged_changed_and_replayed_commands_are_dropped_and_reported(
    worker: Worker, port: int, tmp_path: Path
) -> None:
    """Each attack is followed by a valid command, whose result must be the first."""
    loose = inventory_of({"sandbox": "none", "home": str(tmp_path / "evil")})
    as_attacker(port).send_task("node.inventory", kwargs=loose, queue=node_queue("a"))
    assert worker.told("control.message_refused")["reason"] == "unsigned"
    as_control(port, OTHER_KEY).send_task("node.inventory", kwargs=loose, queue=node_queue("a"))
    assert worker.told("control.message_refused")["reason"] == "forged"

    good = inventory_of({})
    as_control(port).send_task("node.inventory", kwargs=good, queue=node_queue("a"))
    told = worker.told("control.apply_inventory")
    assert (told["pool"], told["failure"]) == (good["pool"]["slug"], None)
    assert [node["name"] for node in told["inventory"]["nodes"]] == ["a"]
    assert told["stamp"]["sender"] == "node.a"
    assert not (tmp_path / "evil").exists()


def test_commands_for_another_node_and_replays_are_dropped(worker: Worker, port: int, control: Redis) -> None:
    app, elsewhere = as_control(port), inventory_of({})
    app.send_task("node.inventory", kwargs=elsewhere, queue=node_queue("b"))
    raw = control.rpop(KEY_PREFIX + node_queue("b"))
    assert isinstance(raw, bytes)
    control.lpush(KEY_PREFIX + node_queue("a"), raw)
    assert worker.told("control.message_refused")["reason"] == "not_for_us"

    # Messages are copied before they are taken: Redis must not deliver them to the stopped worker.
    os.killpg(worker.process.pid, signal.SIGSTOP)
    for client in control.client_list():
        if "b" in client["flags"]:
            control.client_unblock(client["id"])
    good = inventory_of({})
    app.send_task("node.inventory", kwargs=good, queue=node_queue("a"))
    (copy,) = control.lrange(KEY_PREFIX + node_queue("a"), 0, -1)
    os.killpg(worker.process.pid, signal.SIGCONT)
    assert worker.told("control.apply_inventory")["pool"] == good["pool"]["slug"]
    assert isinstance(copy, bytes)
    control.lpush(KEY_PREFIX + node_queue("a"), copy)
    assert worker.told("control.message_refused")["reason"] == "repeated"


def test_signed_command_cannot_weaken_the_sandbox_of_the_node(
    worker: Worker, port: int, tmp_path: Path
) -> None:
    """As if the database of the control plane were compromised."""
    loose = inventory_of({"sandbox": "none"})
    as_control(port).send_task("node.inventory", kwargs=loose, queue=node_queue("a"))
    told = worker.told("control.apply_inventory")
    assert told["inventory"] is None
    assert "BERTH_SANDBOX=none" in told["failure"]["message"]
