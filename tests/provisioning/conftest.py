"""Harnesses of the driver contract suite.

To test a new driver, write a subclass of `Harness` and add it to `HARNESSES`.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
import venv
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, cast

import pytest

from provisioning import messages, registry
from provisioning.driver import Driver
from provisioning.errors import ProvisioningError
from provisioning.types import (
    AcceleratorRequest,
    AgentSpec,
    AppSpec,
    JsonScalar,
    NodePlacement,
    Observation,
    ObservedState,
    Placement,
    PoolConfig,
    ResourceRequest,
    WorkspaceRef,
    WorkspaceSpec,
)
from tests.node_sockets import PortalSocket, get, socket_path

APPS = Path(__file__).parent / "apps"
REPOSITORY = Path(__file__).parents[2]
CALL_LIMIT_S = 5.0
"""A call that waits for its app takes longer; any other takes less, even on a loaded machine."""
POLL_S = 0.02
STUBBORN_STOP_TIMEOUT_S = 1


class TimedDriver:
    """Forwards calls and records their duration and errors."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.calls: list[tuple[str, float]] = []
        self.errors: list[ProvisioningError] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.driver, name)
        if not callable(method):
            return method

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            try:
                return method(*args, **kwargs)
            except ProvisioningError as error:
                self.errors.append(error)
                raise
            finally:
                self.calls.append((name, time.monotonic() - began))

        return timed


@dataclass(frozen=True)
class AgentCall:
    """A call of an agent to the portal."""

    path: str
    token: str
    body: dict[str, Any]


