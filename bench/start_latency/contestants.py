"""The compared ways to get a JupyterLab. Each measures one start at a time.

All run the same packages on the same machine, and two durations are measured: until JupyterLab's `/api`
answers 200, polled every 10 ms, counted from the request to start; and until a first kernel replies to
`kernel_info_request`, counted from the request for the kernel.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path

import httpx
from websockets.sync.client import connect

from provisioning.preloading import JUPYTER_MAIN

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.01
TIMEOUT_S = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_200(client: httpx.Client, url: str, headers: dict[str, str]) -> None:
    """Poll until the answer is 200. Raises `TimeoutError` with the last answer."""
    deadline = time.monotonic() + TIMEOUT_S
    last = "no answer"
    while time.monotonic() < deadline:
        try:
            response = client.get(url, headers=headers)
            if response.status_code == 200:
                return
            last = f"status {response.status_code}"
        except httpx.TransportError as error:
            last = type(error).__name__
        time.sleep(POLL_S)
    raise TimeoutError(f"{url} gave no 200 within {TIMEOUT_S:.0f} s: {last}")


def wait_for_kernel_info(url: str, headers: dict[str, str]) -> None:
    """Wait until the kernel behind this WebSocket has answered."""
    address = httpx.URL(url)
    tcp_socket = socket.create_connection((address.host, address.port or 80), timeout=TIMEOUT_S)
    other_headers = {key: value for key, value in headers.items() if key != "Host"}
    websocket_url = f"ws://{headers.get('Host', address.netloc.decode())}{address.path}"
    header = {"msg_id": secrets.token_hex(8), "msg_type": "kernel_info_request", "session": "bench"}
    message = {"header": {**header, "username": "", "version": "5.3"}, "parent_header": {}, "metadata": {}}
    with connect(
        websocket_url, sock=tcp_socket, additional_headers=other_headers, max_size=None, open_timeout=60
    ) as channel:
        channel.send(json.dumps({**message, "content": {}, "channel": "shell", "buffers": []}))
        while json.loads(channel.recv(timeout=TIMEOUT_S))["msg_type"] != "kernel_info_reply":
            continue


def stop_process(process: subprocess.Popen[bytes], *, timeout_s: float = 20) -> None:
    """Send SIGTERM to a process group, and SIGKILL if the process does not exit in time."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Contestant(ABC):
    """One way to get a notebook. Only `start` and `first_kernel` are measured."""

    name: str

    def __init__(self, folder: Path, notebook_env: Path) -> None:
        self.folder = folder / self.name.split()[0].lower()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.notebook_env = notebook_env
        self.client = httpx.Client(timeout=10)

    def open(self) -> None:  # noqa: B027  (most have something to do here, one has not)
        """Start everything that exists before a user requests a notebook."""

    @abstractmethod
    def start(self) -> float:
        """Request a notebook and wait for it; return the seconds."""

    @abstractmethod
    def server(self) -> tuple[str, dict[str, str]]:
        """Return the URL of the notebook started last, and the headers for requests to it."""

    def first_kernel(self) -> float:
        """Request a kernel of that notebook and wait until it answers; return the seconds."""
        url, headers = self.server()
        began = time.monotonic()
        reply = self.client.post(f"{url}/api/kernels", json={"name": "python3"}, headers=headers, timeout=60)
        reply.raise_for_status()
        wait_for_kernel_info(f"{url}/api/kernels/{reply.json()['id']}/channels", headers)
        return time.monotonic() - began

    @abstractmethod
    def clear(self) -> None:
        """End that notebook and wait until it is gone."""

    def close(self) -> None:
        self.client.close()


