"""`berth exec`: runs a command inside a workspace, through a kernel of its Jupyter."""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

import httpx

from portal.cli import inside
from portal.cli.client import BerthClient
from portal.cli.commands import find
from portal.cli.errors import CliError, Unreachable, UsageError
from portal.cli.loopback import LOOPBACK, Connection
from portal.cli.signals import ignore_signals

OPEN_S = 30.0
REGAIN_S = 300.0
REGAIN_PAUSE_S = 1.0
QUIET_S = 10.0
"""Seconds without a message after a lost connection until the state of the kernel is checked."""
# Runs in the kernel. Throttles output, because Jupyter drops more than about 1 MB per second.
PROGRAM = """\
import codecs as _codecs, os as _os, subprocess as _subprocess, sys as _sys, time as _time
def _run(argv):
    try:
        child = _subprocess.Popen(
            argv, stdin=_subprocess.DEVNULL, stdout=_subprocess.PIPE, stderr=_subprocess.STDOUT
        )
    except FileNotFoundError:
        print(argv[0] + ": command not found")
        return 127
    except OSError as error:
        print(argv[0] + ": " + str(error.strerror))
        return 126
    text = _codecs.getincrementaldecoder("utf-8")("replace")
    try:
        while data := _os.read(child.stdout.fileno(), 65536):
            _sys.stdout.write(text.decode(data))
            _sys.stdout.flush()
            _time.sleep(len(data) / 400_000)
        _sys.stdout.write(text.decode(b"", True))
        _sys.stdout.flush()
        code = child.wait()
    except BaseException:
        child.terminate()
        raise
    return code if code >= 0 else 128 - code
_code = _run(%s)
"""


