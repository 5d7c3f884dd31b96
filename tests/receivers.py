"""HTTP receivers on loopback whose answers a test chooses: real servers, real sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LIMIT_S = 30
"""Maximum time that a test waits for an event that must happen."""


@dataclass
class Received:
    """One request: its path, its headers in lower case, its body."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """Received requests, and their answers: `answer(received, handler)` writes one; the default is 200."""

    url: str = ""
    requests: list[Received] = field(default_factory=list)
    answer: Callable[[Received, BaseHTTPRequestHandler], None] | None = None
    # Set when the test is over, so that delayed answers end.
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


def status(code: int, body: bytes = b"", **headers: str) -> Callable[[Received, Any], None]:
    """Return an answer with this status."""

    def answer(_received: Received, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def one_after_another(*answers: Callable[[Received, Any], None]) -> Callable[[Received, Any], None]:
    """Return an answer that uses `answers` in sequence; the last one answers all further requests."""
    left = list(answers)

    def answer(received: Received, handler: BaseHTTPRequestHandler) -> None:
        (left.pop(0) if len(left) > 1 else left[0])(received, handler)

    return answer


@contextmanager
def receiver(answer: Callable[[Received, Any], None] | None = None) -> Iterator[Receiver]:
    """A receiver at 127.0.0.1, closed after the block."""
    new_receiver = Receiver(answer=answer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            headers = {name.lower(): value for name, value in self.headers.items()}
            received = Received(self.path, headers, self.rfile.read(length))
            new_receiver.requests.append(received)
            try:
                (new_receiver.answer or status(200))(received, self)
            except OSError:
                # The client has disconnected.
                self.close_connection = True

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    new_receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield new_receiver
    finally:
        new_receiver.over.set()
        server.shutdown()
        server.server_close()
        thread.join(LIMIT_S)
