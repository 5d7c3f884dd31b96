"""gunicorn's thread worker, with a time by which a request has to be there, and its answer read.

gunicorn has none of its own: whoever sends a byte now and then would keep a thread, of which there are few.
"""

from __future__ import annotations

import errno
import socket
import time
from typing import Any

from gunicorn.workers import gthread

HEAD_TIMEOUT_S = 5.0
BODY_TIMEOUT_S = 30.0
SEND_TIMEOUT_S = 60.0


class DeadlineSocket(socket.socket):
    """A client's connection. What it sends is read until a time that `begin` and `go_on` set."""

    until = float("inf")

    def begin(self) -> None:
        """A request begins: its head has to come soon."""
        self.until = time.monotonic() + HEAD_TIMEOUT_S

    def go_on(self) -> None:
        """The head is there: the rest may take longer."""
        self.until = time.monotonic() + BODY_TIMEOUT_S

    def setblocking(self, flag: bool) -> None:
        # What the worker calls blocking is so only for a while.
        self.settimeout(SEND_TIMEOUT_S if flag else 0.0)

    def recv(self, size: int, flags: int = 0) -> bytes:
        if self.gettimeout() == 0.0:
            return super().recv(size, flags)
        try:
            self.settimeout(max(self.until - time.monotonic(), 0.001))
            return super().recv(size, flags)
        except TimeoutError:
            # To the worker it is as if the client had gone.
            raise ConnectionResetError(errno.ECONNRESET, "the request did not come in time") from None
        finally:
            if self.fileno() >= 0:
                self.settimeout(SEND_TIMEOUT_S)


class DeadlineWorker(gthread.ThreadWorker):
    """`gthread` whose connections keep a thread no longer than their times allow."""

    def enqueue_req(self, conn: Any) -> None:
        if not isinstance(conn.sock, DeadlineSocket):
            conn.sock = DeadlineSocket(fileno=conn.sock.detach())
            conn.sock.setblocking(False)
        super().enqueue_req(conn)

    def handle(self, conn: Any) -> Any:
        if not conn.initialized and not conn.wait_for_data(0.0):
            # Nothing has come yet: the poller waits, no thread does.
            return gthread._DEFER
        conn.sock.begin()
        return super().handle(conn)

    def handle_request(self, req: Any, conn: Any) -> Any:
        conn.sock.go_on()
        return super().handle_request(req, conn)
