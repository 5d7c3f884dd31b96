"""Measure from click to notebook in several environments of a running portal, and a first cell.

    BERTH_TOKEN=… python -m bench.start_latency.environments --url http://localhost:8000 --runs 10

The environments alternate, so that changes in the machine's speed affect all of them equally. They must be
built, and the token must be able to create, enter and delete workspaces. Ratios are relative to the first
environment, whose first cell imports nothing. After each deletion the program waits for `--pause` seconds, so
that spares are created again.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import statistics
import sys
import time

import httpx
from websockets.sync.client import ClientConnection, connect

from bench.start_latency.contestants import TIMEOUT_S, wait_for_200

CELL = "import pandas, sklearn.linear_model, matplotlib.pyplot"


def main() -> int:
    arguments = parse()
    portal = Portal(arguments)
    kinds = ("JupyterLab", "first kernel", "first cell")
    seconds: dict[str, dict[str, list[float]]] = {
        kind: {name: [] for name in arguments.environments} for kind in kinds
    }
    for number in range(arguments.runs + 1):
        for name in arguments.environments:
            took = portal.measure(
                name, arguments.cell if name != arguments.environments[0] else "import json"
            )
            durations = "  ".join(
                f"{kind} {duration:6.3f} s" for kind, duration in zip(kinds, took, strict=True)
            )
            print(f"{f'run {number:2}' if number else 'warm-up'}  {name:16} {durations}", file=sys.stderr)
            if number:
                for kind, duration in zip(kinds, took, strict=True):
                    seconds[kind][name].append(duration)
    for kind, by_environment in seconds.items():
        first = statistics.median(by_environment[arguments.environments[0]])
        # The first one's cell imports nothing.
        compared = kind != kinds[-1]
        beside = f"   this / {arguments.environments[0]}" if compared else ""
        print(f"\n{kind:16} {'min':>7} {'median':>8} {'max':>8}{beside}")
        for name, values in by_environment.items():
            median = statistics.median(values)
            beside = f"   {median / first:.2f}" if compared else ""
            print(f"{name:16} {min(values):7.3f} {median:8.3f} {max(values):8.3f}{beside}")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.start_latency.environments", description=__doc__)
    parser.add_argument("--url", default="http://localhost:8000")
    parser.add_argument("--team", default="default")
    parser.add_argument("--flavor", default="cpu-large")
    parser.add_argument("--environments", nargs="+", default=["minimal", "data-science"])
    parser.add_argument("--cell", default=CELL, help="what is run first in all of them but the first")
    parser.add_argument("--runs", type=int, default=10, help="counted starts in each, after one warm-up")
    parser.add_argument("--pause", type=float, default=10, help="seconds after each deletion")
    return parser.parse_args()


class Portal:
    """A running portal, and the workspace started last."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        url = httpx.URL(arguments.url)
        self.arguments = arguments
        self.host, self.port = url.host, url.port or 80
        # Connect by address, so that no name resolution is measured.
        self.base = f"http://{socket.gethostbyname(self.host)}:{self.port}"
        self.client = httpx.Client(timeout=60)
        self.token = {"Authorization": f"Bearer {os.environ['BERTH_TOKEN']}"}

    def measure(self, environment: str, cell: str) -> tuple[float, float, float]:
        """Return the seconds to an answer of JupyterLab's `/api`, of a kernel and of a first cell."""
        arguments = self.arguments
        body = {"name": "bench", "team": arguments.team, "template": "jupyterlab", "flavor": arguments.flavor}
        sent = {"Host": f"{self.host}:{self.port}", **self.token}
        began = time.monotonic()
        response = self.client.post(
            f"{self.base}/api/v1/workspaces", json={**body, "environment": environment}, headers=sent
        )
        response.raise_for_status()
        workspace = response.json()["id"]
        inside = {**self.token, "Host": f"ws-{workspace.replace('-', '')}.{self.host}:{self.port}"}
        try:
            wait_for_200(self.client, f"{self.base}/api", inside)
            jupyterlab = time.monotonic() - began
            kernel, ran = self._first_cell(inside, cell)
        finally:
            self.client.delete(f"{self.base}/api/v1/workspaces/{workspace}", headers=sent).raise_for_status()
            self._wait_until_gone(workspace, sent)
        return jupyterlab, kernel, ran

    def _first_cell(self, inside: dict[str, str], cell: str) -> tuple[float, float]:
        began = time.monotonic()
        response = self.client.post(f"{self.base}/api/kernels", json={"name": "python3"}, headers=inside)
        response.raise_for_status()
        address = f"ws://{inside['Host']}/api/kernels/{response.json()['id']}/channels"
        tcp_socket = socket.create_connection((httpx.URL(self.base).host, self.port), timeout=TIMEOUT_S)
        with connect(
            address, sock=tcp_socket, additional_headers=self.token, max_size=None, open_timeout=60
        ) as connection:
            self._ask(connection, "kernel_info", {})
            kernel = time.monotonic() - began
            content = {"code": cell, "silent": False, "store_history": False, "allow_stdin": False}
            began = time.monotonic()
            answer = self._ask(connection, "execute", content)
            ran = time.monotonic() - began
        if answer["status"] != "ok":
            raise RuntimeError(f"the cell failed: {answer.get('ename')}: {answer.get('evalue')}")
        return kernel, ran

    def _ask(self, connection: ClientConnection, request: str, content: dict[str, object]) -> dict[str, str]:
        """Send a request on the shell channel and return the content of its reply."""
        message_id = secrets.token_hex(8)
        header = {"msg_id": message_id, "msg_type": f"{request}_request", "session": "bench", "username": ""}
        message = {"header": {**header, "version": "5.3"}, "parent_header": {}, "metadata": {}}
        connection.send(json.dumps({**message, "content": content, "channel": "shell", "buffers": []}))
        while True:
            incoming = json.loads(connection.recv(timeout=TIMEOUT_S))
            if (
                incoming["msg_type"] == f"{request}_reply"
                and incoming["parent_header"].get("msg_id") == message_id
            ):
                reply: dict[str, str] = incoming["content"]
                return reply

    def _wait_until_gone(self, workspace: str, sent: dict[str, str]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            response = self.client.get(f"{self.base}/api/v1/workspaces/{workspace}", headers=sent)
            if response.status_code == 404 or response.json()["state"] == "terminated":
                time.sleep(self.arguments.pause)
                return
            time.sleep(0.1)
        raise TimeoutError("the workspace was not deleted in time")


if __name__ == "__main__":
    raise SystemExit(main())
