"""Secrets in the agent: fetched before the app starts, passed as variables and files, redacted in logs."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from agent_support import AGENT_TOKEN, APP_TOKEN

from provisioning.agent.program.log import Log

ENV = {"name": "API_KEY", "kind": "env", "value": "planted-{token}-value"}
FILE = {"name": "DEPLOY_KEY", "kind": "file", "value": "-----BEGIN\nplanted-line-of-a-key\n-----END\n"}
APP = """
import http.server, os, sys
print("key is", os.environ.get("API_KEY"), flush=True)
folder = os.environ.get("BERTH_SECRETS_DIR", "")
if folder:
    print("file is", open(folder + "/DEPLOY_KEY").read(), flush=True)
open("seen", "w").write(repr((os.environ.get("API_KEY"), folder)))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *arguments):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class SecretPortal:
    """Answers `secrets` with `answers` in turn, repeating the last one; everything else with 204."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[str] = []
        self.names: list[str] = []
        portal = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                name = self.path.rpartition("/")[2]
                portal.names.append(name)
                status, body = 204, b""
                if name == "secrets":
                    portal.asked.append(self.headers["Authorization"])
                    answers = portal.answers
                    status, found = answers.pop(0) if len(answers) > 1 else answers[0]
                    body = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def asked() -> Iterator[SecretPortal]:
    made = SecretPortal()
    yield made
    made.server.shutdown()
    made.server.server_close()


def run(asked: SecretPortal, configuration: Any, start: Any, tmp_path: Path, **changes: Any) -> Any:
    configuration(
        argv=["python3", "-c", APP, "{port}"],
        agent_url=asked.url,
        secrets=True,
        remove_config=True,
        **{"secrets_dir": str(tmp_path / "secrets"), **changes},
    )
    return start()


def until(condition: Any, limit: int = 3000) -> None:
    wait = threading.Event()
    for _ in range(limit):
        if condition():
            return
        wait.wait(0.01)
    raise AssertionError("it did not come to pass")


def phase_of(state: Any) -> str:
    try:
        return str(state()["phase"])
    except OSError:
        return ""


def test_the_app_gets_variables_and_files(asked, configuration, start, state, tmp_path):
    asked.answers = [(503, None), (200, {"secrets": [ENV, FILE]})]
    run(asked, configuration, start, tmp_path)
    until(lambda: phase_of(state) == "ready")
    folder = tmp_path / "secrets"
    # Placeholders inside a value are not replaced.
    assert (tmp_path / "seen").read_text() == repr((ENV["value"], str(folder)))
    assert (folder / "DEPLOY_KEY").read_text() == FILE["value"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o500
    assert stat.S_IMODE((folder / "DEPLOY_KEY").stat().st_mode) == 0o400
    assert set(asked.asked) == {f"Bearer {AGENT_TOKEN}"} and len(asked.asked) == 2
    assert asked.names.index("secrets") < asked.names.index("launched")


def test_secret_values_are_not_written_to_disk(asked, configuration, start, state, tmp_path):
    asked.answers = [(200, {"secrets": [ENV, FILE]})]
    process = run(asked, configuration, start, tmp_path)
    until(lambda: phase_of(state) == "ready")
    until(lambda: b"file is" in (tmp_path / "app.log").read_bytes())
    process.terminate()
    process.wait(20)
    log = (tmp_path / "app.log").read_text()
    assert "key is [secret]" in log and "planted" not in log
    (tmp_path / "seen").unlink()
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.parent.name != "secrets":
            assert b"planted" not in path.read_bytes(), path


def test_secret_values_are_not_in_command_lines(asked, configuration, start, state, tmp_path):
    asked.answers = [(200, {"secrets": [ENV]})]
    run(asked, configuration, start, tmp_path)
    until(lambda: phase_of(state) == "ready")
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert b"planted-{token}" not in path.read_bytes(), path
        except OSError:
            continue


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (410, None, "revoked"),
        (401, None, "revoked"),
        (409, None, "secrets_refused"),
        (200, None, "secrets_refused"),
        (200, {"secrets": [{"name": "../x", "kind": "file", "value": "planted"}]}, "secrets_refused"),
        (200, {"secrets": [{"name": "A=B", "kind": "env", "value": "planted"}]}, "secrets_refused"),
        (200, {"secrets": [{"name": "A", "kind": "env", "value": "a\0b"}]}, "secrets_refused"),
        (200, {"secrets": [{"name": "A", "kind": "pipe", "value": "b"}]}, "secrets_refused"),
        (200, {"secrets": "none"}, "secrets_refused"),
    ],
)
def test_app_is_not_started_without_its_secrets(
    asked, configuration, start, state, tmp_path, status, body, reason
):
    asked.answers = [(status, body)]
    process = run(asked, configuration, start, tmp_path)
    assert process.wait(30) == 0
    assert (state()["phase"], state()["reason"]) == ("exited", reason)
    assert not (tmp_path / "seen").exists() and not (tmp_path / "x").exists()


def test_stop_ends_the_wait_for_secrets_of_an_unreachable_portal(
    asked, configuration, start, state, tmp_path
):
    asked.answers = [(503, None)]
    process = run(asked, configuration, start, tmp_path)
    until(lambda: len(asked.asked) > 1)
    process.terminate()
    assert process.wait(20) == 0
    assert state()["reason"] == "stopped" and not (tmp_path / "seen").exists()


def test_secret_file_requires_a_sandbox(asked, configuration, start, state, tmp_path):
    asked.answers = [(200, {"secrets": [FILE]})]
    process = run(asked, configuration, start, tmp_path, secrets_dir="")
    assert process.wait(30) == 0
    assert state()["reason"] == "secrets_need_sandbox"


# --- the log --------------------------------------------------------------------------------------


def written(tmp_path: Path, hidden: list[str], pieces: list[bytes]) -> bytes:
    log = Log(str(tmp_path / "log"), 1 << 20, [APP_TOKEN])
    log.mask_values(hidden, b"[secret]")
    for piece in pieces:
        log.feed(piece)
    log.feed(b"", last=True)
    return (tmp_path / "log").read_bytes()


def test_secret_value_is_redacted_across_chunk_borders(tmp_path):
    value = "planted-value-0f8a7c"
    text = f"a {value} b {APP_TOKEN} c".encode()
    for size in (1, 2, 5, 7, len(text)):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        (tmp_path / "log").unlink(missing_ok=True)
        assert written(tmp_path, [value], pieces) == b"a [secret] b [token] c"


def test_secret_lines_and_overlapping_secrets_are_redacted(tmp_path):
    hidden = ["first-line-of-it\nsecond-line-of-it\n", "planted-value", "planted-value-and-more", "short"]
    text = b"second-line-of-it planted-value-and-more planted-value short"
    assert written(tmp_path, hidden, [text]) == b"[secret] [secret] [secret] short"


def test_redaction_cost_is_linear_in_secret_length(tmp_path):
    value = "x" * 65_535 + "y"
    log = Log(str(tmp_path / "log"), 1 << 20, [])
    log.mask_values([value], b"[secret]")
    log.feed(value.encode()[:60_000])
    log.feed(value.encode()[60_000:] + b" end", last=True)
    assert (tmp_path / "log").read_bytes() == b"[secret] end"
    assert os.path.getsize(tmp_path / "log") < 100  # noqa: PTH202
