"""The running doors: Caddy and the Redis door, with and without client certificates."""

from __future__ import annotations

import contextlib
import http.server
import json
import shutil
import socket
import ssl
import stat
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from cryptography.hazmat.primitives.asymmetric import ec

from portal.common import front_door
from portal.embedded import authority, configs, door_guard
from portal.embedded.door_guard import proxy_header
from portal.fleet.machines import certificates, door, redis_rules, redis_users, services, upkeep
from portal.fleet.machines.certificates import Authority
from portal.fleet.machines.models import Machine, MachineState
from provisioning.redis_client import TLS, client, url
from tests.newcomers import Newcomer, open_doors, token_for
from tests.workspaces.gateway.gateway_support import eventually, free_port, running, valkey_binary

pytestmark = pytest.mark.engine
SECRET = "a gateway secret for tests alone"


class Portal(http.server.BaseHTTPRequestHandler):
    """Replaces the portal: returns what it received."""

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.dumps(
            {"path": self.path, "headers": dict(self.headers), "length": len(self.rfile.read(length))}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@dataclass
class Site:
    """The folder of certificates, and the ports of the HTTPS door, the Redis door and Redis."""

    tls: Path
    https: int
    redis: int
    plain_redis: int

    def of(self, name: str, folder: Path) -> tuple[Path, Path]:
        """Files of a certificate of the authority for `node:<name>`, or for a name with a dot as it is."""
        key = ec.generate_private_key(ec.SECP256R1())
        plain = f"node:{name}" if "." not in name else name
        made = Authority.load(self.tls).issue(
            key.public_key(), name=plain, host=certificates.host_of("x"),
            usages=(certificates.CLIENT, certificates.SERVER),
        )  # fmt: skip
        folder.mkdir(exist_ok=True, parents=True)
        (folder / f"{name}.pem").write_text(made.pem)
        (folder / f"{name}.key").write_text(certificates.pem_of(key))
        return folder / f"{name}.pem", folder / f"{name}.key"

    def ask(
        self, method: str, path: str, pair: tuple[Path, Path] | None = None, **more: Any
    ) -> httpx.Response:
        context = ssl.create_default_context(cafile=str(self.tls / "authority.pem"))
        if pair:
            context.load_cert_chain(*pair)
        with httpx.Client(verify=context, trust_env=False, timeout=20) as asking:
            return asking.request(
                method,
                f"https://127.0.0.1:{self.https}{path}",
                extensions={"sni_hostname": certificates.PORTAL_NAME},
                **more,
            )

    def redis_url(self, user: str, password: str, pair: tuple[Path, Path]) -> str:
        tls = TLS(self.tls / "authority.pem", *pair, server_name=certificates.PORTAL_NAME)
        return url(host="127.0.0.1", port=self.redis, user=user, password=password, tls=tls)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("doors")
    issued = authority.ensure(folder / "tls")
    found = Site(folder / "tls", free_port(), free_port(), free_port())
    users = folder / "redis.acl"
    users.write_text(configs.redis_acl("secret-control", [configs.RedisNode("own", "secret-own")]))
    valkey = [valkey_binary(), "--port", str(found.plain_redis), "--bind", "127.0.0.1", "--save", "",
              "--aclfile", str(users)]  # fmt: skip
    to_redis = [sys.executable, "-m", "portal.embedded.redis_door", "--listen", f"127.0.0.1:{found.redis}",
                "--to", str(found.plain_redis), "--tls", str(found.tls)]  # fmt: skip
    guard = [sys.executable, "-m", "portal.embedded.door_guard", "--listen", f"127.0.0.1:{found.https}",
             "--to", str(folder / "door.sock")]  # fmt: skip
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Portal)
    thread = threading.Thread(target=web.serve_forever, daemon=True)
    thread.start()
    config = folder / "door.json"
    config.write_text(
        door.caddy_config(
            listen="door.sock",
            authority=issued.door.authority,
            certificate=issued.door.certificate,
            key=issued.door.key,
            web_url=f"http://127.0.0.1:{web.server_address[1]}",
            gateway_secret=SECRET,
            storage=folder / "storage",
            front="127.0.0.1:1",
            domain="localhost",
        )
    )
    beside = Path(sys.executable).with_name("caddy")
    caddy = str(beside) if beside.exists() else shutil.which("caddy")
    assert caddy is not None, "make up brings it"
    with (
        running(valkey, ready="Ready to accept connections", log=folder / "valkey.log"),
        running(to_redis, log=folder / "redis-door.log"),
        running([caddy, "run", "--config", str(config)], log=folder / "caddy.log", cwd=folder),
        running(guard, log=folder / "guard.log"),
    ):
        for port in (found.https, found.redis):
            eventually(lambda port=port: _open(port))
        yield found
    web.shutdown()
    web.server_close()