class StubPortal:
    """Answers agents like the portal, and records their calls."""

    def __init__(self) -> None:
        self.calls: list[AgentCall] = []
        self.said = threading.Condition()
        portal = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                token = self.headers.get("Authorization", "").removeprefix("Bearer ")
                with portal.said:
                    portal.calls.append(AgentCall(self.path, token, body))
                    portal.said.notify_all()
                answer = b'{"next_s": 1}' if self.path.endswith("/heartbeat") else b""
                self.send_response(200 if answer else 204)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Suppress request logging."""

        self.handler = Handler
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def wait_for(self, path: str, ref: WorkspaceRef, *, timeout_s: float = 20) -> AgentCall:
        """Wait for the first call to `path` about `ref`."""

        def found() -> list[AgentCall]:
            return [c for c in self.calls if c.path == path and c.body["workspace_id"] == ref.workspace_id]

        with self.said:
            assert self.said.wait_for(found, timeout_s), f"no {path} from {ref} among {self.calls}"
            return found()[0]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class Caller:
    """A process that is ready to call the driver; see `apps/call_driver.py`."""

    def __init__(self, fork: Callable[[tuple[int, ...]], None]) -> None:
        """`fork` starts the process with three standard streams and a pipe for the exit status."""
        child_end, self._input = os.pipe()
        ends = [os.pipe() for _ in range(3)]
        self._output, self._error, self._status = (os.fdopen(read, "rb") for read, _ in ends)
        streams = (child_end, *(write for _, write in ends))
        fork(streams)
        for stream in streams:
            os.close(stream)

    def tell(self, line: str) -> None:
        os.write(self._input, f"{line}\n".encode())

    def is_ready(self) -> bool:
        return self._output.readline() == b"ready\n"

    def go(self) -> None:
        self.tell("")

    def error(self) -> str:
        return self._read_to_end()[self._error].decode()

    def answer(self) -> dict[str, Any] | None:
        """Return the result of the call, or `None` if the process was killed."""
        read = self._read_to_end()
        code = int(read[self._status])
        if code == -signal.SIGKILL:
            return None
        assert code == 0, read[self._error].decode()
        return dict(json.loads(read[self._output].decode().strip().splitlines()[-1]))

    def _read_to_end(self, timeout_s: float = 30) -> dict[BinaryIO, bytes]:
        """Read to the end, which proves that the workspace holds none of our pipes."""
        os.close(self._input)
        deadline = time.monotonic() + timeout_s
        read = dict.fromkeys((self._output, self._error, self._status), b"")
        with selectors.DefaultSelector() as selector:
            for file in read:
                selector.register(file, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(deadline - time.monotonic())
                assert ready, f"still open after {timeout_s} s; read: {list(read.values())}"
                for key, _ in ready:
                    file = cast(BinaryIO, key.fileobj)
                    if chunk := file.read1(1 << 16):  # type: ignore[attr-defined]
                        read[file] += chunk
                    else:
                        selector.unregister(file)
                        file.close()
        return read


class Callers:
    """Forks `Caller` processes from one that has imported the drivers."""

    def __init__(self) -> None:
        self._requests, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with child_end:
            self._process = subprocess.Popen(
                [sys.executable, str(APPS / "call_driver.py"), str(child_end.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[child_end.fileno()],
                cwd=REPOSITORY,
                env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            )

    def start(self) -> Caller:
        environment = json.dumps(os.environ | {"PYTHONPATH": str(REPOSITORY)}).encode()
        return Caller(lambda streams: self._fork(environment, streams))

    def _fork(self, environment: bytes, streams: tuple[int, ...]) -> None:
        socket.send_fds(self._requests, [environment], streams)

    def close(self) -> None:
        self._requests.close()
        self._process.wait(10)


@dataclass
class Harness(ABC):
    """A driver under test. `running` and `starts` query the backend, never the driver."""

    tmp: Path
    portal: StubPortal
    callers: Callers
    specs: list[WorkspaceSpec] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool = PoolConfig("contract", self.driver_name, self.config())
        self.driver: Any = TimedDriver(registry.driver_for(self.pool))

    driver_name = ""
    can_crash_itself = True

    @abstractmethod
    def config(self) -> dict[str, JsonScalar]: ...

    @abstractmethod
    def app(self, kind: str, tag: str) -> AppSpec: ...

    def ask(self, seen: Observation) -> str:
        """Return the response of the running app at its observed endpoint, or an empty text."""
        return ""

    @abstractmethod
    def running(self, spec: WorkspaceSpec) -> int:
        """Return how many copies of the app run on the backend."""

    @abstractmethod
    def starts(self, spec: WorkspaceSpec) -> int:
        """Return how often the app of the workspace has been started."""

    @abstractmethod
    def home_exists(self, spec: WorkspaceSpec) -> bool: ...

    @abstractmethod
    def leftovers(self, spec: WorkspaceSpec) -> list[str]:
        """Return remains of a workspace, except its home and the mark of its closed generation."""

    @abstractmethod
    def places_of(self, secret: str) -> list[str]:
        """Return places where others could read `secret`."""

    @abstractmethod
    def broken(self) -> Any:
        """Return a driver whose state cannot be written; the constructor may raise."""

    def spec(self, kind: str = "good", *, generation: int = 1, **changes: Any) -> WorkspaceSpec:
        workspace_id = str(uuid.uuid4())
        spec = WorkspaceSpec(
            ref=WorkspaceRef(workspace_id, generation),
            name=f"{kind}-{workspace_id[:8]}",
            owner="ada",
            team="analysts",
            template="test",
            app=self.app(kind, workspace_id),
            resources=ResourceRequest(cpu_milli=100, memory_mib=256, accelerators=AcceleratorRequest()),
            agent=AgentSpec(self.portal.url, token="agent-secret-" + uuid.uuid4().hex, heartbeat_s=1),
            app_token="app-secret-" + uuid.uuid4().hex,
        )
        spec = replace(spec, **changes)
        self.specs.append(spec)
        return spec

    def later(self, spec: WorkspaceSpec, *, by: int = 1) -> WorkspaceSpec:
        """Return the next incarnation of the workspace, with new tokens."""
        following = replace(
            spec,
            ref=replace(spec.ref, generation=spec.ref.generation + by),
            agent=replace(spec.agent, token="agent-secret-" + uuid.uuid4().hex),
            app_token="app-secret-" + uuid.uuid4().hex,
        )
        self.specs.append(following)
        return following

    def placement(self) -> Placement:
        return Placement((NodePlacement(self.driver.inventory().nodes[0].name),))

    def start(self, spec: WorkspaceSpec) -> Observation:
        observation = self.driver.ensure_started(spec, self.placement())
        self.observations.append(observation)
        return observation

    def wait(
        self, call: Callable[[], Observation], *states: ObservedState, timeout_s: float = 20
    ) -> Observation:
        """Repeat a call, like the reconciler, until it returns one of `states`."""
        deadline = time.monotonic() + timeout_s
        while True:
            observation = call()
            self.observations.append(observation)
            if observation.state in states:
                return observation
            assert time.monotonic() < deadline, f"still {observation}, expected {states}"
            time.sleep(POLL_S)

    def run(self, spec: WorkspaceSpec) -> Observation:
        """Start a workspace and wait until it runs."""
        self.start(spec)
        return self.wait(lambda: self.driver.observe(spec.ref), ObservedState.RUNNING)

    def stop(self, ref: WorkspaceRef) -> Observation:
        return self.wait(lambda: self.driver.ensure_stopped(ref), ObservedState.STOPPED, ObservedState.ABSENT)

    def delete(self, ref: WorkspaceRef) -> Observation:
        return self.wait(lambda: self.driver.ensure_deleted(ref), ObservedState.ABSENT)

    def retried(self, call: Callable[[], Observation], *, timeout_s: float = 20) -> Observation:
        """Repeat a call while its failure is retryable."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return call()
            except ProvisioningError as error:
                if not error.retryable or time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)

    def caller(self, op: str, spec: WorkspaceSpec, *, kill_at: int = 0) -> Caller:
        """Return a process that is ready to make one call."""
        caller = self.callers.start()
        order = {
            "pool": messages.dump(self.pool),
            "op": op,
            "spec": messages.dump(spec),
            "placement": messages.dump(self.placement()),
            "kill_at": kill_at,
        }
        caller.tell(json.dumps(order))
        assert caller.is_ready(), caller.error()
        return caller

    def close(self) -> None:
        """Stop everything that the test started, then check the rules that apply to every call."""
        for spec in self.specs:
            highest = max(s.ref.generation for s in self.specs if s.ref.workspace_id == spec.ref.workspace_id)
            ref = replace(spec.ref, generation=highest + 100)
            self.wait(lambda ref=ref: self.driver.ensure_deleted(ref), ObservedState.ABSENT)
            assert self.running(spec) == 0, f"{spec.name} outlived its deletion"
            assert self.leftovers(spec) == []
        slow = [(name, round(took, 2)) for name, took in self.driver.calls if took >= CALL_LIMIT_S]
        assert not slow, f"calls that did not return promptly: {slow}"
        texts = [repr(observation) for observation in self.observations]
        texts += [f"{error.message} {error.detail}" for error in self.driver.errors]
        for spec in self.specs:
            for secret in (spec.app_token, spec.agent.token):
                assert not any(secret in text for text in texts), "a secret stands in an answer or an error"


