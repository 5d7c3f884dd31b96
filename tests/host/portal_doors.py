"""Fake portal doors for machines: over real TLS, with the responses of the contract."""

from __future__ import annotations

import json
import re
import secrets
import ssl
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509

from provisioning.signing import public_text
from tests.host.authority import FRONT_NAME, PORTAL_NAME, Authority
from tests.senders import CONTROL_KEY

Answer = tuple[int, dict[str, Any]]


class Doors:
    """`answer_join` sets the response to a join; by default all are accepted. `asked` records requests."""

    def __init__(self, folder: Path, authority: Authority, *, redis_port: int = 1, name: str = PORTAL_NAME):
        self.authority = authority
        self.shown = authority.pem
        self.redis_port = redis_port
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.answer_join: Callable[[dict[str, Any]], Answer | None] = lambda _: None
        self.answer_leave: Answer = (204, {})
        self.answer_standing: Answer = (200, {"placed": 0, "workspaces": []})
        self.clock_ahead_s = 0.0
        self.token = f"berth-join.{secrets.token_hex(16)}.{secrets.token_urlsafe(32)}.{authority.digest}"
        self.passwords: list[str] = []
        certificate, key = authority.write(folder, name)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "authority.pem"))
        context.load_cert_chain(certificate, key)
        context.verify_mode = ssl.CERT_OPTIONAL
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def paths(self) -> list[str]:
        return [path for _, path, _ in self.asked]

    def granted(self, name: str, csr: str) -> dict[str, Any]:
        """The data that a joined machine gets."""
        request = x509.load_pem_x509_csr(csr.encode())
        assert request.is_signature_valid
        key: Any = request.public_key()
        certificate = self.authority.issue(key, name=f"node:{name}", host=f"{name}.node.berth.internal")
        self.passwords.append(secrets.token_hex(32))
        return {
            "node": name,
            "pool": "main",
            "certificate": certificate,
            "authority": self.authority.pem,
            "front_door_name": FRONT_NAME,
            "redis": {
                "host": "127.0.0.1",
                "port": self.redis_port,
                "user": f"node-{name}",
                "password": self.passwords[-1],
                "server_name": PORTAL_NAME,
            },
            "control_key": public_text(CONTROL_KEY),
            "portal_url": self.url,
            "domain": "localhost",
            "expires_at": "2030-01-01T00:00:00Z",
        }

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        doors = self

        class Handler(BaseHTTPRequestHandler):
            def date_time_string(self, timestamp: float | None = None) -> str:
                return formatdate((timestamp or time.time()) + doors.clock_ahead_s, usegmt=True)

            def do_GET(self) -> None:
                doors.asked.append(("GET", self.path, {}))
                if self.path == "/nodes/v1/authority":
                    self._send(200, doors.shown.encode())
                else:
                    self._send(404, b"not here")

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                doors.asked.append(("POST", self.path, body))
                node = self._node()
                if self.path == "/nodes/v1/join":
                    answer = doors.answer_join(body)
                    if answer == (0, {}):
                        # Accepted, and the response is lost.
                        self.connection.close()
                        return
                    status, document = answer or (201, doors.granted(body["name"], body["csr"]))
                elif not node:
                    status, document = 403, problem("not_a_joined_node", "This machine is no node.")
                elif self.path == "/nodes/v1/rotate":
                    status, document = 200, doors.granted(node, body["csr"])
                elif self.path == "/nodes/v1/standing":
                    status, document = doors.answer_standing
                else:
                    status, document = doors.answer_leave
                self._send(status, json.dumps(document).encode() if document else b"")

            def _node(self) -> str:
                certificate = self.connection.getpeercert() or {}  # type: ignore[attr-defined]
                match = re.search(r"'commonName', 'node:([a-z0-9-]+)'", str(certificate.get("subject")))
                return match[1] if match else ""

            def _send(self, status: int, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        return Handler


def problem(code: str, detail: str, next_action: str = "Do this.") -> dict[str, Any]:
    """A refusal in the portal's format."""
    return {"code": code, "detail": detail, "next_action": next_action, "status": 409}
