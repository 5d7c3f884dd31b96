"""The agent clones repositories beside the app with credentials from the portal and reports the result."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from agent_support import AGENT, AGENT_TOKEN, APP_TOKEN, free_port

from tests.git_server import GitServer
from tests.instance import eventually

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed here")
TOKEN = "planted-token-0c3e"
APP = """
import http.server, os, sys
open("settings", "w").write(os.environ.get("GIT_CONFIG_SYSTEM", ""))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *arguments):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    made = GitServer(tmp_path)
    yield made
    made.close()


@pytest.fixture
def portal() -> Iterator[Any]:
    """Answers `secrets` with `git`, and records reports."""
    told: list[tuple[str, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        git: list[dict[str, str]] = []

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name = self.path.rpartition("/")[2]
            told.append((name, body))
            data = json.dumps({"secrets": [], "git": Handler.git}).encode() if name == "secrets" else b""
            self.send_response(200 if data else 204)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_arguments: Any) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    httpd.told, httpd.handler = told, Handler  # type: ignore[attr-defined]
    yield httpd
    httpd.shutdown()
    httpd.server_close()


def started(tmp_path: Path, portal: Any, server: GitServer, **changes: Any) -> subprocess.Popen[bytes]:
    home = tmp_path / "home"
    home.mkdir()
    config = {
        "argv": ["python3", "-c", APP, "{port}"],
        "env": {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_SSL_CAINFO": str(server.authority)},
        "ports": [free_port()],
        "home": str(home),
        "name": "mine",
        "app_token": APP_TOKEN,
        "agent_url": f"http://127.0.0.1:{portal.server_address[1]}",
        "agent_token": AGENT_TOKEN,
        "workspace_id": "11111111-2222-3333-4444-555555555555",
        "generation": 1,
        "state_path": str(tmp_path / "state.json"),
        "log_path": str(tmp_path / "app.log"),
        "secrets": True,
        "git_dir": str(tmp_path / "git"),
        "checkouts": [
            {"what": "repository", "url": server.url("lib"), "ref": "", "folder": "lib", "credential": True,
             "timeout_s": 60, "script_timeout_s": 20, "limit_mib": 0},
        ],
        **changes,
    }  # fmt: skip
    (tmp_path / "agent.json").write_text(json.dumps(config))
    return subprocess.Popen([sys.executable, "-I", "-S", str(AGENT), str(tmp_path / "agent.json")])


def ends(portal: Any) -> list[dict[str, Any]]:
    said = [body for name, body in portal.told if name == "checkout"]
    return [body for body in said if body["state"] in ("cloned", "kept", "failed")]


def test_repository_is_cloned_with_the_portal_credential_and_commit_reported(tmp_path, portal, server):
    commit = server.repository("lib", {"a.txt": "a"})
    server.user, server.password = "oauth2", TOKEN
    origin = f"https://localhost:{server.port}"
    portal.handler.git = [
        {"what": "repository", "host": "localhost", "origin": origin, "username": "oauth2", "password": TOKEN}
    ]
    agent = started(tmp_path, portal, server)
    try:
        (said,) = eventually(lambda: ends(portal) or None, limit_s=60, what="the clone is told")
        assert (said["state"], said["commit"]) == ("cloned", commit)
        eventually(
            lambda: "ready" in [name for name, _ in portal.told] or None, limit_s=60, what="it is ready"
        )
        assert (tmp_path / "home/lib/a.txt").read_text() == "a"
        assert (tmp_path / "home/settings").read_text() == str(tmp_path / "git/config")
        log = (tmp_path / "app.log").read_text()
        assert f"repository cloned {commit}" in log and TOKEN not in log
        assert TOKEN not in str([body for _name, body in portal.told])
    finally:
        agent.terminate()
        assert agent.wait(30) == 0


@pytest.mark.parametrize(("git_dir", "code"), [("", "no_place"), ("git", "no_secret")])
def test_app_starts_even_if_cloning_fails(tmp_path, portal, server, git_dir, code):
    server.repository("lib", {"a.txt": "a"})
    portal.handler.git = [{"what": "repository", "problem": "no_secret"}]
    agent = started(tmp_path, portal, server, git_dir=str(tmp_path / git_dir) if git_dir else "")
    try:
        (said,) = eventually(lambda: ends(portal) or None, limit_s=60, what="the failure is told")
        assert (said["state"], said["code"]) == ("failed", code)
        eventually(
            lambda: "ready" in [name for name, _ in portal.told] or None, limit_s=60, what="it is ready"
        )
        assert server.requests == []
    finally:
        agent.terminate()
        assert agent.wait(30) == 0