def execute(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Print the command's output; return its exit code."""
    argv = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    if not argv:
        raise UsageError("No command given.", "Add it after the name: berth exec NAME -- nvidia-smi")
    workspace = find(client, arguments)
    inside.require_running(workspace)
    with client.workspaces.connect(workspace) as connection, _kernel(connection, workspace["name"]) as kernel:
        command = Command(connection, kernel, argv)
        while True:
            try:
                return command.follow()
            except ConnectionLost as lost:
                print(f"Connection lost: {lost}. Retrying …", file=sys.stderr)
                _regain(client, connection, workspace["id"], kernel, command.alive_at + REGAIN_S)


@contextlib.contextmanager
def _kernel(connection: Connection, name: str) -> Iterator[str]:
    """Start a separate kernel. At the end of the block, end it with all that it has started."""
    kernel = _create_kernel(connection, name)
    try:
        yield kernel
    except KeyboardInterrupt:
        with ignore_signals(), contextlib.suppress(httpx.HTTPError):
            connection.http.post(f"/api/kernels/{kernel}/interrupt")
        raise
    finally:
        with ignore_signals(), contextlib.suppress(httpx.HTTPError):
            connection.http.delete(f"/api/kernels/{kernel}")


def _create_kernel(connection: Connection, name: str) -> str:
    answer = inside.request(connection, "POST", "/api/kernels", name, json={"name": "python3"})
    with contextlib.suppress(ValueError):
        body = answer.json()
        if answer.is_success and isinstance(body, dict) and body.get("id"):
            return str(body["id"])
    raise inside.no_jupyter(name, "takes commands", answer.status_code)


class ConnectionLost(Exception):
    """The connection to the kernel was lost. The command continues."""


class Command:
    """A command in a kernel. After a `ConnectionLost`, call `follow` again to continue.

    While a kernel has no connection, Jupyter keeps its output for the same session.
    """

    def __init__(self, connection: Connection, kernel: str, argv: list[str]) -> None:
        self._connection = connection
        self._kernel = kernel
        self._argv = argv
        self._request = self._session = uuid.uuid4().hex
        self._idle = False
        self.alive_at = float("-inf")
        """Time of the last connection, on the monotonic clock."""
        self._exit_code: int | None = None

    def follow(self) -> int:
        """Print output until the command ends; return its exit code.

        Raises `ConnectionLost`, and `Unreachable` if the end of the command was missed.
        """
        # Imported here: other commands need no WebSocket.
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        path = f"/api/kernels/{self._kernel}/channels?session_id={self._session}"
        target = self._connection.websocket(path)
        options: dict[str, Any] = {}
        is_retry, connected = self.alive_at > 0, False
        try:
            if target.host == LOOPBACK:
                # Python does not resolve names below localhost.
                options["sock"] = socket.create_connection((target.host, target.port), timeout=OPEN_S)
            with connect(
                target.uri, additional_headers=target.headers, max_size=None, open_timeout=OPEN_S, **options
            ) as channel:
                connected = True
                if not is_retry:
                    channel.send(json.dumps(_request(self._request, self._session, self._argv)))
                while self._exit_code is None or not self._idle:
                    message = self._next(channel) if is_retry else channel.recv()
                    if message is not None:
                        self._take(json.loads(message))
                return self._exit_code
        except (OSError, WebSocketException) as error:
            raise ConnectionLost(str(error).rstrip(".")) from error
        finally:
            if connected:
                self.alive_at = time.monotonic()

    def _next(self, channel: Any) -> str | bytes | None:
        """Return the next message, or None after a while. Raises `Unreachable` if none can follow."""
        try:
            return channel.recv(timeout=QUIET_S)
        except TimeoutError:
            with contextlib.suppress(httpx.HTTPError):
                answer = self._connection.http.get(f"/api/kernels/{self._kernel}")
                if answer.is_success and answer.json().get("execution_state") == "idle":
                    raise Unreachable(
                        "The command ended while the connection was lost. Its exit code is unknown.",
                        "Check its results in the workspace.",
                    ) from None
            return None

    def _take(self, message: dict[str, Any]) -> None:
        if message.get("parent_header", {}).get("msg_id") != self._request:
            return
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            sys.stdout.write(content["text"])
            sys.stdout.flush()
        elif kind == "execute_reply":
            self._exit_code = _code(content)
        elif kind == "status":
            self._idle = content["execution_state"] == "idle"


def _regain(
    client: BerthClient, connection: Connection, workspace_id: str, kernel: str, ends_at: float
) -> None:
    """Wait until the kernel responds again, for example after a restart of the portal.

    Raises `NotSignedIn` if the token has expired, and `Unreachable` if the kernel is gone, or at `ends_at` on
    the monotonic clock.
    """
    while time.monotonic() < ends_at:
        time.sleep(REGAIN_PAUSE_S)
        with contextlib.suppress(Unreachable, httpx.HTTPError):
            workspace = client.workspaces.get(workspace_id)
            if workspace["state"] != "running":
                break
            answer = connection.http.get(f"/api/kernels/{kernel}")
            if answer.is_success:
                return
            if answer.status_code == 404:
                break
    raise Unreachable("The connection to the command was lost.", "Check its results in the workspace.")


def _request(identifier: str, session: str, argv: list[str]) -> dict[str, Any]:
    header = {"msg_id": identifier, "msg_type": "execute_request", "session": session, "username": ""}
    content = {
        "code": PROGRAM % json.dumps(argv),
        "silent": False,
        "store_history": False,
        "allow_stdin": False,
        "user_expressions": {"code": "_code"},
    }
    return {
        "header": {**header, "version": "5.3"},
        "parent_header": {},
        "metadata": {},
        "content": content,
        "channel": "shell",
        "buffers": [],
    }


def _code(content: dict[str, Any]) -> int:
    """Return the exit code from the kernel's reply. Raises `CliError` if the reply lacks it."""
    try:
        return int(content["user_expressions"]["code"]["data"]["text/plain"])
    except (KeyError, TypeError, ValueError):
        reason = content.get("evalue") or content.get("status")
        raise CliError(f"The kernel ended before the command did: {reason}.", "Try again.") from None
