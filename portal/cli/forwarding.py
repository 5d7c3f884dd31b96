"""`berth port-forward`: forwards ports of this machine to ports inside a workspace.

Each connection is a separate WebSocket to an extension of the workspace's Jupyter, which forwards it
(protocol: `provisioning/agent/jupyter/extensions/berth_forward.py`). Connections run in a thread with an
event loop; the main thread checks whether the workspace still runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import socket
import sys
import threading
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from portal.cli import inside
from portal.cli.client import BerthClient
from portal.cli.commands import find
from portal.cli.errors import CliError, Unreachable, UsageError
from portal.cli.loopback import LOOPBACK, Connection

POLL_INTERVAL_S = 5.0
OPEN_S = 30.0
CHECK_INTERVAL_S = 1.0
PIECE = 1 << 16
PATH = "/berth/forward"
END = "end"
NOTHING_LISTENS = 4001
RESTART_HINT = " Restart a workspace that was started before Berth was updated."


def port_forward(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Forward ports until the workspace ends or the user interrupts the command; never returns."""
    workspace = find(client, arguments)
    inside.require_running(workspace)
    name = workspace["name"]
    with client.workspaces.connect(workspace) as connection, contextlib.ExitStack() as stack:
        answer = inside.request(connection, "GET", PATH, name)
        if not _forwards(answer):
            raise inside.no_jupyter(name, "forwards ports", answer.status_code, RESTART_HINT)
        listeners = [
            (stack.enter_context(_listener(local, port)), port) for local, port in arguments.forwards
        ]
        forwards = PortForwarder(connection, name)
        stack.callback(forwards.close)
        for listener, port in listeners:
            forwards.add(listener, port)
            _announce_port(listener.getsockname()[1], port, name, as_json=arguments.json)
        return forwards.watch(client, workspace["id"])


def _forwards(answer: Any) -> bool:
    with contextlib.suppress(ValueError):
        body = answer.json()
        return bool(answer.is_success and isinstance(body, dict) and body.get("version"))
    return False


def _listener(local: int, port: int) -> socket.socket:
    """Listen on the loopback address only. Raises `UsageError`."""
    try:
        return socket.create_server((LOOPBACK, local), backlog=128)
    except OSError as error:
        why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be opened: {error.strerror}"
        raise UsageError(
            f"Port {local} of this machine {why}.", f"Use 0:{port} for any free port."
        ) from error


def _announce_port(local: int, port: int, name: str, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"address": LOOPBACK, "local_port": local, "port": port}), flush=True)
    else:
        print(f"{LOOPBACK}:{local} forwards to port {port} of {name}.", flush=True)


class _Connect(connect):
    """Rejects redirects, which mean that access is denied: the token must not be sent elsewhere."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class PortForwarder:
    """Listeners and their connections, in a separate thread."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection, self._name = connection, name
        self._soon = threading.Event()
        self._ports: dict[socket.socket, int] = {}
        self._leading: set[asyncio.Task[None]] = set()
        self._ending = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def add(self, listener: socket.socket, port: int) -> None:
        """Forward connections of `listener` to the workspace's `port`."""
        listener.setblocking(False)
        self._ports[listener] = port
        self._loop.call_soon_threadsafe(self._listen, listener)

    def _listen(self, listener: socket.socket) -> None:
        if not self._ending:
            self._loop.add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Accept one connection. Call it outside of tasks, whose cancellation could lose a connection."""
        try:
            line, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            # The limit of open descriptors is reached.
            self._note(f"Cannot accept more connections: {error.strerror}.")
            self._loop.remove_reader(listener)
            self._loop.call_later(CHECK_INTERVAL_S, self._listen, listener)
            return
        # Send short messages at once: asyncio disables Nagle's algorithm only on sockets created with a
        # protocol number.
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._forward(self._ports[listener], line))
        self._leading.add(task)
        task.add_done_callback(self._leading.discard)

    def watch(self, client: BerthClient, workspace_id: str) -> int:
        """Wait until the workspace stops running or is no longer visible, then raise the reason."""
        while True:
            self._soon.wait(POLL_INTERVAL_S)
            self._soon.clear()
            try:
                state = client.workspaces.get(workspace_id)["state"]
            except Unreachable:
                continue  # the portal may be restarting; open connections are not affected
            if state != "running":
                raise CliError(
                    f"{self._name} is {state}. Forwarding has ended.",
                    f"Run `berth start {workspace_id} --wait`, then forward again.",
                )

    def close(self) -> None:
        """Close all connections."""

        async def end() -> None:
            self._ending = True
            for listener in self._ports:
                self._loop.remove_reader(listener)
            await asyncio.sleep(0)  # lets pending tasks start, so that they close what they opened
            ending = list(self._leading)
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _forward(self, port: int, line: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=line)
        try:
            async with self._open(port) as channel:
                await _copy_both_ways(reader, writer, channel)
        except ConnectionClosed as closed:
            if closed.rcvd is not None and closed.rcvd.code == NOTHING_LISTENS:
                self._note(f"Nothing listens on port {port} of {self._name}.")
            else:
                self._note(f"A connection to port {port} of {self._name} was lost.", check_state=True)
        except InvalidStatus as refused:
            status = refused.response.status_code
            self._note(f"{self._name} rejected a connection to port {port} ({status}).", check_state=True)
        except (WebSocketException, OSError, TimeoutError) as error:
            self._note(f"{self._name} does not answer: {error or type(error).__name__}.", check_state=True)
        except asyncio.CancelledError:
            writer.transport.abort()  # unread data is discarded
            raise
        finally:
            writer.close()

    def _open(self, port: int) -> connect:
        target = self._connection.websocket(f"{PATH}/{port}")
        options: dict[str, Any] = {}
        if target.host == LOOPBACK:
            # Python does not resolve names below localhost.
            options = {"host": target.host, "port": target.port, "proxy": None}
        return _Connect(
            target.uri,
            additional_headers=target.headers,
            compression=None,
            max_size=None,
            open_timeout=OPEN_S,
            # No ping timeout: a client that reads nothing for long does not answer pings.
            ping_timeout=None,
            **options,
        )

    def _note(self, text: str, *, check_state: bool = False) -> None:
        print(text, file=sys.stderr, flush=True)
        if check_state:
            self._soon.set()


async def _copy_both_ways(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, channel: ClientConnection
) -> None:
    """Copy bytes in both directions until both have ended. Raises `ConnectionClosed` if interrupted."""
    sending = asyncio.create_task(_send(reader, channel))
    try:
        async for piece in channel:
            if piece == END:
                with contextlib.suppress(OSError):
                    writer.write_eof()
            elif isinstance(piece, bytes):
                writer.write(piece)
                await writer.drain()
        await writer.drain()
    except OSError:
        pass  # the local client disconnected
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _send(reader: asyncio.StreamReader, channel: ClientConnection) -> None:
    try:
        while data := await reader.read(PIECE):
            await channel.send(data)
        await channel.send(END)
    except OSError:
        await channel.close()
    except ConnectionClosed:
        return  # the receiving side gets the reason