def _open(port: int) -> bool | None:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return None


# --- https -------------------------------------------------------------------------------------------


def test_authority_and_join_are_the_only_public_routes(site: Site) -> None:
    found = site.ask("GET", "/nodes/v1/authority").json()
    assert found["headers"][door.DOOR_HEADER] == door.token_of(SECRET)
    assert site.ask("POST", "/nodes/v1/join", content=b"{}").json()["length"] == 2
    for method, path in (
        ("POST", "/nodes/v1/rotate"), ("POST", "/nodes/v1/leave"), ("POST", "/agent/v1/ready"),
        ("GET", "/"), ("GET", "/api/v1/pools"), ("POST", "/nodes/v1/authority"), ("GET", "/nodes/v1/join"),
        ("POST", "/nodes/v1/join/"), ("POST", "/nodes/v1/join/../../api/v1/pools"),
        ("POST", "/nodes/v1/joinx"), ("POST", "/NODES/v1/joi%6e/x"),
    ):  # fmt: skip
        assert site.ask(method, path).status_code == 404, (method, path)


def test_node_identity_comes_from_its_certificate_only(site: Site, tmp_path: Path) -> None:
    pair = site.of("gpu-a", tmp_path)
    lies = {
        door.NODE_HEADER: "gpu-b",
        door.SERIAL_HEADER: "1",
        door.DOOR_HEADER: "x",
        front_door.TOKEN_HEADER: "x",
        front_door.PROXY_HEADER: "x",
        "X-Forwarded-For": "10.0.0.1",
    }
    for path in ("/nodes/v1/rotate", "/nodes/v1/leave", "/agent/v1/heartbeat"):
        headers = site.ask("POST", path, pair, headers=lies).json()["headers"]
        assert headers[door.NODE_HEADER] == "gpu-a"
        assert int(headers[door.SERIAL_HEADER]) > 1
        assert headers["X-Forwarded-For"] == "127.0.0.1"
        assert headers[door.DOOR_HEADER] == door.token_of(SECRET)
        # The portal answers no agent that came through the front door.
        expected = None if path.startswith("/agent/") else front_door.token_of(SECRET)
        assert headers.get(front_door.TOKEN_HEADER) == expected
        assert front_door.PROXY_HEADER not in headers
    for pair_or_none in (None, pair):
        headers = site.ask("POST", "/nodes/v1/join", pair_or_none, headers=lies).json()["headers"]
        assert door.NODE_HEADER not in headers and door.SERIAL_HEADER not in headers


def test_other_certificates_are_not_accepted_as_nodes(site: Site, tmp_path: Path) -> None:
    front = (site.tls / "front-door.pem", site.tls / "front-door.key")
    assert site.ask("POST", "/nodes/v1/leave", front).status_code == 404
    for name in ("node:Evil.x", "x.node:gpu-a"):
        assert site.ask("POST", "/nodes/v1/leave", site.of(name, tmp_path)).status_code == 404
    foreign = Site(tmp_path / "other", 0, 0, 0)
    authority.ensure(foreign.tls)
    with pytest.raises(httpx.TransportError):
        site.ask("POST", "/nodes/v1/leave", foreign.of("gpu-a", tmp_path / "foreign"))


