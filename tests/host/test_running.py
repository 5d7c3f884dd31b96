"""`berth node run` with a real worker and a real gateway, against a Redis behind TLS."""

from __future__ import annotations

import base64
import hashlib
import http.client
import http.server
import json
import os
import signal
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from portal.embedded import configs
from provisioning import messages
from provisioning.celery_config import CONTROL_QUEUE, KEY_PREFIX, configure, node_queue, outbox
from provisioning.endpoints import SOCKET_HEADER
from provisioning.host import membership
from provisioning.host.folder import NodeFolder
from provisioning.service import instance_lock, processes
from provisioning.service.environ import ROOT
from provisioning.signed_celery import Identity, SignedCelery
from provisioning.signing import CONTROL
from provisioning.types import PoolConfig
from tests import mounts
from tests.host.authority import FRONT_NAME, Authority
from tests.host.conftest import Berth
from tests.host.portal_doors import Doors, problem
from tests.host.tls_proxy import TLSProxy
from tests.instance import eventually
from tests.senders import CONTROL_KEY
from tests.workspaces.gateway.gateway_support import free_port, running, valkey_binary

pytestmark = pytest.mark.engine
LIMIT_S = 60


@pytest.fixture(scope="module")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder, number = tmp_path_factory.mktemp("valkey"), free_port()
    (folder / "redis.acl").write_text(configs.redis_acl("secret-control", ()))
    argv = [valkey_binary(), "--port", str(number), "--bind", "127.0.0.1", "--save", ""]
    argv += ["--aclfile", str(folder / "redis.acl")]
    with running(argv, ready="Ready to accept connections", log=folder / "valkey.log"):
        yield number


@pytest.fixture
def control(redis_port: int) -> Iterator[Redis]:
    with Redis.from_url(f"redis://control:secret-control@127.0.0.1:{redis_port}/0") as client:
        client.flushall()
        yield client


@pytest.fixture
def door(tmp_path: Path, authority: Authority, redis_port: int) -> Iterator[TLSProxy]:
    proxy = TLSProxy(tmp_path / "redis-door", authority, to=redis_port)
    proxy.start()
    yield proxy
    proxy.close()


