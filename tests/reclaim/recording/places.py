"""A recorded workspace and actions in it through the gateway."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

from portal.cli.loopback import Connection

LIMIT_S = 240.0


@dataclass
class Place:
    """One workspace; open connections stay open until the recording ends."""

    id: str
    origin: str
    token: str
    portal: str
    agent_token: str = ""
    open: list[Any] = field(default_factory=list)

    @property
    def http(self) -> Connection:
        return Connection(self.origin, self.token, timeout_s=LIMIT_S)

    def websocket(self, path: str) -> ClientConnection:
        with self.http as connection:
            target = connection.websocket(path)
        plug = socket.create_connection((target.host, target.port), timeout=LIMIT_S)
        channel = connect(
            target.uri,
            sock=plug,
            additional_headers=target.headers,
            max_size=None,
            open_timeout=LIMIT_S,
            # The connection stays open although its messages are not read.
            max_queue=None,
            ping_interval=None,
        )
        self.open.append(channel)
        return channel

    def wait(self, path: str) -> None:
        """Wait until the app answers."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            with self.http as connection:
                try:
                    if connection.http.get(path).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
            time.sleep(1)
        raise TimeoutError(f"{path} does not answer")

    def agent_pids(self) -> list[int]:
        """Return the processes of the agent, by control group."""
        name = "ws-" + self.id.replace("-", "")
        pids = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                inside = name in (folder / "cgroup").read_text()
                command = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if inside and any(part.endswith(b"/agent.py") for part in command[:5]):
                pids.append(int(folder.name))
        if not pids:
            raise LookupError(f"the agent of {name} is not to be found")
        return pids

    def signal_agent(self, number: signal.Signals) -> None:
        for pid in self.agent_pids():
            os.kill(pid, number)

    def forge(self, figures: object, *, token: str = "", workspace: str = "") -> int:
        """Send a heartbeat like the agent. Returns the response status."""
        return httpx.post(
            f"{self.portal}/agent/v1/heartbeat",
            json={"workspace_id": workspace or self.id, "generation": 1, "activity": figures},
            headers={"Authorization": f"Bearer {token or self.agent_token}"},
            timeout=30,
        ).status_code


class Kernel:
    """A Jupyter kernel with a connected client."""

    def __init__(self, place: Place) -> None:
        with place.http as connection:
            answer = connection.http.post("/api/kernels", json={"name": "python3"})
            answer.raise_for_status()
        self.id = answer.json()["id"]
        self.channel = place.websocket(f"/api/kernels/{self.id}/channels")

    def send(self, kind: str, content: dict[str, Any], channel: str = "shell") -> str:
        message = uuid.uuid4().hex
        header = {
            "msg_id": message,
            "msg_type": kind,
            "session": "recording",
            "version": "5.3",
            "username": "",
        }
        self.channel.send(
            json.dumps(
                {
                    "header": {**header, "username": ""},
                    "parent_header": {},
                    "metadata": {},
                    "content": content,
                    "channel": channel,
                    "buffers": [],
                }
            )
        )
        return message

    def run(self, code: str) -> str:
        """Send a cell without waiting."""
        return self.send(
            "execute_request",
            {
                "code": code,
                "silent": False,
                "store_history": True,
                "allow_stdin": True,
                "stop_on_error": True,
            },
        )

    def until(self, message: str, kind: str) -> dict[str, Any]:
        """Return the content of the first message of that kind."""
        while True:
            answer = json.loads(self.channel.recv(timeout=LIMIT_S))
            if answer["parent_header"].get("msg_id") == message and answer["msg_type"] == kind:
                return dict(answer["content"])

    def finish(self, code: str) -> None:
        self.until(self.run(code), "execute_reply")

    def debug(self, command: str, arguments: dict[str, Any], number: int) -> dict[str, Any]:
        request = {"type": "request", "seq": number, "command": command, "arguments": arguments}
        return self.until(self.send("debug_request", request, "control"), "debug_reply")


class Terminal:
    """A Jupyter terminal in an open tab."""

    def __init__(self, place: Place) -> None:
        with place.http as connection:
            answer = connection.http.post("/api/terminals")
            answer.raise_for_status()
        self.channel = place.websocket(f"/terminals/websocket/{answer.json()['name']}")

    def type(self, *lines: str) -> None:
        for line in lines:
            time.sleep(2)
            self.channel.send(json.dumps(["stdin", line + "\r"]))


class Marimo:
    """A marimo notebook in an open tab: a session on its WebSocket."""

    def __init__(self, place: Place) -> None:
        self.place, self.session = place, "s_" + uuid.uuid4().hex[:6]
        self.channel = place.websocket(f"/ws?session_id={self.session}&file=__new__{self.session}")
        while json.loads(self.channel.recv(timeout=LIMIT_S)).get("op") != "kernel-ready":
            pass
        with place.http as connection:
            page = connection.http.get(f"/?file=__new__{self.session}").text
        self.server_token = page.partition('data-token="')[2].partition('"')[0]
        self.post("/api/kernel/instantiate", {"objectIds": [], "values": [], "autoRun": True})

    def post(self, path: str, body: dict[str, Any]) -> None:
        headers = {"Marimo-Session-Id": self.session, "Marimo-Server-Token": self.server_token}
        with self.place.http as connection:
            answer = connection.http.post(path, json=body, headers=headers)
        if answer.is_error:
            raise RuntimeError(f"{path}: {answer.status_code} {answer.text[:300]}")

    def run(self, code: str) -> None:
        self.post("/api/kernel/run", {"cellIds": ["Hbol"], "codes": [code]})

    def terminal(self) -> ClientConnection:
        return self.place.websocket("/terminal/ws")
