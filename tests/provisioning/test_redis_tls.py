"""Redis of another machine over TLS: verified by name, reconnected after an outage."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as NotConnected

from portal.embedded import configs
from provisioning import heartbeat, messages, redis_client
from provisioning.celery_config import CONTROL_QUEUE, KEY_PREFIX, configure, node_queue, outbox
from provisioning.service.environ import ROOT
from provisioning.signed_celery import Identity, SignedCelery
from provisioning.signing import CONTROL, public_text
from provisioning.types import PoolConfig
from tests import mounts
from tests.host.authority import PORTAL_NAME, Authority
from tests.host.tls_proxy import TLSProxy
from tests.instance import eventually
from tests.senders import CONTROL_KEY, NODE_KEY
from tests.workspaces.gateway.gateway_support import free_port, running, valkey_binary

pytestmark = pytest.mark.engine
LIMIT_S = 60


@pytest.fixture(scope="module")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder, number = tmp_path_factory.mktemp("valkey"), free_port()
    users = folder / "redis.acl"
    users.write_text(configs.redis_acl("secret-control", (configs.RedisNode("b", "secret/b"),)))
    argv = [valkey_binary(), "--port", str(number), "--bind", "127.0.0.1", "--save", ""]
    with running(
        [*argv, "--aclfile", str(users)], ready="Ready to accept connections", log=folder / "valkey.log"
    ):
        yield number


@pytest.fixture
def control(redis_port: int) -> Iterator[Redis]:
    with Redis.from_url(f"redis://control:secret-control@127.0.0.1:{redis_port}/0") as client:
        client.flushall()
        yield client


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def door(tmp_path: Path, authority: Authority, redis_port: int) -> Iterator[TLSProxy]:
    proxy = TLSProxy(tmp_path / "door", authority, to=redis_port)
    proxy.start()
    yield proxy
    proxy.close()


def url(folder: Path, authority: Authority, port: int, *, server_name: str = PORTAL_NAME) -> str:
    certificate, key = authority.write(folder, "node:b", host="b.node.berth.internal")
    tls = redis_client.TLS(folder / "authority.pem", certificate, key, server_name)
    return redis_client.url(host="127.0.0.1", port=port, user="node-b", password="secret/b", tls=tls)


def test_client_and_heartbeat_connect_over_tls(
    tmp_path: Path, authority: Authority, door: TLSProxy, control: Redis
) -> None:
    there = url(tmp_path / "node", authority, door.port)
    with redis_client.client(there) as client:
        assert client.lpush("berth:q:control.node.b", "{}") == 1
    sender = heartbeat.Heartbeat(there, "node@b")
    sender.write()
    assert heartbeat.is_fresh(there, "node@b")
    sender.withdraw()


def test_certificates_not_issued_by_the_portal_are_refused(
    tmp_path: Path, authority: Authority, redis_port: int
) -> None:
    """The certificate of another node has the same authority but another name."""
    other = TLSProxy(tmp_path / "a", authority, to=redis_port, name="a.node.berth.internal")
    stranger = TLSProxy(tmp_path / "x", Authority(), to=redis_port)
    for proxy, words in ((other, "Hostname mismatch"), (stranger, "certificate verify failed")):
        proxy.start()
        try:
            with (
                pytest.raises(NotConnected, match=words),
                redis_client.client(url(tmp_path / "node", authority, proxy.port)) as client,
            ):
                client.ping()
        finally:
            proxy.close()


def test_worker_reconnects_after_a_redis_outage(
    tmp_path: Path, authority: Authority, door: TLSProxy, redis_port: int, control: Redis
) -> None:
    environment = {
        **os.environ,
        "BERTH_NODE_NAME": "b",
        "BERTH_NODE_REDIS_URL": url(tmp_path / "node", authority, door.port),
        "BERTH_HOME": str(tmp_path / "home"),
        "BERTH_NODE_KEY": NODE_KEY,
        "BERTH_CONTROL_PUBLIC_KEY": public_text(CONTROL_KEY),
    }
    argv = [sys.executable, "-m", "celery", "-A", "provisioning.node.worker", "worker", "-Q", "node.b"]
    argv += ["-c", "1", "-n", "node@b", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    app = SignedCelery(
        "t", identity=Identity(CONTROL, lambda: CONTROL_KEY, dict, tuple), set_as_current=False
    )
    configure(
        app,
        broker_url=f"redis://control:secret-control@127.0.0.1:{redis_port}/0",
        default_queue=CONTROL_QUEUE,
    )

    def told(task: str) -> dict[str, object]:
        def look() -> dict[str, object] | None:
            raw = control.brpop([KEY_PREFIX + outbox("b")], 1)
            if raw is None:
                return None
            message = json.loads(raw[1])
            body: dict[str, object] = json.loads(base64.b64decode(message["body"]))[1]
            return body if message["headers"]["task"] == task else None

        return eventually(look, limit_s=LIMIT_S, what=task)

    log = tmp_path / "worker.log"
    with (
        log.open("w") as output,
        subprocess.Popen(
            argv, cwd=ROOT, env=environment, start_new_session=True, stdout=output, stderr=output
        ) as process,
    ):
        try:
            told("control.worker_ready")
            door.stop()
            eventually(lambda: "Cannot connect" in log.read_text(), limit_s=LIMIT_S, what="it has noticed")
            order = {"pool": messages.dump(PoolConfig("main", "local", {}))}
            app.send_task("node.inventory", kwargs=order, queue=node_queue("b"))
            door.start()
            assert told("control.apply_inventory")["failure"] is None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    mounts.detach(tmp_path)
