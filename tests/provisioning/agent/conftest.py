from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_support import AGENT, AGENT_TOKEN, APP, APP_TOKEN, Portal, free_port

# The agent may run under an older Python of the workspace.
PYTHON = os.environ.get("BERTH_TEST_AGENT_PYTHON", sys.executable)


@pytest.fixture
def portal() -> Iterator[Any]:
    test_portal = Portal()
    yield test_portal
    test_portal.close()


@pytest.fixture
def configuration(tmp_path: Path, portal: Any) -> Callable[..., dict[str, Any]]:
    """Write an agent configuration; keyword arguments override values."""

    def make(mode: str = "good", **changes: Any) -> dict[str, Any]:
        config = {
            "argv": ["python3", "-c", APP, "{port}", mode, tmp_path.name],
            "env": {"PATH": os.environ["PATH"], "TOKEN": "{token}"},
            "ports": [free_port()],
            "home": str(tmp_path),
            "name": "mine",
            "app_token": APP_TOKEN,
            "agent_url": portal.url,
            "agent_token": AGENT_TOKEN,
            "workspace_id": "11111111-2222-3333-4444-555555555555",
            "generation": 4,
            "heartbeat_s": 0.1,
            "start_timeout_s": 20,
            "stop_timeout_s": 5,
            "state_path": str(tmp_path / "state.json"),
            "log_path": str(tmp_path / "app.log"),
            **changes,
        }
        (tmp_path / "agent.json").write_text(json.dumps(config))
        return config

    return make


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Start the agent with the last written configuration; stop it after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def run() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [PYTHON, "-I", "-S", str(AGENT), str(tmp_path / "agent.json")], stderr=subprocess.PIPE
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)


@pytest.fixture
def state(tmp_path: Path) -> Callable[[], dict[str, Any]]:
    return lambda: dict(json.loads((tmp_path / "state.json").read_text()))


@pytest.fixture
def app_pids(tmp_path: Path) -> Callable[[], list[int]]:
    """Return the processes whose last argument is the folder name of this test."""

    def find() -> list[int]:
        pids = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().rstrip(b"\0").split(b"\0")
            except OSError:
                continue
            if words[-1] == tmp_path.name.encode():
                pids.append(int(path.parent.name))
        return pids

    return find
