"""gunicorn's thread worker with time limits for requests and for reading responses.

gunicorn has no such limits, so a client that sends a byte now and then would block one of few threads.
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
    """A client's connection. Reads fail after a deadline, which `begin` and `start_body_deadline` set."""

    until = float("inf")

    def begin(self) -> None:
        """Start the deadline for the request head."""
        self.until = time.monotonic() + HEAD_TIMEOUT_S

    def start_body_deadline(self) -> None:
        """Start the longer deadline for the body."""
        self.until = time.monotonic() + BODY_TIMEOUT_S

    def setblocking(self, flag: bool) -> None:
        # The worker's blocking mode only blocks until the deadline.
        self.settimeout(SEND_TIMEOUT_S if flag else 0.0)

    def recv(self, size: int, flags: int = 0) -> bytes:
        if self.gettimeout() == 0.0:
            return super().recv(size, flags)
        try:
            self.settimeout(max(self.until - time.monotonic(), 0.001))
            return super().recv(size, flags)
        except TimeoutError:
            # To the worker, this looks like a disconnected client.
            raise ConnectionResetError(errno.ECONNRESET, "the request did not come in time") from None
        finally:
            if self.fileno() >= 0:
                self.settimeout(SEND_TIMEOUT_S)


class DeadlineWorker(gthread.ThreadWorker):
    """`gthread` worker whose connections occupy a thread only within their deadlines."""

    def enqueue_req(self, conn: Any) -> None:
        if not isinstance(conn.sock, DeadlineSocket):
            conn.sock = DeadlineSocket(fileno=conn.sock.detach())
            conn.sock.setblocking(False)
        super().enqueue_req(conn)

    def handle(self, conn: Any) -> Any:
        if not conn.initialized and not conn.wait_for_data(0.0):
            # No data yet, so let the poller wait instead of a thread.
            return gthread._DEFER
        conn.sock.begin()
        return super().handle(conn)

    def handle_request(self, req: Any, conn: Any) -> Any:
        conn.sock.start_body_deadline()
        return super().handle_request(req, conn)
