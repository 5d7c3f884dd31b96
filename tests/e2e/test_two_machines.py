"""Two machines, one front door: node A is the portal's own, node B joins from its own network.

The tests run in order: B joins, each node runs a notebook, B's worker dies, B is used for attacks, drained
and revoked.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisGone
from redis.exceptions import NoPermissionError

from provisioning import redis_client
from provisioning.celery_config import CONTROL_QUEUE, KEY_PREFIX, configure, node_queue, outbox
from provisioning.endpoints import SOCKET_HEADER
from provisioning.host.door import Door, NodeProof
from provisioning.node_gateway import node_name
from provisioning.service.console import Problem
from provisioning.service.door_uid import DOORS_UID
from provisioning.signed_celery import Identity, SignedCelery
from tests import instance
from tests.e2e.conftest import Curl
from tests.e2e.kernels import channels, execute
from tests.e2e.second_machine import HOME_LIMIT_MIB, Network, SecondMachine, network
from tests.instance import Api, Berth, eventually
from tests.ports import consecutive_ports

pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("two-machines"),
    pytest.mark.thorough(
        "two whole machines; `make test` has doors, joining and the gateway without a portal"
    ),
]
LIMIT_S = 180
TOKEN = """
import django; django.setup()
from portal.common.actors import SYSTEM
from portal.fleet.inventory.models import Pool
from portal.fleet.machines import services
print(services.make_join_token(actor=SYSTEM, pool=Pool.objects.get(simulated=False)).text)
"""
REVOKE = """
import django; django.setup()
from portal.common.actors import SYSTEM
from portal.fleet.machines import services
from portal.fleet.machines.models import Machine
services.revoke(actor=SYSTEM, machine_id=Machine.objects.get(name="node-b").pk)
"""
OPERATOR = """
import django; django.setup()
from portal.people.accounts import tokens
from portal.people.accounts.models import User
from portal.common.actors import SYSTEM
print(tokens.create_token(actor=SYSTEM, user=User.objects.get(username="admin"), name="tests").secret)
"""


@dataclass
class Pair:
    """The portal's machine and the second one.

    Ada's workspaces are on B and ben's on A, as their homes are there.
    """

    berth: Berth
    b: SecondMachine
    door: str
    ada: Api
    ben: Api
    operator: Api
    workspaces: dict[str, str] = field(default_factory=dict)

    def snippet(self, code: str) -> str:
        return self.berth.run("-c", code, DJANGO_SETTINGS_MODULE="portal.settings").strip()

    def node(self, name: str) -> dict[str, Any]:
        rows = self.operator.json("GET", "nodes")["results"]
        return next((row for row in rows if row["name"] == name), {})

    def act(self, name: str, verb: str) -> None:
        self.operator.json("POST", f"nodes/{self.node(name)['id']}/{verb}", {})

    def start_on(self, name: str, other: str, *, template: str = "jupyterlab") -> str:
        """Start a workspace that only fits this node; return its id."""
        api = self.of(name)
        self.act(other, "cordon")
        try:
            flavor = "cpu-small" if template == "jupyterlab" else "tiny"
            made = api.create(template, flavor, name=f"on-{name}-{uuid.uuid4().hex[:6]}")
            api.wait(made["id"], "running", limit_s=LIMIT_S)
        finally:
            self.act(other, "uncordon")
        self.workspaces[name] = made["id"]
        return str(made["id"])

    def of(self, name: str) -> Api:
        """The API of the user of this node."""
        return self.ada if name == "node-b" else self.ben


@pytest.fixture(scope="module")
def wire() -> Iterator[Network]:
    with network() as found:
        yield found


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, wire: Network) -> Iterator[Pair]:
    environment = instance.need_notebook_environment()
    folder = tmp_path_factory.mktemp("two")
    door_port = consecutive_ports(2)
    variables = {
        "BERTH_NODES_ADDRESS": wire.here,
        "BERTH_NODES_PORT": str(door_port),
        "BERTH_HEARTBEAT_S": "4",
        "BERTH_PREEMPTION_GRACE_S": "3",
        "BERTH_NODE_LEASE_S": "8",
        "BERTH_HOME_LIMIT_MIB": HOME_LIMIT_MIB,
    }
    b = SecondMachine(folder / "b", wire, environment=environment)
    try:
        with instance.running(folder, environment=environment, **variables) as berth:
            found = Pair(
                berth,
                b,
                f"https://{wire.here}:{door_port}",
                berth.api("ada"),
                berth.api("ben"),
                berth.api("ada"),
            )
            berth.tokens["admin"] = found.snippet(OPERATOR)
            found.operator = berth.api("admin")
            yield found
            for api in (found.ada, found.ben):
                for row in api.json("GET", "workspaces")["results"]:
                    api.act(row["id"], "delete")
            b.end()
            for api in (found.ada, found.ben, found.operator):
                api.close()
    finally:
        b.end()


def test_join_command_adds_the_node(pair: Pair) -> None:
    token = pair.snippet(TOKEN)
    done = pair.b.join(pair.door, token, "node-b")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "node run --home" in done.stdout
    again = pair.b.berth("join", pair.door, "--token", token, "--name", "node-c", "--home", "/tmp/nowhere")
    assert again.returncode == 1 and "used" in again.stderr
    began = time.monotonic()
    pair.b.run()
    eventually(
        lambda: pair.node("node-b").get("online"),
        limit_s=LIMIT_S,
        what=lambda: f"{pair.node('node-b')} {pair.b.log.read_text()}",
    )
    print(f"from `berth node run` to a node that takes work: {time.monotonic() - began:.1f} s")
    assert pair.b.berth("status").returncode == 0, pair.b.berth("status").stdout


def cell(pair: Pair, node: str, code: str) -> str:
    """The output of a cell in the notebook on this node, run through the front door."""
    workspace_id, token = pair.workspaces[node], pair.of(node).token
    curl = Curl(pair.berth, token)
    host = pair.berth.host(workspace_id)
    eventually(
        lambda: curl("GET", "/api", host=host).status == 200,
        limit_s=LIMIT_S,
        what=lambda: f"it opens: {curl('GET', '/api', host=host)}",
    )
    kernel = curl("POST", "/api/kernels", {"name": "python3"}, host=host)
    assert kernel.status == 201, kernel
    with channels(pair.berth.origin(workspace_id), token, kernel.json["id"]) as channel:
        return execute(channel, code)


def test_notebooks_on_both_nodes_are_reached_through_one_front_door(pair: Pair) -> None:
    on_b = pair.start_on("node-b", "node-a")
    on_a = pair.start_on("node-a", "node-b")
    assert pair.b.owned("ws-" + on_b.replace("-", "")) and not pair.b.owned("ws-" + on_a.replace("-", ""))
    assert pair.berth.owned("ws-" + on_a.replace("-", "")) and not pair.berth.owned(
        "ws-" + on_b.replace("-", "")
    )
    homes = {
        "node-a": pair.berth.home / "homes" / "lab" / "ben",
        "node-b": pair.b.folder.home / "homes" / "lab" / "ada",
    }
    for name, home in homes.items():
        assert cell(pair, name, "print(6 * 7)") == "42\n"
        cell(pair, name, f"open('where.txt', 'w').write('on {name}')")
        assert (home / "where.txt").read_text() == f"on {name}"
    for name in homes:
        wait_for_heartbeat(pair, name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a gateway an account of its own")
def test_node_gateway_has_no_privileges(pair: Pair) -> None:
    """It sees its configuration, its own key and the way to sockets; the worker stays root."""
    services = pair.b.services()
    gateway, worker = (Path(f"/proc/{services[name]['pid']}") for name in ("node-gateway", "node"))
    status = dict(line.split(":", 1) for line in (gateway / "status").read_text().splitlines())
    assert status["Uid"].split() == status["Gid"].split() == [str(DOORS_UID)] * 4
    assert status["Groups"].split() == [] and status["NoNewPrivs"].strip() == "1"
    assert {status[kind].strip() for kind in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert worker.stat().st_uid == 0 and "The gateway runs as root" not in pair.b.log.read_text()
    home = Path(f"{gateway}/root{pair.b.folder.home}")
    assert {path.name for path in home.iterdir()} == {"local", "node", "run"}
    assert {path.name for path in (home / "node").iterdir()} == {"authority.pem", "node.key", "node.pem"}
    assert {path.name for path in (home / "run").iterdir()} == {"node-gateway.json"}
    (app,) = pair.b.folder.local.glob("ws-*/app.*.sock")
    found = app.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (0, DOORS_UID, 0o660)


def wait_for_heartbeat(pair: Pair, name: str) -> None:
    """Wait for another heartbeat of the workspace on this node."""
    api, workspace_id = pair.of(name), pair.workspaces[name]
    before = api.workspace(workspace_id)["heartbeat_at"]
    eventually(
        lambda: api.workspace(workspace_id)["heartbeat_at"] != before,
        limit_s=LIMIT_S,
        what="its agent is heard",
    )


def test_killed_worker_recovers_and_the_workspace_keeps_running(pair: Pair) -> None:
    """The workspace stays reachable, and its node accepts commands again."""
    before = pair.b.services()["node"]["pid"]
    os.kill(before, signal.SIGKILL)
    assert cell(pair, "node-b", "print('still here')") == "still here\n"
    eventually(
        lambda: pair.b.services()["node"]["pid"] not in {None, before} or None,
        limit_s=LIMIT_S,
        what="another",
    )
    pair.b.until_running()
    pair.ada.act(pair.workspaces["node-b"], "stop")
    pair.ada.wait(pair.workspaces["node-b"], "stopped", limit_s=LIMIT_S)
    assert not pair.b.owned("ws-" + pair.workspaces["node-b"].replace("-", ""))
    pair.start_on("node-b", "node-a")


def test_node_recovers_after_the_portal_was_unreachable(pair: Pair) -> None:
    """The portal's services restart; B reconnects, and its workspaces kept running."""
    pair.berth.down_keeping_workspaces()
    assert pair.b.owned()
    pair.berth.start()
    assert cell(pair, "node-b", "print('went on')") == "went on\n"
    pair.b.until_running()
    eventually(
        lambda: pair.b.berth("status").returncode == 0 or None,
        limit_s=LIMIT_S,
        what=lambda: pair.b.berth("status").stdout,
    )


