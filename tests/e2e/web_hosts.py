"""Web hosts for tests: the processes of their units in deploy/systemd, each with the unit's command line."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx

from provisioning.service.environ import ROOT
from provisioning.service.program import find_program
from tests.instance import Berth, eventually
from tests.ports import consecutive_ports

UNITS = ROOT / "deploy" / "systemd"
PAGE = ROOT / "docs" / "web-hosts.md"
START_S = 120
SECRETS = {
    "BERTH_SECRET_KEY": "secret_key",
    "BERTH_GATEWAY_SECRET": "gateway_secret",
    "BERTH_CONTROL_KEY": "control_key",
    "BERTH_REDIS_PASSWORD": "redis_control",
    "BERTH_NODE_REDIS_PASSWORD": "redis_node",
    "BERTH_NODE_KEY": "node_key",
}


class WebHost:
    """One host with its own folder and ports: `render`, `web`, `gateway` and `front-door`."""

    def __init__(self, name: str, folder: Path, first: Berth, **variables: str) -> None:
        self.name = name
        self.home = folder / name
        self.port = consecutive_ports(3)
        self.log = folder / f"{name}.log"
        outer = {key: value for key, value in os.environ.items() if not key.startswith(("BERTH_", "PYTEST_"))}
        self.environ = {
            **outer,
            **{variable: first.secret(secret) for variable, secret in SECRETS.items()},
            "BERTH_HOME": str(self.home),
            "BERTH_TLS_DIR": str(self.home / "authority"),
            "BERTH_PASSES_DIR": "none",
            "BERTH_NODE_NAME": "portal",
            "BERTH_BIND": "127.0.0.1",
            "BERTH_PORT": str(self.port),
            "BERTH_WEB_PORT": str(self.port + 1),
            "BERTH_GATEWAY_PORT": str(self.port + 2),
            "BERTH_REDIS_PORT": str(first.instance.redis_port),
            "BERTH_FRONT_DOOR_URL": f"http://127.0.0.1:{self.port}",
            "BERTH_GATEWAY_URL": f"http://127.0.0.1:{self.port + 2}",
            **variables,
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for subfolder in ("run", "redis", "local", "keys", "doors", "door-socket", "logs", "environments"):
            (self.home / subfolder).mkdir(parents=True, mode=0o700)
        shutil.copytree(first.instance.tls_dir, self.home / "authority")
        # The first server has migrated the database. Its static files are those of the same version.
        shutil.copytree(first.home / "static", self.home / "static")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def prepare(self) -> None:
        for argv, environ in self._commands("render", "ExecStart"):
            self._finish(argv, environ)

    def start(self) -> None:
        """Start the units in the order of systemd, and wait until the front door answers."""
        for unit in ("web", "gateway", "front-door"):
            ((argv, environ),) = self._commands(unit, "ExecStart")
            with self.log.open("ab") as output:
                self._processes[unit] = subprocess.Popen(
                    argv, cwd=ROOT, env=environ, stdout=output, stderr=output, start_new_session=True
                )
            for following in self._commands(unit, "ExecStartPost"):
                self._finish(*following)
            if unit == "web":
                # Its unit is of the type notify.
                self._finish(
                    [sys.executable, "-m", "portal.embedded.ready", str(self.port + 1)], self.environ
                )
        eventually(
            self._answers, limit_s=START_S, what=lambda: f"{self.name}: {self.log.read_text()[-3000:]}"
        )

    def stop(self) -> None:
        """Stop the units in reverse order, as systemd does."""
        for unit in ("front-door", "gateway", "web"):
            process = self._processes.pop(unit)
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=15)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def kill(self, unit: str) -> None:
        """Kill one process; `restart` starts it again."""
        self._processes[unit].kill()
        self._processes[unit].wait()

    def restart(self) -> None:
        self.stop()
        self.start()

    def end(self) -> None:
        """Kill whatever is left."""
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes.clear()

    def _answers(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            headers = {"Host": "localhost"}
            return httpx.get(f"http://{self.address}/healthz/live", headers=headers, timeout=5).is_success
        return False

    def _commands(self, unit: str, name: str) -> Iterator[tuple[list[str], dict[str, str]]]:
        """The commands of a unit, with the folders and programs of this host."""
        lines = (UNITS / f"berth-{unit}.service").read_text().splitlines()
        environ = dict(self.environ)
        for line in lines:
            if line.startswith("Environment="):
                environ |= dict(pair.split("=", 1) for pair in shlex.split(line.partition("=")[2]))
        environ["PYTHONPATH"] = str(ROOT)
        caddy = find_program("caddy")
        assert caddy is not None
        for line in lines:
            if line.startswith(f"{name}=/"):
                filled = re.sub(r"\$\{(\w+)\}", lambda match: environ[match[1]], line.partition("=")[2])
                for before, after in (
                    ("/opt/berth/.venv/bin/python", sys.executable),
                    ("/opt/berth/.venv/bin/caddy", str(caddy)),
                    ("/var/lib/berth", str(self.home)),
                ):
                    filled = filled.replace(before, after)
                yield shlex.split(filled), environ

    def _finish(self, argv: list[str], environ: Mapping[str, str]) -> None:
        done = subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=150)
        assert done.returncode == 0, f"{self.name}: {argv}: {done.stdout}{done.stderr}"


@contextlib.contextmanager
def balancer(folder: Path, port: int, hosts: list[WebHost], proxy_secret: str) -> Iterator[None]:
    """The load balancer: Caddy with the documented file, over http, for these hosts."""
    (block,) = re.findall(r"^```caddy\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    for before, after in (
        ("berth.example.org, *.berth.example.org {", f"http://:{port} {{"),
        ("\ttls /etc/ssl/berth/certificate.pem /etc/ssl/berth/key.pem\n", ""),
        ("10.0.0.11:8000 10.0.0.12:8000", " ".join(host.address for host in hosts)),
        ("Host berth.example.org", "Host localhost"),
    ):
        assert before in block, before
        block = block.replace(before, after)
    path = folder / "Caddyfile"
    path.write_text("{\n\tadmin off\n\tpersist_config off\n}\n" + block)
    caddy = find_program("caddy")
    environ = {**os.environ, "HOME": str(folder), "BERTH_PROXY_SECRET": proxy_secret}
    with (folder / "balancer.log").open("wb") as log:
        process = subprocess.Popen(
            [str(caddy), "run", "--config", str(path), "--adapter", "caddyfile"],
            env=environ,
            stdout=log,
            stderr=log,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=20)
