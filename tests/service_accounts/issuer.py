"""An OpenID Connect issuer for tests that listens on this machine in a thread."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm


class TestIssuer:
    """An issuer; `sign(claims)` returns a token.

    Its responses can be changed (`pages`, `hold`); `asked` lists the requests.
    """

    __test__ = False

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.pages: dict[str, Any] = {}
        self.released = Event()
        self.released.set()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.keys: dict[str, Any] = {}
        self.rotate("first")

    def rotate(self, key_id: str, *, key: Any = None) -> None:
        """Sign with a new key from now on; earlier ones are no longer listed."""
        self.key_id = key_id
        self.keys = {key_id: key or rsa.generate_private_key(65537, 2048)}
        self.publish()

    def publish(self) -> None:
        self.pages["/.well-known/openid-configuration"] = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        self.pages["/keys"] = {"keys": [self.jwk(key_id) for key_id in self.keys]}

    def jwk(self, key_id: str, **more: Any) -> dict[str, Any]:
        public = self.keys[key_id].public_key()
        of = ECAlgorithm if isinstance(public, ec.EllipticCurvePublicKey) else RSAAlgorithm
        return {**json.loads(of.to_jwk(public)), "kid": key_id, "use": "sig", **more}

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Return claims of a valid GitHub Actions job token; None removes one."""
        now = int(time.time())
        good = {
            "iss": self.url,
            "aud": "https://berth.example.org",
            "sub": "repo:octo/app:ref:refs/heads/main",
            "iat": now,
            "nbf": now - 5,
            "exp": now + 300,
            "jti": uuid.uuid4().hex,
            "repository": "octo/app",
            "repository_id": "123",
            "repository_owner_id": "45",
            "ref": "refs/heads/main",
            "environment": "production",
            "workflow": "deploy",
        }
        return {name: value for name, value in {**good, **changed}.items() if value is not None}

    def sign(
        self,
        claims: dict[str, Any] | None = None,
        *,
        key: Any = None,
        algorithm: str = "RS256",
        **header: Any,
    ) -> str:
        headers = {"kid": self.key_id, **header}
        key = self.keys[self.key_id] if key is None else key
        text = json.dumps(claims or self.claims()).encode()
        return jwt.api_jws.encode(text, key, algorithm=algorithm, headers={"typ": "JWT", **headers})

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked.append(self.path)
                issuer.released.wait(20)
                page = issuer.pages.get(self.path)
                status, headers = 200, {}
                if isinstance(page, tuple):
                    status, headers, page = page
                body = page if isinstance(page, bytes) else json.dumps(page).encode()
                try:
                    self.send_response(404 if page is None else status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    pass  # The client did not wait.

            def log_message(self, *_args: Any) -> None:
                pass

        return Handler


@contextmanager
def listening() -> Iterator[TestIssuer]:
    issuer = TestIssuer()
    thread = Thread(target=issuer.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield issuer
    finally:
        issuer.released.set()
        issuer.server.shutdown()
        issuer.server.server_close()
        thread.join(10)