class Bare(Contestant):
    """Plain `jupyter lab` of the same environment, as used without a portal."""

    name = "Bare jupyter lab"

    @property
    def program(self) -> list[str]:
        return [str(self.notebook_env / "bin" / "jupyter-lab")]

    def __init__(self, folder: Path, notebook_env: Path) -> None:
        super().__init__(folder, notebook_env)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        port, token = free_port(), secrets.token_hex(16)
        self.url = f"http://127.0.0.1:{port}"
        self.authorization = {"Authorization": f"token {token}"}
        environ = {
            "PATH": f"{self.notebook_env}/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "JUPYTER_TOKEN": token,
        }
        with (self.folder / "log").open("ab") as log:
            began = time.monotonic()
            self.process = subprocess.Popen(
                [
                    *self.program,
                    "--no-browser",
                    "--ip=127.0.0.1",
                    f"--port={port}",
                    f"--ServerApp.root_dir={self.folder}",
                    *(["--allow-root"] if os.geteuid() == 0 else []),
                ],
                env=environ,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for_200(self.client, f"{self.url}/api", self.authorization)
        return time.monotonic() - began

    def server(self) -> tuple[str, dict[str, str]]:
        return self.url, self.authorization

    def clear(self) -> None:
        if self.process is not None:
            stop_process(self.process)


class Floor(Bare):
    """JupyterLab alone, started with the command of Berth's template: any further time is Berth's own."""

    name = "Floor, as in Berth"

    @property
    def program(self) -> list[str]:
        return [str(self.notebook_env / "bin" / "python3"), "-c", JUPYTER_MAIN]


class Berth(Contestant):
    """Berth as started by `make up`: from POST to 200 through the gateway, with admission and sandbox.

    Between two measurements it waits until the next spare is ready, as in practice, where users start their
    notebooks more than a few seconds apart.
    """

    name = "Berth"
    spares = 1

    def open(self) -> None:
        self.port = free_port_block()
        self.environ = {
            **{
                k: v for k, v in os.environ.items() if not k.startswith(("BERTH_", "DJANGO_", "DATABASE_URL"))
            },
            "BERTH_HOME": str(self.folder / "var"),
            "BERTH_PORT": str(self.port),
            "BERTH_NOTEBOOK_ENV": str(self.notebook_env),
            "BERTH_SKIP_DATA_SCIENCE": "1",
            "BERTH_ADMIN_PASSWORD": secrets.token_urlsafe(16),
            "BERTH_SPARES": str(self.spares),
            # The benchmark sends more requests than users and their programs; requests are counted as usual.
            "BERTH_REQUESTS_PER_MINUTE": "1000000000",
            "BERTH_REQUESTS_PER_MINUTE_PER_ADDRESS": "1000000000",
            "BERTH_STARTS_PER_MINUTE": "0",
            "BERTH_STARTS_PER_HOUR": "0",
        }
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "portal.embedded", "up"],
                env=self.environ,
                cwd=ROOT,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.base = f"http://127.0.0.1:{self.port}"
        self.host = {"Host": f"localhost:{self.port}"}
        wait_for_200(self.client, f"{self.base}/healthz", self.host)
        process = subprocess.run(
            [sys.executable, "manage.py", "create_token", "admin"],
            env=self.environ,
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        self.authorization = {"Authorization": f"Bearer {process.stdout.strip()}"}
        self._wait_for_capacity()
        self._wait_for_spares()

    def _wait_for_capacity(self) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            nodes = self.client.get(f"{self.base}/api/v1/nodes", headers={**self.host, **self.authorization})
            if nodes.status_code == 200 and nodes.json()["results"]:
                return
            time.sleep(0.1)
        raise TimeoutError("no node has reported; look at the node worker's log")

    def _wait_for_spares(self) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while len(self._ready_spares()) < self.spares:
            if time.monotonic() > deadline:
                raise TimeoutError("no spare became ready; look at the node worker's log")
            time.sleep(0.1)

    def _ready_spares(self) -> list[Path]:
        states = (self.folder / "var" / "local" / ".spares").glob("*/run/state.json")
        return [path for path in states if '"unclaimed"' in path.read_text()]

    def server(self) -> tuple[str, dict[str, str]]:
        host = f"ws-{self.workspace.replace('-', '')}.localhost:{self.port}"
        return self.base, {"Host": host, **self.authorization}

    def start(self) -> float:
        body = {"name": "bench", "team": "default", "template": "jupyterlab", "flavor": "cpu-large"}
        began = time.monotonic()
        response = self.client.post(
            f"{self.base}/api/v1/workspaces", json=body, headers={**self.host, **self.authorization}
        )
        response.raise_for_status()
        self.workspace = response.json()["id"]
        url, sent = self.server()
        wait_for_200(self.client, f"{url}/api", sent)
        return time.monotonic() - began

    def clear(self) -> None:
        url = f"{self.base}/api/v1/workspaces/{self.workspace}"
        headers = {**self.host, **self.authorization}
        self.client.delete(url, headers=headers).raise_for_status()
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            response = self.client.get(url, headers=headers)
            if response.status_code == 404 or response.json()["state"] == "terminated":
                self._wait_for_spares()
                return
            time.sleep(0.1)
        raise TimeoutError("the workspace was not deleted in time")

    def close(self) -> None:
        if hasattr(self, "process"):
            stop_process(self.process, timeout_s=60)
        super().close()


class PlainBerth(Berth):
    """Berth without spares: each start creates its sandbox and runs its program from the beginning."""

    name = "Plain Berth"
    spares = 0


def free_port_block() -> int:
    """Return a port whose successors used by Berth are free as well."""
    while True:
        first = free_port()
        try:
            for port in (first, first + 1, first + 2, first + 4, first + 5):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            continue
        return first


class Hub(Contestant):
    """JupyterHub with SimpleLocalProcessSpawner and configurable-http-proxy, with the same packages."""

    name = "JupyterHub"

    def __init__(self, folder: Path, notebook_env: Path, hub_env: Path, proxy: Path) -> None:
        super().__init__(folder, notebook_env)
        self.hub_env = hub_env
        self.proxy = proxy

    def open(self) -> None:
        self.port = free_port_block()
        self.token = secrets.token_hex(16)
        config = self.folder / "jupyterhub_config.py"
        home = json.dumps(str(self.folder / "home"))
        config.write_text(
            "\n".join(
                [
                    "c = get_config()",
                    "c.JupyterHub.spawner_class = 'simple'",
                    "c.JupyterHub.authenticator_class = 'dummy'",
                    f"c.JupyterHub.bind_url = 'http://127.0.0.1:{self.port}'",
                    f"c.JupyterHub.hub_port = {self.port + 1}",
                    f"c.ConfigurableHTTPProxy.api_url = 'http://127.0.0.1:{self.port + 2}'",
                    f"c.ConfigurableHTTPProxy.command = {json.dumps([str(self.proxy)])}",
                    "c.ConfigurableHTTPProxy.should_start = True",
                    "c.Authenticator.allow_all = True",
                    f"c.SimpleLocalProcessSpawner.home_dir_template = {home}",
                    f"c.Spawner.cmd = [{json.dumps(str(self.hub_env / 'bin' / 'jupyterhub-singleuser'))}]",
                    *(["c.Spawner.args = ['--allow-root']"] if os.geteuid() == 0 else []),
                    "c.Spawner.http_timeout = 120",
                    "c.Spawner.start_timeout = 120",
                    "c.JupyterHub.services = [{'name': 'bench', 'api_token': '" + self.token + "'}]",
                    "c.JupyterHub.load_roles = [{'name': 'bench', 'services': ['bench'], "
                    "'scopes': ['admin:users', 'admin:servers', 'access:servers']}]",
                    f"c.JupyterHub.db_url = 'sqlite:///{self.folder / 'hub.sqlite'}'",
                    f"c.JupyterHub.cookie_secret_file = '{self.folder / 'cookie_secret'}'",
                ]
            )
            + "\n"
        )
        environ = {
            **os.environ,
            "PATH": f"{self.hub_env}/bin:{os.environ['PATH']}",
            "CONFIGPROXY_AUTH_TOKEN": secrets.token_hex(16),
        }
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(self.hub_env / "bin" / "jupyterhub"), "-f", str(config)],
                env=environ,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.base = f"http://127.0.0.1:{self.port}"
        self.authorization = {"Authorization": f"token {self.token}"}
        wait_for_200(self.client, f"{self.base}/hub/api", {})
        self.client.post(f"{self.base}/hub/api/users/bench", headers=self.authorization).raise_for_status()

    def start(self) -> float:
        began = time.monotonic()
        self.client.post(
            f"{self.base}/hub/api/users/bench/server", headers=self.authorization, timeout=TIMEOUT_S
        ).raise_for_status()
        wait_for_200(self.client, f"{self.base}/user/bench/api", self.authorization)
        return time.monotonic() - began

    def server(self) -> tuple[str, dict[str, str]]:
        return f"{self.base}/user/bench", self.authorization

    def clear(self) -> None:
        url = f"{self.base}/hub/api/users/bench"
        self.client.delete(f"{url}/server", headers=self.authorization).raise_for_status()
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            if not self.client.get(url, headers=self.authorization).json().get("servers"):
                return
            time.sleep(0.1)
        raise TimeoutError("JupyterHub did not end the server in time")

    def close(self) -> None:
        if hasattr(self, "process"):
            stop_process(self.process, timeout_s=30)
        super().close()