def test_bodies_and_headers_are_limited(site: Site, tmp_path: Path) -> None:
    assert site.ask("POST", "/nodes/v1/join", content=b" " * (door.MAX_NODE_BODY + 1)).status_code in {
        413,
        502,
    }
    assert site.ask("POST", "/nodes/v1/join", headers={"X": "x" * 40_000}).status_code == 431
    pair = site.of("gpu-a", tmp_path)
    assert site.ask("POST", "/agent/v1/exited", pair, content=b" " * 100_000).json()["length"] == 100_000


def test_door_accepts_client_addresses_from_the_guard_only(site: Site, tmp_path: Path) -> None:
    """A client that sends a PROXY protocol header does not speak TLS."""
    line = proxy_header(("10.66.0.1", 1), ("127.0.0.1", site.https))
    with socket.create_connection(("127.0.0.1", site.https), timeout=20) as raw:
        raw.sendall(line)
        with contextlib.suppress(ConnectionError):
            assert raw.recv(10) == b""
    assert stat.S_IMODE((site.tls.parent / "door.sock").stat().st_mode) == 0o600
    headers = site.ask("POST", "/nodes/v1/join").json()["headers"]
    assert headers["X-Forwarded-For"] == "127.0.0.1"


def test_anonymous_connections_do_not_block_nodes(site: Site, tmp_path: Path) -> None:
    """Twice the connections allowed per address, silent or with a started handshake."""
    with contextlib.ExitStack() as stack:
        for _ in range(2 * door_guard.MAX_OF_AN_ADDRESS):
            with contextlib.suppress(OSError):
                raw = stack.enter_context(socket.create_connection(("127.0.0.1", site.https), timeout=5))
                raw.sendall(b"\x16\x03\x01\x02\x00")
        with pytest.raises(httpx.TransportError):
            # This address has reached its limit; others are tested in test_door_guard.
            site.ask("GET", "/nodes/v1/authority")
    assert eventually(lambda: _asked(site)), "and it comes in again as soon as they are gone"


def _asked(site: Site) -> bool | None:
    try:
        return site.ask("GET", "/nodes/v1/authority").status_code == 200 or None
    except httpx.TransportError:
        return None


# --- Redis -------------------------------------------------------------------------------------------


@pytest.fixture
def control(site: Site, settings: Any) -> Iterator[redis.Redis]:
    settings.BERTH_REDIS_URL = f"redis://control:secret-control@127.0.0.1:{site.plain_redis}/0"
    redis_users.connection.cache_clear()
    with redis.Redis.from_url(settings.BERTH_REDIS_URL) as found:
        yield found
    redis_users.connection.cache_clear()


def test_redis_is_reached_with_a_nodes_certificate_only(
    site: Site, control: redis.Redis, tmp_path: Path
) -> None:
    with client(site.redis_url("node-own", "secret-own", site.of("gpu-a", tmp_path))) as good:
        good.rpush("berth:q:node.own", "x" * 300_000)
        assert len(good.brpop(["berth:q:node.own"])[1]) == 300_000  # type: ignore[arg-type]
    for pair in (
        (site.tls / "front-door.pem", site.tls / "front-door.key"),
        site.of("node:Evil.x", tmp_path),
    ):
        with client(site.redis_url("node-own", "secret-own", pair)) as bad, pytest.raises(redis.RedisError):
            bad.ping()
    with socket.create_connection(("127.0.0.1", site.redis), timeout=20) as plain:
        plain.sendall(b"AUTH node-own secret-own\r\nPING\r\n")
        assert b"PONG" not in plain.recv(100)
    context = ssl.create_default_context(cafile=str(site.tls / "authority.pem"))
    with (
        socket.create_connection(("127.0.0.1", site.redis), timeout=20) as raw,
        pytest.raises(OSError),
        context.wrap_socket(raw, server_hostname=certificates.PORTAL_NAME) as without,
    ):
        without.sendall(b"PING\r\n")
        assert not without.recv(100)
        raise ConnectionError("closed")


