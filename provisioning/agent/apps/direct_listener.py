"""Has a Jupyter server answer on the workspace's own socket, with no relay in between.

`app_host.py` calls `use` before the server begins. The server listens on its port as ever; in addition it
takes the connections of the Unix socket that the driver has made. As soon as it does, the agent is told one
line, `listening`; from then on each byte from the agent is answered with the number of open connections.
"""

from __future__ import annotations

import socket
from typing import Any


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
    app.http_server.add_socket(listener)
    app.io_loop.add_handler(control, lambda *_: answer(app, control), app.io_loop.READ)
    control.sendall(b"listening\n")


def answer(app: Any, control: socket.socket) -> None:
    """One line for whatever was asked; the agent's end ends it."""
    try:
        asked = control.recv(64)
        if asked:
            control.sendall(b"%d\n" % len(app.http_server._connections))
            return
    except (BlockingIOError, InterruptedError):
        return
    except OSError:
        pass
    app.io_loop.remove_handler(control)
    control.close()
