"""Jupyter Server extension through which `berth port-forward` reaches a port inside the workspace.

A WebSocket to `berth/forward/PORT` is forwarded to 127.0.0.1:PORT of the server's network, and to no other
host. Binary messages are the bytes of the connection. The text `end` half-closes the connection, which
WebSockets do not support. Bytes are read only as fast as the other side accepts them.

A client with access here can also run any code in a kernel. Web pages must not connect: requests of browsers
are rejected regardless of their origin, because even a page of the workspace may contain foreign content.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from jupyter_server.base.handlers import APIHandler, JupyterHandler  # type: ignore[import-not-found]
from jupyter_server.utils import url_path_join  # type: ignore[import-not-found]
from tornado import web  # type: ignore[import-not-found,import-untyped,unused-ignore]
from tornado.iostream import StreamClosedError  # type: ignore[import-not-found,import-untyped,unused-ignore]
from tornado.websocket import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
    WebSocketClosedError,
    WebSocketHandler,
)

HOST = "127.0.0.1"
PIECE = 1 << 16
CONNECT_S = 10.0
VERSION = 1
END = "end"
OF_BROWSERS = ("Origin", "Sec-Websocket-Origin", "Sec-Fetch-Site")
"""A browser sends at least one of these headers with a WebSocket; programs send none."""
# Close codes from the private range (RFC 6455, 7.4.2).
NOTHING_LISTENS = 4001
CUT_OFF = 4002


class VersionHandler(APIHandler):  # type: ignore[misc]
    """Returns the version of this extension."""

    @web.authenticated  # type: ignore[untyped-decorator,unused-ignore]
    def get(self) -> None:
        self.finish({"version": VERSION})


class ForwardHandler(WebSocketHandler, JupyterHandler):  # type: ignore[misc]
    """One forwarded connection."""

    # A client that reads nothing for long does not answer pings either, which is fine.
    ping_interval = None
    writer: asyncio.StreamWriter | None = None
    sending: asyncio.Task[None] | None = None
    local_ended = remote_ended = False

    def set_default_headers(self) -> None:
        """Do nothing: only pages need these headers."""

    def check_origin(self, origin: str) -> bool:
        return False

    async def get(self, port: str) -> None:
        # `check_origin` alone is not enough: newer versions of Tornado call it only for other origins.
        if not self.current_user or any(name in self.request.headers for name in OF_BROWSERS):
            raise web.HTTPError(403)
        if not 1 <= int(port) <= 65535:
            raise web.HTTPError(400, "The port is not valid. Choose a port from 1 to 65535.")
        if int(port) == self.settings["berth_own_port"]:
            raise web.HTTPError(400, "Jupyter uses this port itself. Open the workspace instead.")
        await super().get(port)

    async def open(self, port: str) -> None:
        self.set_nodelay(True)
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection(HOST, int(port)), CONNECT_S)
        except (OSError, asyncio.TimeoutError):  # noqa: UP041 - two classes in Python 3.10
            self.close(NOTHING_LISTENS, "no program listens on this port")
            return
        self.writer = writer
        self.sending = asyncio.ensure_future(self._send(reader))

    async def on_message(self, piece: str | bytes) -> None:
        # The next message is read after this has finished.
        if self.writer is None:
            return
        try:
            if isinstance(piece, bytes):
                self.writer.write(piece)
                await self.writer.drain()
            elif piece == END:
                self.remote_ended = True
                self.writer.write_eof()
                self._close_if_over()
        except OSError:
            self.close(CUT_OFF, "the program closed the connection")

    async def _send(self, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(PIECE):
                await self.write_message(data, binary=True)
            await self.write_message(END)
        except (WebSocketClosedError, StreamClosedError):
            return
        except OSError:
            self.close(CUT_OFF, "the program closed the connection")
            return
        self.local_ended = True
        self._close_if_over()

    def _close_if_over(self) -> None:
        if self.local_ended and self.remote_ended:
            self.close(1000)

    def on_close(self) -> None:
        if self.sending is not None:
            self.sending.cancel()
        if self.writer is not None:
            with contextlib.suppress(OSError):
                if self.local_ended and self.remote_ended:
                    self.writer.close()
                else:
                    self.writer.transport.abort()


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(serverapp: Any) -> None:
    base = serverapp.web_app.settings["base_url"]
    serverapp.web_app.settings["berth_own_port"] = serverapp.port
    serverapp.web_app.add_handlers(
        ".*$",
        [
            (url_path_join(base, "berth/forward"), VersionHandler),
            (url_path_join(base, "berth/forward/([0-9]{1,5})"), ForwardHandler),
        ],
    )
