"""Connects to a workspace through its Unix socket, as the gateway of its node does."""

from __future__ import annotations

import ctypes
import fcntl
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any

from provisioning.endpoints import PORTAL_SOCKET, socket_name


def socket_path(home: Path, endpoint: str) -> Path:
    """The socket of an endpoint of the local driver whose $BERTH_HOME is `home`."""
    name, _, generation = socket_name(endpoint).partition(".")
    assert name, f"{endpoint} is no socket of a node"
    return home / "local" / name / f"app.{generation}.sock"


def plug(path: Path, *, timeout_s: float = 20.0) -> socket.socket:
    """A connection to a Unix socket with a path of any length. Raises `OSError`."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(timeout_s)
    try:
        connection.connect(f"/proc/self/fd/{folder}/{path.name}")
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(folder)
    return connection


class SocketConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, *, timeout_s: float = 20.0) -> None:
        super().__init__("127.0.0.1", timeout=timeout_s)
        self.path = path
        self.timeout_s = timeout_s

    def connect(self) -> None:
        self.sock = plug(self.path, timeout_s=self.timeout_s)


def get(path: Path, target: str = "/", *, timeout_s: float = 20.0) -> tuple[int, bytes]:
    """Status and body of one GET."""
    connection = SocketConnection(path, timeout_s=timeout_s)
    try:
        connection.request("GET", target)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def get_json(path: Path, target: str = "/", *, timeout_s: float = 20.0) -> Any:
    return json.loads(get(path, target, timeout_s=timeout_s)[1])


def run_in_network(pid: int, code: str) -> str:
    """The output of a Python program in the network of the sandbox of process `pid`."""
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    owner = fcntl.ioctl(network, 0xB701)  # NS_GET_USERNS
    libc = ctypes.CDLL(None)

    def enter() -> None:
        if libc.setns(owner, 0x10000000) or libc.setns(network, 0x40000000):
            os._exit(97)

    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            preexec_fn=enter,
            env={"PYTHONPATH": str(Path(__file__).parents[1])},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    finally:
        os.close(owner)
        os.close(network)
    return done.stdout


class _UnixHTTPServer(ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def get_request(self) -> tuple[Any, Any]:
        request, _ = super().get_request()
        return request, ("local", 0)

    server_name, server_port = "portal", 0


class PortalSocket:
    """Serves `handler` at the socket by which agents of the local driver at `home` reach the portal."""

    def __init__(self, home: Path, handler: type[BaseHTTPRequestHandler]) -> None:
        path = home / "local" / PORTAL_SOCKET
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            self.server = _UnixHTTPServer(f"/proc/self/fd/{folder}/{path.name}", handler)
        finally:
            os.close(folder)
        path.parent.chmod(0o711)
        path.chmod(0o666)  # like the gateway's socket: agents may run as another user
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
