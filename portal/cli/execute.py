"""`berth exec`: runs a command inside a workspace through a kernel of its Jupyter, until it ends."""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import httpx

from portal.cli import inside
from portal.cli.client import BerthClient
from portal.cli.commands import find
from portal.cli.errors import CliError, Unreachable, Usage
from portal.cli.loopback import LOOPBACK, Connection
from portal.cli.signals import held_signals

OPEN_S = 30.0
# Runs in the kernel. Jupyter drops output above about one megabyte per second, so it is throttled.
PROGRAM = """\
import codecs as _codecs, os as _os, subprocess as _subprocess, sys as _sys, time as _time
def _run(argv):
    try:
        child = _subprocess.Popen(
            argv, stdin=_subprocess.DEVNULL, stdout=_subprocess.PIPE, stderr=_subprocess.STDOUT
        )
    except FileNotFoundError:
        print(argv[0] + ": there is no such command")
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
        raise Usage("No command was given.", "Write it after the name: berth exec NAME -- nvidia-smi")
    workspace = find(client, arguments)
    inside.require_running(workspace)
    with client.workspaces.connect(workspace) as connection, _kernel(connection, workspace["name"]) as kernel:
        return _execute(connection, kernel, argv)


@contextlib.contextmanager
def _kernel(connection: Connection, name: str) -> Iterator[str]:
    """Start a separate kernel; it ends with this command, together with what it has started."""
    kernel = _create_kernel(connection, name)
    try:
        yield kernel
    except KeyboardInterrupt:
        with held_signals(), contextlib.suppress(httpx.HTTPError):
            connection.http.post(f"/api/kernels/{kernel}/interrupt")
        raise
    finally:
        with held_signals(), contextlib.suppress(httpx.HTTPError):
            connection.http.delete(f"/api/kernels/{kernel}")


def _create_kernel(connection: Connection, name: str) -> str:
    answer = inside.ask(connection, "POST", "/api/kernels", name, json={"name": "python3"})
    with contextlib.suppress(ValueError):
        body = answer.json()
        if answer.is_success and isinstance(body, dict) and body.get("id"):
            return str(body["id"])
    raise inside.no_jupyter(name, "takes commands", answer.status_code)


def _execute(connection: Connection, kernel: str, argv: list[str]) -> int:
    from websockets.exceptions import WebSocketException
    from websockets.sync.client import connect

    target = connection.websocket(f"/api/kernels/{kernel}/channels")
    options: dict[str, Any] = {}
    if target.host == LOOPBACK:
        # A name below localhost, which is not resolved.
        options["sock"] = socket.create_connection((target.host, target.port), timeout=OPEN_S)
    try:
        with connect(
            target.uri, additional_headers=target.headers, max_size=None, open_timeout=OPEN_S, **options
        ) as channel:
            request = uuid.uuid4().hex
            channel.send(json.dumps(_request(request, argv)))
            code, idle = None, False
            while code is None or not idle:
                answer = json.loads(channel.recv())
                if answer.get("parent_header", {}).get("msg_id") != request:
                    continue
                kind, content = answer["msg_type"], answer["content"]
                if kind == "stream":
                    sys.stdout.write(content["text"])
                    sys.stdout.flush()
                elif kind == "execute_reply":
                    code = _code(content)
                elif kind == "status":
                    idle = content["execution_state"] == "idle"
            return code
    except (OSError, WebSocketException) as error:
        raise Unreachable(
            f"The connection was lost, and the command with it: {error}.", "Look at what it has done."
        ) from error


def _request(identifier: str, argv: list[str]) -> dict[str, Any]:
    header = {"msg_id": identifier, "msg_type": "execute_request", "session": identifier, "username": ""}
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
    """Return the exit code from the kernel's reply. Raises `CliError` if there is none."""
    try:
        return int(content["user_expressions"]["code"]["data"]["text/plain"])
    except (KeyError, TypeError, ValueError):
        reason = content.get("evalue") or content.get("status")
        raise CliError(f"The kernel ended before the command did: {reason}.", "Try again.") from None