class Node:
    """A joined machine whose services run."""

    def __init__(self, folder: NodeFolder, doors: Doors, control: Redis, redis_port: int) -> None:
        self.folder, self.doors, self.control = folder, doors, control
        identity = Identity(CONTROL, lambda: CONTROL_KEY, dict, tuple)
        self.app = SignedCelery("t", identity=identity, set_as_current=False)
        configure(
            self.app,
            broker_url=f"redis://control:secret-control@127.0.0.1:{redis_port}/0",
            default_queue=CONTROL_QUEUE,
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder.home.parent / "run.log"

    def let_in(self) -> None:
        """Create the Redis user of its last certificate, with that password only."""
        node = configs.RedisNode("b", self.doors.passwords[-1])
        rules = configs.redis_acl("x", [node]).splitlines()[2].split(" ", 2)[2]
        self.control.execute_command("ACL", "SETUSER", "node-b", *_words(rules))

    def start(self) -> None:
        argv = [sys.executable, "-m", "portal.cli.main", "node", "run"]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                argv, cwd=ROOT, env=dict(os.environ), stdout=output, stderr=output, start_new_session=True
            )

    def services(self) -> dict[str, dict[str, Any]]:
        rows = instance_lock.read_state(self.folder.run).get("services", [])
        return {row["name"]: row for row in rows}

    def until_running(self) -> dict[str, dict[str, Any]]:
        def look() -> dict[str, dict[str, Any]] | None:
            found = self.services()
            return found if found and {row["state"] for row in found.values()} == {"running"} else None

        return eventually(look, limit_s=LIMIT_S, what=lambda: f"{self.services()} {self.log.read_text()}")

    def told(self, task: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            raw = self.control.brpop([KEY_PREFIX + outbox("b")], 1)
            message = json.loads(raw[1]) if raw else None
            if message is None or message["headers"]["task"] != task:
                return None
            found: dict[str, Any] = json.loads(base64.b64decode(message["body"]))[1]
            return found

        return eventually(look, limit_s=LIMIT_S, what=task)

    def inventory(self) -> dict[str, Any]:
        order = {"pool": messages.dump(PoolConfig("main", "local", {}))}
        self.app.send_task("node.inventory", kwargs=order, queue=node_queue("b"))
        return self.told("control.apply_inventory")

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        processes.end(processes.leftovers(self.folder.id), self.folder.id, grace_s=2)
        mounts.detach(self.folder.home)


def _words(rules: str) -> list[str]:
    """The rules of an ACL as arguments; a selector in parentheses is one argument."""
    words: list[str] = []
    for word in rules.split():
        if words and words[-1].startswith("(") and not words[-1].endswith(")"):
            words[-1] += f" {word}"
        else:
            words.append(word)
    return words


@pytest.fixture
def node(
    join: Berth, folder: NodeFolder, doors: Doors, door: TLSProxy, control: Redis, redis_port: int
) -> Iterator[Node]:
    doors.redis_port = door.port
    done = join()
    assert done.code == 0, done.err
    found = Node(folder, doors, control, redis_port)
    found.let_in()
    yield found
    found.end()


def test_node_starts_runs_and_stops(node: Node, berth: Berth) -> None:
    assert berth("status").code == 3
    node.start()
    first = node.until_running()
    assert [each["name"] for each in node.inventory()["inventory"]["nodes"]] == ["b"]
    found = json.loads(berth("status", "--json").out)
    facts = {fact["name"]: fact for fact in found["facts"]}
    assert {name for name, fact in facts.items() if not fact["good"]} == {"notebooks"}
    assert (found["node"], found["pool"], found["exit_code"]) == ("b", "main", 1)

    os.kill(first["node"]["pid"], signal.SIGKILL)
    os.kill(first["node-gateway"]["pid"], signal.SIGKILL)
    eventually(
        lambda: (
            {name: row["restarts"] for name, row in node.services().items()} == {"node": 1, "node-gateway": 1}
        ),
        limit_s=LIMIT_S,
        what="what died is started again",
    )
    node.until_running()

    done = berth("run")
    assert done.code == 1 and "already running" in done.err

    assert node.process is not None
    node.process.send_signal(signal.SIGTERM)
    assert node.process.wait(LIMIT_S) == 0
    assert processes.leftovers(node.folder.id) == []
    assert "Workspaces keep running" in node.log.read_text()


@pytest.mark.thorough("restarts services twice")
def test_running_services_use_rotated_keys(node: Node, berth: Berth) -> None:
    node.start()
    first = node.until_running()
    before = membership.load(node.folder)
    done = berth("rotate")
    assert done.code == 0 and "rotated; valid until" in done.out
    after = membership.load(node.folder)
    assert after.key != before.key and after.signing_key != before.signing_key
    assert node.folder.key.read_text() == after.key
    node.let_in()
    eventually(
        lambda: node.services().get("node", {}).get("pid") not in {None, first["node"]["pid"]},
        limit_s=LIMIT_S,
        what="the worker is another one",
    )
    node.until_running()
    assert node.inventory()["failure"] is None


@pytest.mark.thorough("restarts services twice")
def test_revoked_node_reports_it_and_returns_after_rejoining(
    node: Node, berth: Berth, door: TLSProxy
) -> None:
    node.start()
    node.until_running()
    assert node.control.execute_command("ACL", "DELUSER", "node-b") == 1
    done = berth("status")
    assert done.code == 1 and "it was revoked" in done.out and "berth node leave --forget" in done.out
    door.stop()
    done = berth("status")
    assert done.code == 1 and f"127.0.0.1:{door.port} does not answer" in done.out
    door.start()
    node.let_in()
    assert node.inventory()["failure"] is None


def test_node_leaves_when_it_has_no_workspaces(node: Node, berth: Berth) -> None:
    node.doors.answer_leave = (409, problem("node_has_workspaces", "2 workspaces are on it.", "Drain it."))
    done = berth("leave")
    assert done.code == 1 and "2 workspaces are on it." in done.err and "--drain" in done.err
    assert membership.load(node.folder).name == "b"
    node.doors.answer_leave = (204, {})
    done = berth("leave")
    assert done.code == 0 and "b has left pool main" in done.out
    assert not any((node.folder.home / "node").iterdir())
    assert berth("status").code == 3


class _App(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"the app")

    def address_string(self) -> str:
        return "a socket"

    def log_message(self, *_: object) -> None:
        """Quiet."""


def test_only_the_front_door_enters_workspaces(
    node: Node, authority: Authority, tmp_path: Path, port: str
) -> None:
    """Not without a certificate, nor with one of another authority or node."""
    handles: list[int] = []

    def short(path: Path) -> str:
        handles.append(os.open(path, os.O_PATH))
        return f"/proc/self/fd/{handles[-1]}"

    name = "ws-" + hashlib.md5(b"a").hexdigest()
    place = node.folder.local / name
    place.mkdir(parents=True)
    # By a handle of their folder, as socket paths must be short.
    app = socketserver.ThreadingUnixStreamServer(f"{short(place)}/app.1.sock", _App)
    threading.Thread(target=app.serve_forever, daemon=True).start()
    node.start()
    node.until_running()

    def ask(signer: Authority | None, common_name: str = FRONT_NAME, host: str = "") -> tuple[int, bytes]:
        context = ssl.create_default_context(cafile=str(node.folder.authority))
        if signer is not None:
            context.load_cert_chain(*signer.write(tmp_path / "c", common_name, host=host))
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=10)
        plain = socket.create_connection(("127.0.0.1", int(port)), timeout=10)
        connection.sock = context.wrap_socket(plain, server_hostname="b.node.berth.internal")
        try:
            connection.request("GET", "/", headers={"Host": "ws.localhost", SOCKET_HEADER: f"{name}.1"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    try:
        assert ask(authority) == (200, b"the app")
        assert ask(authority, "node:a", "a.node.berth.internal") == (403, b"")
        assert ask(authority, "node:b", "b.node.berth.internal") == (403, b"")
        for signer in (None, Authority()):
            with pytest.raises(OSError):
                ask(signer)
        # Agents use the machines' door as this node, with agent paths only.
        before = len(node.doors.asked)
        with socket.socket(socket.AF_UNIX) as plug:
            plug.connect(f"{short(node.folder.local)}/.gateway/portal.sock")
            plug.sendall(b"POST /agent/v1/ready HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            assert plug.recv(1000)
        assert node.doors.asked[before:] == [("POST", "/agent/v1/ready", {})]
    finally:
        app.shutdown()
        app.server_close()
        for handle in handles:
            os.close(handle)