# --- with B's stolen keys -------------------------------------------------------------------------


def test_redis_user_of_the_node_cannot_reach_other_keys(pair: Pair) -> None:
    own = node_queue("node-a")
    with redis_client.client(pair.b.known().redis_url(pair.b.folder), socket_timeout=10) as client:
        for attempt in (
            lambda: client.lrange(KEY_PREFIX + own, 0, -1),
            lambda: client.lpush(KEY_PREFIX + own, "{}"),
            lambda: client.brpop([KEY_PREFIX + CONTROL_QUEUE]),
            lambda: client.hdel("berth:q:heartbeat", "control@main"),
            lambda: client.lrange(KEY_PREFIX + CONTROL_QUEUE, 0, -1),
            lambda: client.keys("*"),
            lambda: client.hgetall("berth:gw:routes"),
        ):
            with pytest.raises(NoPermissionError):
                attempt()


def test_node_cannot_send_messages_of_another_node(pair: Pair) -> None:
    """Neither with its own key under its own name nor under A's."""
    before = pair.node("node-a")
    known = pair.b.known()
    slug = known.answer.pool
    lie = {"pool": slug, "node": "node-a", "owned": []}
    for name in ("node.node-b", "node.node-a", "control"):
        app = SignedCelery(
            name, identity=Identity(name, lambda: known.signing_key, dict, tuple), set_as_current=False
        )
        configure(app, broker_url=known.redis_url(pair.b.folder), default_queue=CONTROL_QUEUE)
        with pytest.raises(OperationalError, match="No permissions"):
            app.send_task("control.apply_owned", kwargs=lie, queue=CONTROL_QUEUE)
        app.send_task("control.apply_owned", kwargs=lie, queue=outbox("node-b"))
    log = pair.berth.home / "logs" / "control.log"
    eventually(lambda: "dropped" in log.read_text() or None, limit_s=LIMIT_S, what="it was refused")
    assert pair.ben.workspace(pair.workspaces["node-a"])["state"] == "running"
    assert pair.node("node-a")["online"] and before["online"]


