"""A test portal that the agent calls, and a small app for the agent to run."""

from __future__ import annotations

import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.ports import free_port as free_port

AGENT = Path(__file__).parents[3] / "provisioning" / "agent" / "program" / "agent.py"
APP_TOKEN = "app-token-0123456789abcdef"
AGENT_TOKEN = "agent-token-0123456789abcdef"

APP = """
import http.server, os, signal, subprocess, sys
port, mode = int(sys.argv[1]), sys.argv[2]
print("secret is", os.environ.get("TOKEN"), flush=True)
if mode == "exit":
    print("last words", flush=True)
    sys.exit(3)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if mode == "orphan":
    # Two generations away and in a session of its own, as kernels are.
    subprocess.run([sys.executable, "-c", "import subprocess, sys; subprocess.Popen([sys.executable, '-c',"
        " 'import time; time.sleep(600)', sys.argv[1]], start_new_session=True)", sys.argv[3]])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(500 if mode == "broken" else 200)
        self.end_headers()
        if self.path == "/end":
            os._exit(0)
    def log_message(self, *arguments):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


class Portal:
    """Answers agent calls with `status` and records them in `calls`."""

    def __init__(self, port: int = 0) -> None:
        self.status = 204
        self.calls: queue.Queue[tuple[str, str, dict[str, Any]]] = queue.Queue()
        portal = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                name = self.path.rpartition("/")[2]
                heartbeat = name == "heartbeat" and portal.status == 204
                answer = b'{"next_s": 0.1}' if heartbeat else b""
                self.send_response(200 if heartbeat else portal.status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
                portal.calls.put((self.path, self.headers["Authorization"], body))

            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    def next(self, name: str, timeout_s: float = 15) -> tuple[str, dict[str, Any]]:
        """Return the Authorization header and body of the next call with this name."""
        while True:
            path, authorization, body = self.calls.get(timeout=timeout_s)
            if path == f"/agent/v1/{name}":
                return authorization, body

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