class SimulatedHarness(Harness):
    driver_name = "simulated"
    script: ClassVar[dict[str, dict[str, JsonScalar]]] = {
        "good": {},
        "slow": {"start_delay_s": 1.0},
        "never": {"never_ready": True},
        "bad": {"crash_after_s": 0, "crash_exit_code": 3},
        "stubborn": {"stop_delay_s": float(STUBBORN_STOP_TIMEOUT_S)},
    }
    tables: ClassVar[tuple[str, ...]] = ("workspaces", "parts", "grants")

    def config(self) -> dict[str, JsonScalar]:
        return {"state": str(self.tmp / "simulated"), "gpus": 2, "start_delay_s": 0.02, "stop_delay_s": 0.02}

    def spec(self, kind: str = "good", *, generation: int = 1, **changes: Any) -> WorkspaceSpec:
        spec = super().spec(kind, generation=generation, **changes)
        if self.script[kind]:
            self.pool = replace(self.pool, config={**self.pool.config, **self.script[kind]})
            self.driver.driver = registry.driver_for(self.pool)
        return spec

    def app(self, kind: str, tag: str) -> AppSpec:
        return AppSpec(argv=("simulated", kind, tag), start_timeout_s=2 if kind == "never" else 20)

    def running(self, spec: WorkspaceSpec) -> int:
        with self.database() as connection:
            return int(
                connection.execute(
                    "SELECT count(*) FROM workspaces WHERE name = ? AND coalesce(ended_at, ?) >= ?"
                    " AND coalesce(failed_at, ?) >= ?",
                    (spec.ref.external_name, *[time.time()] * 4),
                ).fetchone()[0]
            )

    def starts(self, spec: WorkspaceSpec) -> int:
        return int(self.driver.starts(spec.ref))

    def home_exists(self, spec: WorkspaceSpec) -> bool:
        return spec.home_key in self.driver.homes()

    def leftovers(self, spec: WorkspaceSpec) -> list[str]:
        # The next change removes what has ended by then.
        self.driver.ensure_deleted(WorkspaceRef(str(uuid.uuid4()), 1))
        name, remains = spec.ref.external_name, []
        with self.database() as connection:
            for table in self.tables:
                query = f"SELECT count(*) FROM {table} WHERE name = ?"
                if connection.execute(query, (name,)).fetchone()[0]:
                    remains.append(table)
        return remains

    def places_of(self, secret: str) -> list[str]:
        folder = self.tmp / "simulated"
        return [str(path) for path in folder.iterdir() if secret.encode() in path.read_bytes()]

    def broken(self) -> Any:
        blocked = self.tmp / "blocked"
        blocked.write_text("a file where a folder should be")
        return registry.driver_for(
            replace(self.pool, config={**self.pool.config, "state": str(blocked / "state")})
        )

    def database(self) -> Any:
        return closing(sqlite3.connect(self.tmp / "simulated" / "state.sqlite3", timeout=5))


class SimulatedClusterHarness(SimulatedHarness):
    driver_name = "simulated_cluster"
    # An app that answers later than its start timeout never answers.
    script = SimulatedHarness.script | {"never": {"start_delay_s": 60.0}}
    tables = ("workspaces",)

    def running(self, spec: WorkspaceSpec) -> int:
        with self.database() as connection:
            return int(
                connection.execute(
                    "SELECT count(*) FROM workspaces WHERE name = ?"
                    " AND json_extract(job, '$.began_at') IS NOT NULL"
                    " AND json_extract(job, '$.ended_at') IS NULL",
                    (spec.ref.external_name,),
                ).fetchone()[0]
            )


