"""Shared by tests of the local driver: a pool in a temporary folder and specifications for it."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from provisioning.drivers.local import cgroups, processes, scratch
from provisioning.drivers.local.driver import LocalDriver
from provisioning.drivers.local.processes import parent_of
from provisioning.types import (
    AgentSpec,
    AppSpec,
    NodePlacement,
    Observation,
    ObservedState,
    Placement,
    PoolConfig,
    ResourceRequest,
    WorkspaceRef,
    WorkspaceSpec,
)
from tests.node_sockets import get_json, socket_path

# Serves the value of an expression, to inspect the workspace from inside.
PROBE = """
import http.server, json, os, sys, urllib.parse
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        text = urllib.parse.unquote(urllib.parse.urlsplit(self.path).query)
        try:
            value = eval(text, {"os": os, "sys": sys}) if text else None
        except BaseException as error:
            value = type(error).__name__
        self.wfile.write(json.dumps(value).encode())
    def log_message(self, *arguments):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


HOMES: list[Path] = []
"""$BERTH_HOME of every pool."""


class Pool:
    """A local driver with everything it started; `close` stops it and checks that nothing is left."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.home = folder / "berth"
        HOMES.append(self.home)
        settings = {"home": str(self.home), "environment": str(folder / "none"), **config}
        self.driver = LocalDriver(PoolConfig("local", "local", settings))
        self.started: list[WorkspaceRef] = []

    def spec(self, *argv: str, **changes: Any) -> WorkspaceSpec:
        ref = WorkspaceRef(str(uuid.uuid4()), 1)
        app = AppSpec(argv=argv or ("python3", "-c", PROBE, "{port}"), start_timeout_s=20, stop_timeout_s=2)
        spec = WorkspaceSpec(
            ref=ref,
            name="My Notebook",
            owner="ada",
            team="analysts",
            template="test",
            app=app,
            resources=ResourceRequest(cpu_milli=500, memory_mib=256),
            agent=AgentSpec("http://127.0.0.1:9", "agent-" + uuid.uuid4().hex),
            app_token="app-" + uuid.uuid4().hex,
        )
        return replace(spec, **changes)

    def start(self, spec: WorkspaceSpec) -> Observation:
        self.started.append(spec.ref)
        return self.driver.ensure_started(spec, Placement((NodePlacement(self.driver.node_name),)))

    def run(self, spec: WorkspaceSpec) -> Observation:
        self.start(spec)
        return self.wait(lambda: self.driver.observe(spec.ref), ObservedState.RUNNING)

    def wait(
        self, call: Callable[[], Observation], *states: ObservedState, timeout_s: float = 20
    ) -> Observation:
        deadline = time.monotonic() + timeout_s
        while True:
            seen = call()
            if seen.state in states:
                return seen
            assert time.monotonic() < deadline, f"still {seen}"
            time.sleep(0.02)

    def pids(self, ref: WorkspaceRef) -> list[int]:
        """Return the processes with the workspace name in their environment, from /proc."""
        return [pid for pid, _ in self._marked(ref)]

    def _marked(self, ref: WorkspaceRef) -> Iterator[tuple[int, list[bytes]]]:
        """Return its processes with their environments; each may end at any moment."""
        marker = f"BERTH_WORKSPACE={ref.external_name}".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                environ = path.read_bytes().split(b"\0")
                if marker in environ:
                    yield int(path.parent.name), environ

    def agent_pid(self, ref: WorkspaceRef) -> int:
        pids = {pid for pid, environ in self._marked(ref) if b"BERTH_ROLE=agent" in environ}
        # A forked child, its relay, has the same environment.
        (pid,) = [pid for pid in pids if parent_of(pid) not in {None, *pids}]
        return pid

    def close(self) -> None:
        for ref in self.started:
            last = replace(ref, generation=ref.generation + 1000)
            self.wait(lambda last=last: self.driver.ensure_deleted(last), ObservedState.ABSENT)
            assert self.pids(ref) == []
            assert not (self.home / "local" / ref.external_name).exists()
        scratch.sweep(self.driver.base)
        cgroups.sweep_left(self.driver.instance)


def filters_of(pool: Pool, spec: WorkspaceSpec) -> dict[int, str]:
    """Return the seccomp mode of each process in the sandbox: 2 if a filter applies."""
    folder = pool.driver._dir(spec.ref)
    launched = folder.launched()
    assert launched is not None
    modes = {}
    for process in processes.scan(pool.driver.instance, folder.name, spares=folder.claimed()):
        if process.pid == launched.pid:
            continue  # the outer bubblewrap process
        try:
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
        (modes[process.pid],) = [line.split()[1] for line in lines if line.startswith("Seccomp:")]
    return modes


def socket_of(observation: Observation) -> Path:
    """Return the socket of a running workspace of any pool."""
    paths = [socket_path(home, observation.endpoint) for home in HOMES]
    return next(path for path in paths if path.exists())


def ask(observation: Observation, expression: str, *, timeout_s: float = 20.0) -> Any:
    """Evaluate a Python expression inside the workspace."""
    return get_json(socket_of(observation), "/?" + quote(expression), timeout_s=timeout_s)


def is_root() -> bool:
    return os.geteuid() == 0