def test_node_certificate_gives_access_to_agent_paths_only(pair: Pair) -> None:
    """A node's gateway accepts only the front door; the portal's own listens at no port."""
    workspace = pair.workspaces["node-b"].replace("-", "")
    context = ssl.create_default_context(cafile=str(pair.b.folder.authority))
    context.load_cert_chain(pair.b.folder.certificate, pair.b.folder.key)
    connection = http.client.HTTPConnection(pair.b.wire.there, pair.b.gateway_port, timeout=10)
    plain = socket.create_connection((pair.b.wire.there, pair.b.gateway_port), timeout=10)
    connection.sock = context.wrap_socket(plain, server_hostname=node_name("node-b"))
    connection.request("GET", "/api", headers={SOCKET_HEADER: f"ws-{workspace}.1"})
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (403, b"")
    connection.close()

    door = http.client.HTTPSConnection(
        pair.b.wire.here, int(pair.door.rpartition(":")[2]), timeout=10, context=_portal(context)
    )
    for path in ("/", "/api/v1/workspaces", "/nodes/v1/other", "/agent/v1/../../healthz", "/healthz"):
        door.request("GET", path)
        found = door.getresponse()
        assert found.status == 404, path
        found.read()
    door.close()


def _portal(context: ssl.SSLContext) -> ssl.SSLContext:
    """The same without checking the host name, as the door is reached by address here."""
    context.check_hostname = False
    return context


