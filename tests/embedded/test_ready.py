"""A unit waits until its service answers."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from portal.embedded import ready
from tests.ports import free_port


class Live(BaseHTTPRequestHandler):
    begun = 0.0

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz/live" and time.monotonic() > self.begun else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_ready_waits_until_the_service_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "POLL_S", 0.01)
    monkeypatch.setattr(Live, "begun", time.monotonic() + 0.1)
    with ThreadingHTTPServer(("127.0.0.1", 0), Live) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert ready.main([str(server.server_address[1])]) == 0
        assert time.monotonic() > Live.begun
        server.shutdown()


def test_ready_fails_after_the_time_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert ready.main([str(free_port())], limit_s=0.1) == 1
    assert "no answer on port" in capsys.readouterr().err
