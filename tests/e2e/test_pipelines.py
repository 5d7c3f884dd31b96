"""The examples of pipelines, step by step, against a real instance.

The only changes are the variables for flavor and check, as this machine has no GPU.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from portal.cli import inside
from portal.cli.loopback import Connection
from provisioning.service.environ import ROOT
from tests.e2e import pipelines
from tests.e2e.kernels import channels, execute
from tests.e2e.pipelines import Job, Outcome
from tests.e2e.test_approval import CLEAN_UP, SET_UP
from tests.instance import Api, Berth, eventually
from tests.suite.choice import quick_of

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("e2e")]
EXAMPLES = ROOT / "examples" / "ci"
JOBS = {
    "gitlab": lambda: pipelines.gitlab(EXAMPLES / "gitlab-ci.yml"),
    "github": lambda: pipelines.github(EXAMPLES / "github-actions.yml"),
}


@pytest.fixture
def pipeline(berth: Berth, tmp_path: Path) -> Callable[..., Outcome]:
    shutil.copy(EXAMPLES / "train.ipynb", tmp_path)

    def run(
        name: str,
        *,
        cancel: Callable[[], Any] | None = None,
        meanwhile: Callable[[Callable[[], str]], Any] | None = None,
        **given: str,
    ) -> Outcome:
        job: Job = JOBS[name]()
        variables = {
            "BERTH_URL": berth.url,
            "BERTH_TOKEN": berth.tokens["ada"],
            "HOME": str(tmp_path),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "FLAVOR": "cpu-small",
            "GPU_CHECK": "python3 -c print('checked')",
            "CI": "true",
        }
        return pipelines.run(job, tmp_path, {**variables, **given}, cancel=cancel, meanwhile=meanwhile)

    return run


@pytest.fixture
def one_core(berth: Berth, ada: Api) -> Iterator[None]:
    """ada's team may use one core; ben, a member, decides requests."""
    berth.run("manage.py", "shell", "-c", SET_UP)
    yield
    berth.run("manage.py", "shell", "-c", CLEAN_UP)


