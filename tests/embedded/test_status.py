"""Workspace counts in `status`, or why there are none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from portal.embedded import control
from portal.embedded.environment import Instance

Says = Callable[[str], str]


@pytest.fixture
def workspaces(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> Says:
    """The line when this Python code replaces the portal's command."""

    def line(code: str) -> str:
        def instead(_: Any, **options: Any) -> Any:
            return subprocess.run([sys.executable, "-I", "-S", "-c", code], **options)

        # Only in this module, not in the whole process.
        stand_in = SimpleNamespace(run=instead, TimeoutExpired=subprocess.TimeoutExpired)
        monkeypatch.setattr(control, "subprocess", stand_in)
        return control._workspaces(instance, {"PATH": os.environ["PATH"]})

    return line


@pytest.mark.parametrize(
    ("counts", "line"), [('{"running": 2, "queued": 1}', "2 running, 1 queued"), ("{}", "none")]
)
def test_workspace_counts(workspaces: Says, counts: str, line: str) -> None:
    assert workspaces(f"print('{counts}')") == line


@pytest.mark.parametrize("code", ["raise SystemExit('the database is gone')", "print('nonsense')"])
def test_failing_database_is_reported(workspaces: Says, code: str) -> None:
    assert workspaces(code) == "unknown (the database did not answer)"


def test_slow_count_is_reported_as_a_timeout(workspaces: Says, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "COUNT_LIMIT_S", 0.2)
    assert workspaces("import time; time.sleep(60)").startswith("not counted within 0.2 s")
