"""A whole Berth for tests: all processes as started by `make up`, with their own folder and ports."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from portal.embedded.environment import Instance
from provisioning.drivers.local import cgroups, network, scratch
from provisioning.drivers.local import processes as workspace_processes
from provisioning.drivers.local.state import claimed
from provisioning.service import instance_lock, processes
from provisioning.service.environ import ROOT
from tests import mounts
from tests.populate import PASSWORD
from tests.ports import consecutive_ports

T = TypeVar("T")
START_LIMIT_S = 240.0
POLL_S = 0.1
SERVER = (sys.executable, "-m", "portal.embedded")
"""What starts Berth: of the checkout."""


def eventually(look: Callable[[], T | None], *, limit_s: float, what: str | Callable[[], str]) -> T:
    """The first result of `look` that is not None, False or empty."""
    deadline = time.monotonic() + limit_s
    while True:
        result = look()
        if result:
            return result
        if time.monotonic() > deadline:
            words = what if isinstance(what, str) else what()
            pytest.fail(f"not within {limit_s:.0f} s: {words}")
        time.sleep(POLL_S)


def notebook_environment() -> Path | None:
    """The environment of JupyterLab and marimo, if installed."""
    named = os.environ.get("BERTH_TEST_NOTEBOOK_ENV")
    path = Path(named) if named else ROOT / "var" / "environments" / "notebook"
    return path.absolute() if (path / "bin" / "jupyter-lab").exists() else None


def need_notebook_environment() -> Path:
    environment = notebook_environment()
    if environment is None:
        pytest.skip("no notebook environment: run `make notebook`, or name one in BERTH_TEST_NOTEBOOK_ENV")
    return environment


class Berth:
    """One instance: start, query, kill, end."""

    def __init__(
        self,
        folder: Path,
        *,
        environment: Path | None,
        server: Sequence[str] = SERVER,
        **variables: str,
    ) -> None:
        self.server = server
        self.home = folder / "home"
        self.port = consecutive_ports(6)
        outer = {
            key: value
            for key, value in os.environ.items()
            # No variables of an outer instance or test run.
            if not key.startswith(("BERTH_", "DATABASE_", "DJANGO_", "CELERY_", "PYTEST_"))
        }
        self.environ = {
            **outer,
            "BERTH_HOME": str(self.home),
            "BERTH_PORT": str(self.port),
            "BERTH_NODE_NAME": "node-a",
            "BERTH_ADMIN_PASSWORD": PASSWORD,
            # Tests and measurements send more requests than users.
            "BERTH_REQUESTS_PER_MINUTE": "0",
            "BERTH_REQUESTS_PER_MINUTE_PER_ADDRESS": "0",
            "BERTH_STARTS_PER_MINUTE": "0",
            "BERTH_STARTS_PER_HOUR": "0",
            # No builds in the background.
            "BERTH_SKIP_DATA_SCIENCE": "1",
            **({"BERTH_NOTEBOOK_ENV": str(environment)} if environment else {"BERTH_SKIP_NOTEBOOK": "1"}),
            **variables,
        }
        self.instance = Instance.from_environ(self.environ)
        self.marker = hashlib.sha256(os.path.realpath(self.home).encode()).hexdigest()[:16]
        self.tokens: dict[str, str] = {}
        self.lines: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._news: queue.Queue[str] = queue.Queue()

    # -- its life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Run `up` until it is ready."""
        self._news = queue.Queue()
        self._process = subprocess.Popen(
            [*self.server, "up"],
            cwd=ROOT if self.server is SERVER else self.home.parent,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, args=(self._process, self._news), daemon=True).start()
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                line = self._news.get(timeout=max(deadline - time.monotonic(), 0.001))
            except queue.Empty:
                pytest.fail("Berth did not start:\n" + "\n".join(self.lines))
            if "Berth is ready" in line:
                return
            if line == "(end)":
                pytest.fail("Berth ended before it was ready:\n" + "\n".join(self.lines))

    def _read(self, process: subprocess.Popen[str], news: queue.Queue[str]) -> None:
        assert process.stdout is not None
        with process.stdout as stream:
            for line in stream:
                self.lines.append(line.rstrip())
                news.put(line.rstrip())
        news.put("(end)")

    def populate(self) -> None:
        """The people, the team, the templates and the flavors of `tests.populate`."""
        self.tokens |= json.loads(self.run("-m", "tests.populate"))

    def kill_supervisor(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def down_keeping_workspaces(self) -> None:
        """Run `down --keep-workspaces`; no service may be left."""
        assert self._process is not None
        self.serve("down", "--keep-workspaces")
        assert self._process.wait(timeout=60) == 0, "\n".join(self.lines)
        assert processes.leftovers(self.instance.id) == []

    def down(self) -> None:
        """Run `down`; nothing may be left."""
        assert self._process is not None
        self.serve("down")
        assert self._process.wait(timeout=60) == 0, "\n".join(self.lines)
        assert processes.leftovers(self.instance.id) == []
        assert self.owned() == ()
        eventually(lambda: not self.marked(), limit_s=60, what="spares have ended")

    def owned(self, name: str = "") -> tuple[workspace_processes.OwnedProcess, ...]:
        """The live processes of all workspaces, or of one by its name."""
        return workspace_processes.scan(self.marker, name, spares=claimed(self.home / "local"))

    def marked(self) -> list[int]:
        """All processes started by drivers of this instance, in workspaces or not."""
        marker, pids = f"BERTH_INSTANCE={self.marker}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if marker in path.read_bytes().split(b"\0"):
                    pids.append(int(path.parent.name))
        return pids

    def end(self) -> None:
        """Kill whatever is left."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        processes.end(processes.leftovers(self.instance.id), self.instance.id, grace_s=2)
        workspace_processes.kill(self.owned(), self.marked())
        scratch.sweep(self.home / "local")
        for process in network.egress_processes_below(self.home / "local"):
            workspace_processes.send((process.pid, process.start_ticks), signal.SIGKILL)
        cgroups.sweep_left(self.marker)
        mounts.detach(self.home)

    # -- questions ----------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}"

    def run(self, *arguments: str, **variables: str) -> str:
        """Run Python with the portal's environment; return its output."""
        return self._output([sys.executable, *arguments], {**self.instance.variables(), **variables})

    def serve(self, *arguments: str) -> str:
        """Run a command of `berth-server`; return its output."""
        return self._output([*self.server, *arguments], self.instance.variables())

    def _output(self, arguments: list[str], variables: Mapping[str, str]) -> str:
        done = subprocess.run(
            arguments,
            cwd=ROOT,
            env={**self.environ, **variables},
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def manage(self, *arguments: str) -> str:
        return self.run("manage.py", *arguments).strip()

    def last_lines(self, number: int = 30) -> str:
        """The last log lines of each service, for a failed test."""
        output = []
        for path in sorted((self.home / "logs").glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()[-number:]
            output += [f"== {path.name}", *(line[:300] for line in lines)]
        return "\n".join(output)

    def services(self) -> dict[str, dict[str, Any]]:
        """The supervisor's status of each service, by name."""
        return {
            row["name"]: row for row in instance_lock.read_state(self.instance.run_dir).get("services", [])
        }

    def rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        """Rows of the instance's database, opened read-only."""
        database = sqlite3.connect(
            f"file:{self.home / 'database' / 'berth.sqlite3'}?mode=ro", uri=True, timeout=10
        )
        with contextlib.closing(database):
            database.row_factory = sqlite3.Row
            return database.execute(query, values).fetchall()

    def secret(self, name: str) -> str:
        return (self.home / "secrets" / name).read_text().strip()

    def api(self, user: str) -> Api:
        return Api(self, self.tokens[user])

    def origin(self, workspace_id: str) -> str:
        return f"http://{self.host(workspace_id)}"

    def host(self, workspace_id: str) -> str:
        """The Host header of a workspace's origin."""
        return f"ws-{workspace_id.replace('-', '')}.localhost:{self.port}"

    def enter(self, workspace_id: str, token: str, path: str = "/") -> int:
        """The status of one GET on a workspace's origin; 0 without a response."""
        try:
            return httpx.get(
                f"http://127.0.0.1:{self.port}{path}",
                headers={"Host": self.host(workspace_id), "Authorization": f"Bearer {token}"},
                timeout=5,
            ).status_code
        except httpx.HTTPError:
            return 0


class Api:
    """The REST API with a user's token."""

    def __init__(self, berth: Berth, token: str) -> None:
        self.berth, self.token = berth, token
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{berth.port}/api/v1/",
            headers={"Authorization": f"Bearer {token}"},
            timeout=20,
        )

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        return self._http.request(method, path, json=body, headers=headers)

    def json(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The response body of a request that must succeed."""
        answer = self.ask(method, path, body, **headers)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def create(self, template: str, flavor: str, *, team: str = "lab", name: str = "") -> dict[str, Any]:
        body = {"team": team, "template": template, "flavor": flavor, **({"name": name} if name else {})}
        return self.json("POST", "workspaces", body)

    def workspace(self, workspace_id: str) -> dict[str, Any]:
        return self.json("GET", f"workspaces/{workspace_id}")

    def act(self, workspace_id: str, verb: str) -> None:
        if verb == "delete":
            self.json("DELETE", f"workspaces/{workspace_id}")
        else:
            self.json("POST", f"workspaces/{workspace_id}/{verb}")

    def wait(self, workspace_id: str, state: str, *, limit_s: float = 60) -> dict[str, Any]:
        """Wait until the workspace is in `state`; it must not fail."""

        def look() -> dict[str, Any] | None:
            seen = self.workspace(workspace_id)
            assert state == "failed" or seen["state"] != "failed", f"it failed: {seen}"
            return seen if seen["state"] == state else None

        return eventually(
            look, limit_s=limit_s, what=lambda: f"{state}; it is {self.workspace(workspace_id)}"
        )

    def close(self) -> None:
        self._http.close()


@contextlib.contextmanager
def running(
    folder: Path, *, environment: Path | None, server: Sequence[str] = SERVER, **variables: str
) -> Iterator[Berth]:
    """An instance with users and small templates; `down` at the end must leave nothing."""
    berth = Berth(folder, environment=environment, server=server, **variables)
    try:
        berth.start()
        berth.populate()
        yield berth
        berth.down()
    finally:
        berth.end()
