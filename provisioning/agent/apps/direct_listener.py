"""Has a Jupyter server answer on the workspace's own socket, with no relay in between.

`app_host.py` calls `use` before the server begins. The server listens on its port as ever; in addition it
takes the connections of the Unix socket that the driver has made. As soon as it does, the agent is told one
line, `listening`; from then on each byte from the agent is answered with the number of open connections and
that of the bytes that have come and gone on the socket.
"""

from __future__ import annotations

import socket
from typing import Any


class Traffic:
    """How many bytes have come and gone."""

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
    """Have the server of this process listen on `listener`, and tell and answer by `control`.

    Raises `ImportError` or `AttributeError` where this environment has no such server.
    """
    from jupyter_server.serverapp import ServerApp  # type: ignore[import-not-found]

    create = ServerApp.init_httpserver

    def init_httpserver(app: Any) -> None:
        create(app)
        # Before its first answer: both sockets are bound in the loop's first round.
        app.io_loop.add_callback(listen, app, listener, control)

    ServerApp.init_httpserver = init_httpserver


def listen(app: Any, listener: socket.socket, control: socket.socket) -> None:
    """In the event loop: take connections, say so, and answer how many there are."""
    listener.setblocking(False)
    control.setblocking(False)
    traffic, handle = Traffic(), app.http_server.handle_stream

    def handle_stream(stream: Any, address: Any) -> Any:
        # On its port are the agent, and what the user has started.
        if stream.socket.family == socket.AF_UNIX:
            traffic.count_on(stream)
        return handle(stream, address)

    app.http_server.handle_stream = handle_stream
    app.http_server.add_socket(listener)
    app.io_loop.add_handler(control, lambda *_: answer(app, control, traffic), app.io_loop.READ)
    control.sendall(b"listening\n")


def answer(app: Any, control: socket.socket, traffic: Traffic) -> None:
    """One line for whatever was asked; the agent's end ends it."""
    try:
        asked = control.recv(64)
        if asked:
            control.sendall(b"%d %d\n" % (len(app.http_server._connections), traffic.bytes))
            return
    except (BlockingIOError, InterruptedError):
        return
    except OSError:
        pass
    app.io_loop.remove_handler(control)
    control.close()
