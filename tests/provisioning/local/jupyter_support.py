"""A JupyterLab in a workspace of the local driver, called like the gateway does."""

from __future__ import annotations

import json
import os
import queue
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from local_support import Pool
from websockets.sync.client import ClientConnection, connect

from portal.catalog.initial_catalog import TEMPLATES
from provisioning.drivers.local import processes
from provisioning.types import AppSpec, ObservedState, ResourceRequest
from tests.node_sockets import PortalSocket, SocketConnection, plug, run_in_network, socket_path

DEFAULT = Path(os.environ.get("BERTH_HOME", "var")) / "environments" / "notebook"
ENVIRONMENT = Path(os.environ.get("BERTH_TEST_NOTEBOOK_ENV", DEFAULT)).absolute()
LIMIT_S = 60
LARGE = 48 << 20


class Jupyter:
    """A JupyterLab in a workspace, called like the gateway does."""

    def __init__(self, pool: Pool, *, prepared: bool, heartbeat_s: int = 15) -> None:
        if prepared:
            pool.driver.spare_count = 1
            pool.driver.warm_up(owner=os.getpid())
            until(lambda: unclaimed(pool), what="no spare became ready")
        (template,) = [candidate for candidate in TEMPLATES if candidate["slug"] == "jupyterlab"]
        app = AppSpec(
            argv=tuple(template["argv"]), env=template["env"], ready_path="/api", activity="jupyter"
        )
        self.pool = pool
        self.spec = pool.spec(app=app, resources=ResourceRequest(cpu_milli=2000, memory_mib=2048))
        self.spec = replace(self.spec, agent=replace(self.spec.agent, heartbeat_s=heartbeat_s))
        pool.start(self.spec)
        seen = pool.wait(
            lambda: pool.driver.observe(self.spec.ref),
            ObservedState.RUNNING,
            ObservedState.FAILED,
            timeout_s=LIMIT_S,
        )
        assert seen.state is ObservedState.RUNNING, f"{seen.message}\n{seen.log_tail}"
        self.socket = socket_path(pool.home, seen.endpoint)
        self.token = self.spec.app_token
        assert pool.driver._dir(self.spec.ref).claimed() or not prepared

    @property
    def home(self) -> Path:
        """The home of its user, outside the sandbox."""
        return self.pool.home / "homes" / self.spec.home_key

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = self.bytes(method, path, body)
        return json.loads(data) if data else None

    def bytes(self, method: str, path: str, body: Any = None) -> bytes:
        """Return the response body; a refusal fails the test."""
        connection = SocketConnection(self.socket, timeout_s=LIMIT_S)
        headers = {"Authorization": f"Bearer {self.token}"}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        assert answer.status < 400, data
        return data

    def activity(self) -> Any:
        """Return the activity that the agent determines, from inside the workspace."""
        folder = self.pool.driver._dir(self.spec.ref)
        record = folder.record()
        assert record is not None
        launched = folder.launched()
        assert launched is not None
        first = processes.sandbox_init(launched.pid)
        assert first is not None
        call = f"jupyter_activity({record.ports[0]}, {self.token!r})"
        source = "from provisioning.agent.program.jupyter import jupyter_activity"
        code = f"import json; {source}; print(json.dumps({call}))"
        return json.loads(run_in_network(first, code))

    def kernel(self, name: str = "python3", path: str = "") -> str:
        started = self.call("POST", "/api/kernels", {"name": name, "path": path})
        return str(started["id"])

    @contextmanager
    def channel(self, kernel: str) -> Iterator[ClientConnection]:
        connection = plug(self.socket, timeout_s=LIMIT_S)
        with connect(
            f"ws://127.0.0.1/api/kernels/{kernel}/channels",
            sock=connection,
            additional_headers={"Authorization": f"Bearer {self.token}"},
            max_size=None,
            open_timeout=LIMIT_S,
        ) as channel:
            yield channel

    def run(self, kernel: str, code: str) -> str:
        """Run a cell. Returns its output or the name of its exception."""
        with self.channel(kernel) as channel:
            return result(channel, send(channel, code))

    def value(self, kernel: str, expression: str) -> Any:
        return json.loads(self.run(kernel, f"import json, os, sys; print(json.dumps({expression}))"))


def send(channel: ClientConnection, code: str) -> str:
    """Send a cell. Returns the request number for `result`."""
    number = uuid.uuid4().hex
    header = {"msg_id": number, "msg_type": "execute_request", "session": "s", "version": "5.3"}
    content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
    message = {"header": {**header, "username": ""}, "parent_header": {}, "metadata": {}, "content": content}
    channel.send(json.dumps({**message, "channel": "shell", "buffers": []}))
    return number


def result(channel: ClientConnection, request: str, limit_s: float = LIMIT_S) -> str:
    """Return the output of a request or the name of its exception; other answers are skipped."""
    printed = ""
    while True:
        answer = json.loads(channel.recv(timeout=limit_s))
        if answer["parent_header"].get("msg_id") != request:
            continue
        if answer["msg_type"] == "stream":
            printed += answer["content"]["text"]
        if answer["msg_type"] == "error":
            printed += str(answer["content"]["ename"])
        if answer["msg_type"] == "status" and answer["content"]["execution_state"] == "idle":
            return printed


def unclaimed(pool: Pool) -> bool:
    states = (pool.home / "local" / ".spares").glob("*/run/state.json")
    return any("unclaimed" in path.read_text() for path in states)


def until(condition: Callable[[], Any], *, what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@contextmanager
def heartbeats(pool: Pool, figure: str) -> Iterator[queue.Queue[Any]]:
    """Replace the portal and yield one figure of each heartbeat of the pool's workspaces.

    A busy app may report none; such heartbeats are skipped.
    """
    seen: queue.Queue[Any] = queue.Queue()

    class Portal(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path.endswith("/heartbeat") and body["activity"][figure] is not None:
                seen.put(body["activity"][figure])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Suppress request logging."""

    portal = PortalSocket(pool.home, Portal)
    try:
        yield seen
    finally:
        portal.close()


def at_rest(seen: queue.Queue[Any], *, least: int = 0) -> int:
    """Return the figure once two consecutive heartbeats agree on it, at least `least`."""
    figures = [seen.get(timeout=LIMIT_S)]

    def rests() -> bool:
        figures.append(seen.get(timeout=LIMIT_S))
        return bool(least <= figures[-1] == figures[-2])

    until(rests, what="nothing more comes or goes")
    return int(figures[-1])


def counts_a_file(jupyter: Jupyter, traffic: queue.Queue[Any]) -> None:
    """Assert that heartbeats count the bytes of a large downloaded file, and little else."""
    before = at_rest(traffic, least=1)
    (jupyter.home / "large.bin").write_bytes(bytes(LARGE))
    connection = SocketConnection(jupyter.socket, timeout_s=LIMIT_S)
    connection.request("GET", "/files/large.bin", headers={"Authorization": f"Bearer {jupyter.token}"})
    assert len(connection.getresponse().read()) == LARGE
    connection.close()
    until(lambda: 0 < traffic.get(timeout=LIMIT_S) - before - LARGE < 1 << 20, what="the file")