def berth_says(berth: Berth, user: str, *command: str) -> str:
    """The output of a command that a user runs beside the pipeline."""
    done = subprocess.run(
        [Path(sys.executable).parent / "berth", *command],
        env={**os.environ, "BERTH_URL": berth.url, "BERTH_TOKEN": berth.tokens[user]},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done
    return done.stdout


def nothing_is_left(ada: Api, berth: Berth) -> bool:
    left = [row for row in ada.json("GET", "workspaces")["results"] if row["name"].startswith("ci-")]
    return not left and not list((berth.home / "homes" / "lab" / "ada").glob("ci-*.ipynb"))


@pytest.mark.parametrize("name", quick_of(JOBS, ("github",), "the same by another runner"))
def test_pipeline_runs_from_start_to_result(
    pipeline: Callable[..., Outcome], ada: Api, berth: Berth, tmp_path: Path, name: str
) -> None:
    outcome = pipeline(name)
    assert outcome.passed, outcome
    assert "checked" in outcome.output
    (cell,) = json.loads((tmp_path / "result.ipynb").read_text())["cells"]
    assert cell["outputs"][0]["text"] == ["weight 3.000\n"]
    assert nothing_is_left(ada, berth)


def test_failed_check_ends_the_pipeline(
    pipeline: Callable[..., Outcome], ada: Api, berth: Berth, tmp_path: Path
) -> None:
    outcome = pipeline("gitlab", GPU_CHECK="nvidia-smi-that-is-not-here -L")
    assert outcome.codes == [127, 0], outcome
    assert "command not found" in outcome.output
    assert not (tmp_path / "result.ipynb").exists()
    assert nothing_is_left(ada, berth)


def test_pipeline_cancelled_while_starting_leaves_nothing(
    pipeline: Callable[..., Outcome], ada: Api, berth: Berth
) -> None:
    def begun() -> None:
        eventually(lambda: ada.json("GET", "workspaces")["results"] or None, limit_s=120, what="it is made")

    outcome = pipeline("github", cancel=begun)
    assert not outcome.passed, outcome
    assert nothing_is_left(ada, berth)


@pytest.mark.thorough("`make test` cancels one that starts")
def test_pipeline_cancelled_while_running_leaves_nothing(
    pipeline: Callable[..., Outcome], ada: Api, berth: Berth, tmp_path: Path
) -> None:
    train = tmp_path / "train.ipynb"
    begun = berth.home / "homes" / "lab" / "ada" / "begun.txt"
    begun.unlink(missing_ok=True)
    long = "open('begun.txt', 'w').close(); import time; time.sleep(600) #"
    train.write_text(train.read_text().replace("# Stands", long))
    outcome = pipeline("gitlab", cancel=lambda: eventually(begun.exists, limit_s=180, what="it works"))
    assert outcome.codes[0] != 0 and outcome.codes[1] == 0, outcome
    assert nothing_is_left(ada, berth)


@pytest.mark.thorough("half a minute; tests/cli has it in process")
def test_approval_requirement_ends_at_once_and_passes_after_approval(
    pipeline: Callable[..., Outcome], ada: Api, berth: Berth, one_core: None
) -> None:
    refused = pipeline("gitlab", FLAVOR="cpu-large")
    assert refused.codes == [7, 0], refused
    assert nothing_is_left(ada, berth)

    asked = ["requests", "ask", "--resource", "cpu_milli", "--amount", "1", "--note", "Training"]
    request = json.loads(berth_says(berth, "ada", *asked, "--json"))
    berth_says(berth, "ben", "requests", "approve", request["id"])
    assert pipeline("gitlab", FLAVOR="cpu-large").passed
    assert nothing_is_left(ada, berth)


@pytest.mark.thorough("half a minute; tests/cli has it in process")
def test_queued_start_passes_when_capacity_is_free(
    pipeline: Callable[..., Outcome], ada: Api, berth: Berth, one_core: None
) -> None:
    held = ada.create("files", "cpu-small", name="holds-the-core")
    ada.wait(held["id"], "running")

    def makes_room(said: Callable[[], str]) -> None:
        """Free capacity once the pipeline reports that it waits."""
        eventually(lambda: "pending, position 1" in said(), limit_s=120, what="it waits")
        berth_says(berth, "ada", "rm", held["id"], "--yes")

    outcome = pipeline("github", meanwhile=makes_room)
    assert outcome.passed, outcome
    assert nothing_is_left(ada, berth)


SERVE = """
import http.server, threading
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "11")
        self.end_headers()
        self.wfile.write(b"from inside")
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port)
"""


def test_port_is_forwarded_for_its_user_until_the_token_is_revoked(
    berth: Berth, ada: Api, tmp_path: Path
) -> None:
    made = ada.create("jupyterlab", "cpu-small", name="forwards")
    ada.wait(made["id"], "running")
    origin = berth.origin(made["id"])
    with Connection(origin, ada.token) as connection:
        asked = inside.request(connection, "POST", "/api/kernels", "it", json={"name": "python3"})
    with channels(origin, ada.token, asked.json()["id"]) as channel:
        port = int(execute(channel, SERVE))

    def status(token: str, **headers: str) -> int:
        with Connection(origin, token) as connection:
            target = connection.websocket(f"/berth/forward/{port}")
        plug = socket.create_connection((target.host, target.port), timeout=20)
        try:
            with connect(
                target.uri, sock=plug, additional_headers={**target.headers, **headers}, open_timeout=30
            ):
                return 101
        except InvalidStatus as refused:
            return refused.response.status_code

    assert status(ada.token) == 101
    narrow = ada.json("POST", "tokens", {"name": "narrow", "scopes": ["workspaces:read"]})["secret"]
    for token in ("berth_" + "x" * 43, berth.tokens["ben"], narrow):
        assert status(token) in {401, 403}
    # A page, also on the workspace's origin.
    assert {status(ada.token, Origin=each) for each in (origin, "http://evil.example")} == {403}

    short = ada.json("POST", "tokens", {"name": "short", "scopes": ["workspaces:read", "workspaces:connect"]})
    process = subprocess.Popen(
        [Path(sys.executable).parent / "berth", "port-forward", made["id"], f"0:{port}", "--json"],
        env={**os.environ, "BERTH_URL": berth.url, "BERTH_TOKEN": short["secret"], "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        local = json.loads(process.stdout.readline())["local_port"]
        line = http.client.HTTPConnection("127.0.0.1", local, timeout=30)
        line.request("GET", "/")
        assert line.getresponse().read() == b"from inside"
        assert ada.ask("POST", f"tokens/{short['id']}/revoke").status_code == 204
        # Open connections are closed, and the command ends.
        assert line.sock is not None and line.sock.recv(1) == b""
        assert process.wait(60) == 3
        line.close()
    finally:
        process.kill()
        process.communicate()
    ada.act(made["id"], "delete")
    ada.wait(made["id"], "terminated")
