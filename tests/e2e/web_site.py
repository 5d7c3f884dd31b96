"""Two web hosts behind one address, with one PostgreSQL and one Redis: docs/web-hosts.md.

The first server has Redis, the workers and the doors. A node joins from its own network, and both web hosts
reach its workspaces.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from portal.cli.loopback import Connection
from tests import instance, postgresql
from tests.e2e.second_machine import HOME_LIMIT_MIB, SecondMachine, network
from tests.e2e.web_hosts import WebHost, balancer
from tests.instance import Api, Berth, eventually
from tests.ports import consecutive_ports, free_port

LIMIT_S = 180
PROXY_SECRET = "5b" * 32
APP = Path(__file__).with_name("counting_app.py")
SET_UP = """
import sys
import django; django.setup()
from portal.catalog.models import Template
from portal.common.actors import SYSTEM
from portal.fleet.inventory.models import Pool
from portal.fleet.machines import services
from portal.people.accounts import tokens
from portal.people.accounts.models import User
argv = ["python3", "-I", "-c", sys.argv[1], "{port}"]
Template.objects.create(
    slug="counting", name="Counting", program="bash", argv=argv, ready_path="/", open_path="/"
)
print(services.make_join_token(actor=SYSTEM, pool=Pool.objects.get(simulated=False)).text)
admin = User.objects.get(username="admin")
print(tokens.create_token(actor=SYSTEM, user=admin, name="tests").secret)
"""


@dataclass
class Address:
    """The public address, as a replacement for `Berth` in `Api`."""

    port: int
    tokens: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}"

    def host(self, workspace_id: str) -> str:
        return f"ws-{workspace_id.replace('-', '')}.localhost:{self.port}"

    def origin(self, workspace_id: str) -> str:
        return f"http://{self.host(workspace_id)}"


@dataclass
class Site:
    """The address, its web hosts, the node behind them, and a user's API."""

    address: Address
    hosts: list[WebHost]
    node: SecondMachine
    ada: Api
    workspace: str = ""

    def client(self, host: WebHost | None = None, **named: Any) -> httpx.Client:
        """A client of the address, or of one host as the balancer requests it."""
        port = self.address.port if host is None else host.port
        headers = {"Host": f"localhost:{self.address.port}"}
        return httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=20, **named)

    @contextlib.contextmanager
    def websocket(self) -> Iterator[ClientConnection]:
        """A WebSocket to the workspace's app."""
        with Connection(self.address.origin(self.workspace), self.address.tokens["ada"]) as connection:
            target = connection.websocket("/")
        plug = socket.create_connection((target.host, target.port), timeout=20)
        with connect(target.uri, sock=plug, additional_headers=target.headers, open_timeout=30) as channel:
            yield channel

    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.address.tokens['ada']}"}


@contextlib.contextmanager
def database() -> Iterator[str]:
    """The URL of a separate PostgreSQL; skips if there is none."""
    try:
        binaries, identity = postgresql.find_binaries(), postgresql.unprivileged()
    except postgresql.Unavailable as reason:
        pytest.skip(str(reason))
    with tempfile.TemporaryDirectory(prefix="berth-postgres-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if identity:
            postgresql.os.chown(folder, identity["user"], identity["group"])
        postgresql.initialize(binaries, folder, identity)
        with postgresql.running(binaries, folder, identity) as url:
            yield url


@contextlib.contextmanager
def running_site(folder: Path, *, environment: Path | None = None) -> Iterator[Site]:
    """The site in `folder`, with notebooks if there is an `environment`."""
    with contextlib.ExitStack() as stack:
        wire = stack.enter_context(network())
        url = stack.enter_context(database())
        port, door_port = free_port(), consecutive_ports(2)
        common = {
            "DATABASE_URL": url,
            "BERTH_PUBLIC_URL": f"http://localhost:{port}",
            "BERTH_TRUSTED_PROXIES": "127.0.0.1",
            "BERTH_PROXY_SECRET": PROXY_SECRET,
            "BERTH_NODES_ADDRESS": wire.here,
            "BERTH_NODES_PORT": str(door_port),
            "BERTH_HOME_LIMIT_MIB": HOME_LIMIT_MIB,
            # The node reports its installed programs soon after it has joined.
            "BERTH_INVENTORY_INTERVAL_S": "5",
        }
        node = SecondMachine(folder / "node", wire, environment=environment or folder / "none")
        if environment is None:
            node.environ["BERTH_SKIP_NOTEBOOK"] = "1"
        stack.callback(node.end)
        first = stack.enter_context(instance.running(folder, environment=environment, **common))
        stack.callback(node.end)
        limits = {name: value for name, value in first.environ.items() if "_PER_" in name}
        hosts = [WebHost(name, folder, first, **common, **limits) for name in ("a", "b")]
        for host in hosts:
            stack.callback(host.end)
            host.prepare()
        with ThreadPoolExecutor() as pool:
            list(pool.map(WebHost.start, hosts))
        stack.enter_context(balancer(folder, port, hosts, PROXY_SECRET))
        address = Address(port, first.tokens)
        ada = Api(address, first.tokens["ada"])  # type: ignore[arg-type]
        stack.callback(ada.close)
        eventually(lambda: answers(address), limit_s=30, what="the address answers")
        join(first, address, node, f"https://{wire.here}:{door_port}")
        yield Site(address, hosts, node, ada)
        for row in ada.json("GET", "workspaces")["results"]:
            ada.act(row["id"], "delete")
            ada.wait(row["id"], "terminated")


def answers(address: Address) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"http://127.0.0.1:{address.port}/healthz/live", timeout=5).is_success
    return False


def join(first: Berth, address: Address, node: SecondMachine, door: str) -> None:
    """Make the second machine the only node that takes work."""
    lines = first.run("-c", SET_UP, APP.read_text(), DJANGO_SETTINGS_MODULE="portal.settings").split()
    done = node.join(door, lines[0], "node-b")
    assert done.returncode == 0, done.stdout + done.stderr
    node.run()
    admin = Api(address, lines[1])  # type: ignore[arg-type]

    def online() -> dict[str, Any] | None:
        rows = {row["name"]: row for row in admin.json("GET", "nodes")["results"]}
        return rows if rows.get("node-b", {}).get("online") else None

    rows = eventually(online, limit_s=LIMIT_S, what=lambda: node.log.read_text()[-3000:])
    admin.json("POST", f"nodes/{rows['node-a']['id']}/cordon", {})
    admin.close()
