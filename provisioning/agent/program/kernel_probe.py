"""Asks Jupyter kernels that an editor has started whether a cell runs in them.

VS Code starts kernels itself, so no server knows their state. A kernel answers requests on its shell channel
only when no cell runs: no answer within `PATIENCE_S` means busy. One request is pending per kernel at most.

The transport is ZMTP 3.0 without authentication (rfc.zeromq.org/spec/23) on the kernel's own TCP port.
Messages are signed with the key of its connection file.
"""

# ruff: noqa: PTH123

from __future__ import annotations

import json
import os
import time

from .processes import command_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

PROBE_EVERY_S = 45.0
PATIENCE_S = 1.0
"""How long an idle kernel may take to answer."""
CONNECT_S = 0.5
REPLY = b"kernel_info_reply"
MARKS = (b"ipykernel", b"ir_kernel", b"IRkernel", b"xpython", b"IJulia")
MAX_KERNELS = 32
MAX_REPLY = 1 << 20
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31)
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"


def connection_file_of(command: bytes) -> str | None:
    """Return the connection file in a kernel's command line, or None if it is not a kernel."""
    if not any(mark in command for mark in MARKS):
        return None
    arguments = command.rstrip(b"\0").split(b"\0")
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition(b"=")
        if name in (b"-f", b"--f", b"--connection-file", b"--ConnectionFileMixin.connection_file"):
            if not equals:
                value = arguments[place + 1] if place + 1 < len(arguments) else b""
            return value.decode("utf-8", "replace") or None
        if not argument.startswith(b"-") and argument.endswith(b".json"):
            return argument.decode("utf-8", "replace")
    return None


class Probe:
    """The state of one kernel. `busy` is None until it is known."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.busy: bool | None = None
        self.asked_at = 0.0
        self.pending: socket.socket | None = None
        self.received = b""

    def ask_if_due(self, now: float) -> None:
        """Ask again, unless an answer is pending or recent."""
        if self.pending is None and (self.busy is None or now - self.asked_at >= PROBE_EVERY_S):
            self._ask(now)

    def read(self, timeout_s: float) -> None:
        """Read a pending answer. Without one after `timeout_s`, the kernel is busy."""
        if self.pending is None:
            return
        if self._answered(timeout_s):
            self.close()
            self.busy = False
        elif self.pending is not None:
            self.busy = True

    def close(self) -> None:
        if self.pending is not None:
            self.pending.close()
        self.pending, self.received = None, b""

    def _ask(self, now: float) -> None:
        self.asked_at = now
        try:
            with open(self.path, "rb") as handle:
                details = json.loads(handle.read(65536))
            self.pending = _connect(details)
            self.pending.sendall(_request(details))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self.close()
            self.busy = None

    def _answered(self, timeout_s: float) -> bool:
        """Return whether the answer has arrived. Closes a broken connection, after which nothing is known."""
        assert self.pending is not None
        until = time.monotonic() + timeout_s
        while REPLY not in self.received:
            try:
                self.pending.settimeout(max(0.001, until - time.monotonic()))
                chunk = self.pending.recv(65536)
            except TimeoutError:
                return False
            except OSError:
                chunk = b""
            if not chunk or len(self.received) > MAX_REPLY:
                self.close()
                self.busy = None
                return False
            self.received += chunk
        return True


def _connect(details: dict[str, Any]) -> socket.socket:
    """Return a connection to the kernel's shell channel after ZMTP's handshake. Raises `OSError`."""
    import socket

    if details.get("transport", "tcp") != "tcp":
        raise OSError("not a TCP port")
    connection = socket.create_connection(("127.0.0.1", int(details["shell_port"])), CONNECT_S)
    try:
        connection.settimeout(CONNECT_S)
        connection.sendall(GREETING)
        greeting = b""
        while len(greeting) < len(GREETING):
            chunk = connection.recv(len(GREETING) - len(greeting))
            if not chunk:
                raise OSError("the kernel has closed the connection")
            greeting += chunk
        if greeting[0] != 0xFF or greeting[10] < 3:
            raise OSError("not ZMTP 3")
        connection.sendall(bytes((4, len(READY))) + READY)
    except BaseException:
        connection.close()
        raise
    return connection


def _request(details: dict[str, Any]) -> bytes:
    """Return a signed `kernel_info_request` as ZMTP frames."""
    import hashlib
    import hmac

    header = {
        "msg_id": os.urandom(16).hex(),
        "session": "berth",
        "username": "berth",
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "msg_type": "kernel_info_request",
        "version": "5.3",
    }
    parts = [json.dumps(header).encode(), b"{}", b"{}", b"{}"]
    if details.get("signature_scheme", "hmac-sha256") != "hmac-sha256":
        raise ValueError("unknown signature")
    key = str(details.get("key", "")).encode()
    signature = hmac.new(key, b"".join(parts), hashlib.sha256).hexdigest().encode() if key else b""
    frames = [b"<IDS|MSG>", signature, *parts]
    last = len(frames) - 1
    return b"".join(
        bytes((2 | (place < last),)) + len(frame).to_bytes(8, "big") + frame
        for place, frame in enumerate(frames)
    )


class Kernels:
    """The kernels among processes, by PID."""

    def __init__(self) -> None:
        self.probes: dict[int, Probe] = {}

    def sample(self, pids: list[int]) -> dict[str, Any]:
        """Return {count, busy, last_activity} of the kernels among these processes.

        A kernel of unknown state is busy. Takes up to `PATIENCE_S`, and longer only to connect.
        """
        files = {pid: path for pid in pids if (path := connection_file_of(command_line(pid)))}
        for pid, probe in list(self.probes.items()):
            if files.get(pid) != probe.path:
                probe.close()
                del self.probes[pid]
        now = time.monotonic()
        for pid, path in list(files.items())[:MAX_KERNELS]:
            self.probes.setdefault(pid, Probe(path)).ask_if_due(now)
        for probe in self.probes.values():
            fresh = probe.asked_at >= now
            probe.read(max(0.0, now + PATIENCE_S - time.monotonic()) if fresh else 0.0)
        busy = sum(self.probes[pid].busy is not False if pid in self.probes else True for pid in files)
        return {"count": len(files), "busy": busy, "last_activity": None}