class LocalHarness(Harness):
    driver_name = "local"

    def __init__(self, tmp: Path, portal: StubPortal, callers: Callers, environment: Path) -> None:
        self.environment = environment
        super().__init__(tmp, portal, callers)
        self.portal_socket = PortalSocket(tmp / "berth", portal.handler)

    def config(self) -> dict[str, JsonScalar]:
        return {
            "home": str(self.tmp / "berth"),
            "environment": str(self.environment),
            "port_min": 29_100,
            "port_max": 29_899,
        }

    def app(self, kind: str, tag: str) -> AppSpec:
        source = (APPS / "workspace_app.py").read_text()
        return AppSpec(
            argv=("python3", "-c", source, kind, "{port}", "{home}", tag),
            start_timeout_s=2 if kind == "never" else 20,
            stop_timeout_s=STUBBORN_STOP_TIMEOUT_S if kind == "stubborn" else 10,
        )

    def pids(self, spec: WorkspaceSpec) -> list[int]:
        """Return the processes of the app from /proc."""
        tag = spec.ref.workspace_id.encode()
        pids = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                argv = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                state = (folder / "stat").read_text().rpartition(") ")[2][:1]
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if argv[-1] == tag and b"python" in argv[0] and b"-c" in argv[1:2] and state not in "ZX":
                pids.append(int(folder.name))
        return pids

    def running(self, spec: WorkspaceSpec) -> int:
        return len(self.pids(spec))

    def ask(self, seen: Observation) -> str:
        return get(socket_path(self.tmp / "berth", seen.endpoint))[1].decode()

    def home(self, spec: WorkspaceSpec) -> Path:
        return self.tmp / "berth" / "homes" / spec.team / spec.owner

    def starts(self, spec: WorkspaceSpec) -> int:
        marks = self.home(spec) / f"starts-{spec.ref.workspace_id}"
        return len(marks.read_text().splitlines()) if marks.exists() else 0

    def home_exists(self, spec: WorkspaceSpec) -> bool:
        return self.home(spec).is_dir()

    def leftovers(self, spec: WorkspaceSpec) -> list[str]:
        name = spec.ref.external_name
        remains = [str(path) for path in (self.tmp / "berth" / "local").glob(f"{name}*")]
        # os.walk skips groups that other processes remove meanwhile.
        for parent, groups, _ in os.walk("/sys/fs/cgroup"):
            remains += [f"{parent}/{group}" for group in groups if name in group]
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    environ = (folder / "environ").read_bytes()
                except OSError:
                    continue
                if name.encode() in environ:
                    remains.append(f"process {folder.name}")
        return remains

    def places_of(self, secret: str) -> list[str]:
        places = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if secret.encode() in path.read_bytes():
                    places.append(str(path))
            except OSError:
                continue
        for path in (self.tmp / "berth").rglob("*"):
            if path.is_file() and path.stat().st_mode & 0o077 and secret.encode() in path.read_bytes():
                places.append(str(path))
        return places

    def broken(self) -> Any:
        blocked = self.tmp / "blocked"
        blocked.write_text("a file where a folder should be")
        return registry.driver_for(
            replace(self.pool, config={**self.pool.config, "home": str(blocked / "berth")})
        )

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.portal_socket.close()
            for spec in self.specs:
                for pid in self.pids(spec):
                    os.kill(pid, signal.SIGKILL)


HARNESSES = {
    "local": LocalHarness,
    "simulated": SimulatedHarness,
    "simulated_cluster": SimulatedClusterHarness,
}


@pytest.fixture(scope="session")
def app_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty virtual environment, separate from that of the tests."""
    folder = tmp_path_factory.mktemp("environment") / "env"
    venv.create(folder, symlinks=True, with_pip=False)
    return folder


@pytest.fixture(scope="session")
def callers() -> Iterator[Callers]:
    """Starts processes that call drivers."""
    new_callers = Callers()
    yield new_callers
    new_callers.close()


@pytest.fixture
def stub_portal() -> Iterator[StubPortal]:
    """The portal that agents of a test call."""
    portal = StubPortal()
    yield portal
    portal.close()


@pytest.fixture(params=sorted(registry.DRIVERS))
def harness(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    stub_portal: StubPortal,
    callers: Callers,
    app_environment: Path,
) -> Iterator[SimulatedHarness | LocalHarness]:
    """Each registered driver in turn. A driver without a harness fails here."""
    kind = HARNESSES[request.param]
    new_harness = (
        LocalHarness(tmp_path, stub_portal, callers, app_environment)
        if kind is LocalHarness
        else kind(tmp_path, stub_portal, callers)
    )
    yield new_harness
    new_harness.close()
