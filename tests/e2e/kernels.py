"""Runs cells in a workspace's Jupyter through the gateway, with a token."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from websockets.sync.client import ClientConnection, connect

from portal.cli.loopback import Connection

CELL_LIMIT_S = 60


@contextmanager
def channels(origin: str, token: str, kernel_id: str) -> Iterator[ClientConnection]:
    """The kernel's WebSocket."""
    with Connection(origin, token) as connection:
        target = connection.websocket(f"/api/kernels/{kernel_id}/channels")
    plug = socket.create_connection((target.host, target.port), timeout=20)
    with connect(
        target.uri, sock=plug, additional_headers=target.headers, max_size=None, open_timeout=30
    ) as channel:
        yield channel


def execute(channel: ClientConnection, code: str) -> str:
    """Run a cell and return its output. An exception in the cell fails the test."""
    message_id = uuid.uuid4().hex
    header = {"msg_id": message_id, "msg_type": "execute_request", "session": "e2e", "version": "5.3"}
    content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
    message = {"header": {**header, "username": ""}, "parent_header": {}, "metadata": {}, "content": content}
    channel.send(json.dumps({**message, "channel": "shell", "buffers": []}))
    printed = ""
    while True:
        answer = json.loads(channel.recv(timeout=CELL_LIMIT_S))
        if answer["parent_header"].get("msg_id") != message_id:
            continue
        assert answer["msg_type"] != "error", answer["content"]
        if answer["msg_type"] == "stream":
            printed += answer["content"]["text"]
        if answer["msg_type"] == "status" and answer["content"]["execution_state"] == "idle":
            return printed