def test_only_the_two_doors_are_reachable_from_the_node_network(pair: Pair) -> None:
    first = int(pair.door.rpartition(":")[2])
    known = pair.berth.instance
    inner = [pair.berth.port, known.web_port, known.redis_port, known.gateway_port]
    code = "import json, socket, sys\nfound = []\nfor port in json.loads(sys.argv[2]):\n"
    code += " s = socket.socket(); s.settimeout(5)\n"
    code += " if s.connect_ex((sys.argv[1], port)) == 0: found.append(port)\n s.close()\n"
    code += "print(json.dumps(found))"
    argv = [sys.executable, "-I", "-c", code, pair.b.wire.here, json.dumps([first, first + 1, *inner])]
    done = subprocess.run(pair.b.wire.inside(*argv), capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == [first, first + 1]


# --- leaving --------------------------------------------------------------------------------------


def test_workspace_of_a_drained_node_starts_elsewhere_with_its_home(pair: Pair) -> None:
    """A start that finds the machine of its home closed takes the home along, and back again."""
    moved = pair.workspaces["node-b"]
    refused = pair.b.berth("leave")
    assert refused.returncode == 1 and "node-b still has 1 workspace" in refused.stderr, refused.stderr
    pair.act("node-b", "drain")
    eventually(lambda: not pair.b.owned(), limit_s=LIMIT_S, what="nothing runs on node-b")
    pair.ada.wait(moved, "running", limit_s=LIMIT_S)
    assert pair.berth.owned("ws-" + moved.replace("-", "")) and not pair.b.owned()
    assert (pair.berth.home / "homes" / "lab" / "ada" / "where.txt").read_text() == "on node-b"
    assert pair.ben.workspace(pair.workspaces["node-a"])["state"] == "running"
    pair.act("node-b", "uncordon")
    pair.ada.act(moved, "stop")
    pair.ada.wait(moved, "stopped", limit_s=LIMIT_S)
    pair.start_on("node-b", "node-a")
    assert (pair.b.folder.home / "homes" / "lab" / "ada" / "where.txt").read_text() == "on node-b"


def test_revoked_node_is_cut_off(pair: Pair) -> None:
    """Its connection is closed, its workspaces are unreachable, and both sides report it."""
    lost = pair.workspaces["node-b"]
    assert pair.berth.enter(lost, pair.ada.token, "/api") == 200
    client = redis_client.client(pair.b.known().redis_url(pair.b.folder), socket_timeout=30)
    assert client.ping()
    pair.snippet(REVOKE)
    with pytest.raises((RedisGone, NoPermissionError)), client:
        for _ in range(300):
            client.ping()
            time.sleep(0.1)
    found = pair.b.berth("status")
    assert found.returncode == 1 and "it was revoked" in found.stdout, found.stdout
    b = pair.b.known()
    door = Door(
        b.answer.portal_url, b.answer.authority, NodeProof(pair.b.folder.certificate, pair.b.folder.key)
    )
    with pytest.raises(Problem, match="not a node of the portal"):
        door.rotate({"csr": "x", "signing_key": "x"})

    eventually(
        lambda: pair.berth.enter(lost, pair.ada.token, "/api") == 503, limit_s=LIMIT_S, what="nobody enters"
    )
    eventually(
        lambda: not (pair.node("node-b") or {"online": False})["online"], limit_s=LIMIT_S, what="it is away"
    )
    error = pair.ada.workspace(lost)["error"]
    assert error["code"] == "machine_gone" and "node-b was revoked" in error["message"]
    assert cell(pair, "node-a", "print('A goes on')") == "A goes on\n"
    left = pair.b.berth("leave")
    assert left.returncode == 0, left.stderr
    assert not Path(pair.b.folder.state_file).exists()
