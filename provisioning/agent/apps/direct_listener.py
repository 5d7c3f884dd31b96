"""Let a Jupyter server accept connections on the workspace's own socket, without a relay.

`app_host.py` calls `use` before the server starts. The server listens on its port as usual and also accepts
connections of the Unix socket created by the driver. Once it does, it sends the agent one line, `listening`.
From then on it answers each byte from the agent with the number of open connections and of bytes transferred
on the socket.
"""

from __future__ import annotations

import socket
from typing import Any


class Traffic:
    """Counts transferred bytes."""

    def __init__(self) -> None:
        self.bytes = 0

    def count_on(self, stream: Any) -> None:
        """Count what `stream`, an IOStream of Tornado, reads and writes from now on."""
        read, write = stream.read_from_fd, stream.write_to_fd

        def read_from_fd(room: Any) -> int | None:
            size: int | None = read(room)
            self.bytes += size or 0
            return size

        def write_to_fd(data: Any) -> int:
            size: int = write(data)
            self.bytes += size
            return size

        stream.read_from_fd, stream.write_to_fd = read_from_fd, write_to_fd


def use(listener: socket.socket, control: socket.socket) -> None:
    """Make this process's server listen on `listener`, and communicate with the agent by `control`.

    Raises `ImportError` or `AttributeError` if this environment has no such server.
    """
    # Only the environment of the workspace has it.
    from jupyter_server.serverapp import ServerApp  # type: ignore[import-not-found]

    create = ServerApp.init_httpserver

    def init_httpserver(app: Any) -> None:
        create(app)
        # Before its first response: both sockets are bound in the loop's first iteration.
        app.io_loop.add_callback(listen, app, listener, control)

    ServerApp.init_httpserver = init_httpserver


def listen(app: Any, listener: socket.socket, control: socket.socket) -> None:
    """Accept connections, notify the agent, and answer its requests. Runs in the event loop."""
    listener.setblocking(False)
    control.setblocking(False)
    traffic, handle = Traffic(), app.http_server.handle_stream

    def handle_stream(stream: Any, address: Any) -> Any:
        # Connections to the port come from the agent and from the user's own programs.
        if stream.socket.family == socket.AF_UNIX:
            traffic.count_on(stream)
        return handle(stream, address)

    app.http_server.handle_stream = handle_stream
    app.http_server.add_socket(listener)
    app.io_loop.add_handler(control, lambda *_: answer(app, control, traffic), app.io_loop.READ)
    control.sendall(b"listening\n")


def answer(app: Any, control: socket.socket, traffic: Traffic) -> None:
    """Answer a request with one line; stop when the agent closes its end."""
    try:
        data = control.recv(64)
        if data:
            control.sendall(b"%d %d\n" % (len(app.http_server._connections), traffic.bytes))
            return
    except (BlockingIOError, InterruptedError):
        return
    except OSError:
        pass
    app.io_loop.remove_handler(control)
    control.close()
