"""A Git server for tests: `git http-backend` behind TLS, optionally with a password."""

from __future__ import annotations

import base64
import contextlib
import os
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.certificates import Authority

GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main")


def git(*arguments: str, cwd: Path) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": str(cwd), "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run([*GIT, *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


class GitServer:
    """Bare repositories below `root`, as `https://localhost:<port>/<name>.git`; `password` guards them."""

    def __init__(self, root: Path) -> None:
        self.root = root / "repositories"
        self.root.mkdir(parents=True)
        self.user, self.password = "", ""
        self.requests: list[tuple[str, str]] = []
        authority = Authority(root / "tls")
        self.authority = authority.path
        issued = authority.issue("localhost", "localhost")
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"

            def do_GET(self) -> None:
                server.handle(self)

            do_POST = do_GET  # noqa: N815

            def finish(self) -> None:
                super().finish()
                with contextlib.suppress(OSError):  # GnuTLS wants a proper end
                    self.connection.unwrap()  # type: ignore[attr-defined]

            def log_message(self, *_arguments: Any) -> None:
                pass

        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(issued.certificate, issued.key)
        self.httpd.socket = context.wrap_socket(self.httpd.socket, server_side=True)
        self.port = self.httpd.server_address[1]
        self.thread = threading.Thread(target=self.httpd.serve_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.httpd.shutdown()
        self.httpd.server_close()

    def url(self, name: str) -> str:
        return f"https://localhost:{self.port}/{name}.git"

    def repository(self, name: str, files: dict[str, str]) -> str:
        """Create one with these files, a tag `v1`, and a branch `other` at its first commit.

        Returns the newest commit.
        """
        work = self.root / f"{name}-work"
        work.mkdir()
        git("init", "--quiet", ".", cwd=work)
        for path, text in files.items():
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_text(text)
        for path in files:
            if path.endswith(".sh"):
                (work / path).chmod(0o755)
        git("add", "--all", cwd=work)
        git("commit", "--quiet", "--message", "first", cwd=work)
        git("tag", "v1", cwd=work)
        git("branch", "other", cwd=work)
        (work / "second").write_text("2")
        git("add", "--all", cwd=work)
        git("commit", "--quiet", "--message", "second", cwd=work)
        git("clone", "--quiet", "--bare", str(work), str(self.root / f"{name}.git"), cwd=self.root)
        return git("rev-parse", "HEAD", cwd=work)

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        authorization = request.headers.get("Authorization", "")
        self.requests.append((request.path, authorization))
        expected = "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        if self.password and authorization != expected:
            request.send_response(401)
            request.send_header("WWW-Authenticate", 'Basic realm="git"')
            request.end_headers()
            return
        parts = urlsplit(request.path)
        length = int(request.headers.get("Content-Length") or 0)
        env = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
            "REQUEST_METHOD": request.command,
            "PATH_INFO": parts.path,
            "QUERY_STRING": parts.query,
            "CONTENT_TYPE": request.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(length),
            "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
        }
        body = request.rfile.read(length)
        answer = subprocess.run(
            ["git", "http-backend"], input=body, env=env, capture_output=True, check=False
        )
        head, _, rest = answer.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
        request.send_response(int(headers.pop("Status", "200").split()[0]))
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(rest)
