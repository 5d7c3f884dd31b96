"""A running instance, a browser and curl."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import instance
from tests.instance import Api, Berth

FAILED = pytest.StashKey[bool]()
"""Key in a test's node: whether its body has failed, for messages of fixtures at their end."""
SHOTS = Path(__file__).resolve().parents[2] / "test-results" / "e2e"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report


@pytest.fixture(scope="session")
def berth(request: pytest.FixtureRequest) -> Berth:
    """The shared instance, with notebooks."""
    instance.need_notebook_environment()
    shared: Berth = request.getfixturevalue("shared_berth")
    return shared


@pytest.fixture
def ada(berth: Berth) -> Iterator[Api]:
    """Ada's API; her workspaces are deleted afterwards."""
    api = berth.api("ada")
    yield api
    for row in api.json("GET", "workspaces")["results"]:
        api.act(row["id"], "delete")
        api.wait(row["id"], "terminated")
    api.close()


@dataclass(frozen=True, slots=True)
class Answer:
    """A response to curl."""

    status: int
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Curl:
    """curl with a bearer token, as in a shell script."""

    def __init__(self, berth: Berth, token: str = "") -> None:
        self.berth = berth
        self._options = ["--header", f"Authorization: Bearer {token}"] if token else []

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        host: str = "",
        headers: dict[str, str] | None = None,
        form: dict[str, str] | None = None,
    ) -> Answer:
        """Send a request to the instance's port; `host` names the workspace, empty for the portal."""
        argv = ["curl", "--silent", "--show-error", "--max-time", "30", "--request", method, *self._options]
        argv += ["--write-out", "\n%{http_code}"]
        for name, value in {**({"Host": host} if host else {}), **(headers or {})}.items():
            argv += ["--header", f"{name}: {value}"]
        for name, value in (form or {}).items():
            argv += ["--form", f"{name}={value}"]
        if body is not None:
            argv += ["--header", "Content-Type: application/json", "--data-binary", json.dumps(body)]
        done = subprocess.run(
            [*argv, f"http://127.0.0.1:{self.berth.port}{path}"], capture_output=True, text=True, timeout=40
        )
        assert done.returncode == 0, done.stderr
        text, _, status = done.stdout.rpartition("\n")
        return Answer(int(status), text)


@pytest.fixture
def curl(berth: Berth, ada: Api) -> Curl:
    """curl with ada's token."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    return Curl(berth, ada.token)