@pytest.mark.django_db
def test_joined_machine_can_use_its_queue_and_revoked_machine_is_cut_off(
    site: Site, control: redis.Redis, settings: Any, tmp_path: Path, local_pool: Any, olga: Any
) -> None:
    open_doors(settings, site.tls)
    clients = {}
    for name in ("gpu-a", "gpu-b"):
        newcomer = Newcomer(name)
        assert newcomer.join(token_for(local_pool, olga)).status_code == 201
        (tmp_path / f"{name}.pem").write_text(newcomer.answer["certificate"])
        (tmp_path / f"{name}.key").write_text(certificates.pem_of(newcomer.key))
        pair = (tmp_path / f"{name}.pem", tmp_path / f"{name}.key")
        access = newcomer.answer["redis"]
        clients[name] = client(site.redis_url(access["user"], access["password"], pair), retry=None)
    a, b = clients["gpu-a"], clients["gpu-b"]
    control.lpush("berth:q:node.gpu-b", "for b")
    for attempt in (
        lambda: a.brpop(["berth:q:node.gpu-b"]),
        lambda: a.lpush("berth:q:node.gpu-b", "x"),
        lambda: a.lrange("berth:q:control", 0, -1),
        lambda: a.lrange("berth:q:engine", 0, -1),
        lambda: a.brpop(["berth:q:node.own"]),
        lambda: a.acl_list(),
    ):
        with pytest.raises(redis.exceptions.NoPermissionError):
            attempt()
    assert b.brpop(["berth:q:node.gpu-b"]) == (b"berth:q:node.gpu-b", b"for b")
    assert a.lpush("berth:q:control.node.gpu-a", "{}") >= 1

    # Users lost by Redis are restored from the database.
    control.execute_command("ACL", "DELUSER", "node-gpu-a", "node-gpu-b")
    with pytest.raises(redis.RedisError):
        a.ping()
    upkeep.run()
    assert a.ping() and b.ping()

    held = a.connection_pool.get_connection()
    services.revoke(actor=olga, machine_id=Machine.objects.get(name="gpu-a").pk)
    with pytest.raises((redis.RedisError, OSError)):
        held.send_command("PING")
        held.read_response()
    with pytest.raises(redis.RedisError):
        a.ping()
    assert b"node-gpu-a" not in control.execute_command("ACL", "USERS")
    upkeep.run()
    assert b"node-gpu-a" not in control.execute_command("ACL", "USERS")
    assert b.ping()
    services.remove(actor=olga, machine_id=Machine.objects.get(name="gpu-a").pk)
    assert not Machine.objects.filter(name="gpu-a").exists()


@pytest.mark.django_db
def test_replaced_password_expires_after_its_overlap(
    site: Site, control: redis.Redis, settings: Any, local_pool: Any, olga: Any, clock: Any
) -> None:
    open_doors(settings, site.tls)
    newcomer = Newcomer("gpu-c")
    assert newcomer.join(token_for(local_pool, olga)).status_code == 201
    old = newcomer.answer["redis"]["password"]
    assert newcomer.rotate().status_code == 200
    new = newcomer.answer["redis"]["password"]

    def with_password(password: str) -> redis.Redis:
        return redis.Redis(port=site.plain_redis, username="node-gpu-c", password=password, retry=None)

    held = with_password(old)
    assert held.ping() and with_password(new).ping()
    clock.shift(601)
    upkeep.run()
    for late in (held, with_password(old)):
        with pytest.raises(redis.RedisError):
            late.ping()
    assert with_password(new).ping()


@pytest.mark.django_db
def test_row_changed_while_users_are_written_wins(
    site: Site,
    control: redis.Redis,
    settings: Any,
    local_pool: Any,
    olga: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sweep read the row before it was revoked, and writes afterwards."""
    open_doors(settings, site.tls)
    assert Newcomer("gpu-d").join(token_for(local_pool, olga)).status_code == 201
    real = redis_users._apply

    def late(*arguments: Any) -> None:
        monkeypatch.setattr(redis_users, "_apply", real)
        Machine.objects.update(state=MachineState.REVOKED)
        control.execute_command("ACL", "DELUSER", redis_rules.user_of("gpu-d"))
        real(*arguments)

    monkeypatch.setattr(redis_users, "_apply", late)
    assert redis_users.sync()
    assert b"node-gpu-d" not in control.execute_command("ACL", "USERS")
