"""A run of phases: skipped phases, output, and the exit code after a failure."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.suite import __main__ as suite
from tests.suite import bytecode
from tests.suite.phases import ROOT, Phase, full


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Phase]:
    """The phases of the next run, at commit abc; results go to a temporary folder."""
    phases: list[Phase] = []
    monkeypatch.setattr(suite, "RESULTS", tmp_path)
    monkeypatch.setattr(suite, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(suite, "commit", lambda: "abc")
    monkeypatch.setattr(suite.phases, "full", lambda: (tuple(phases),))
    monkeypatch.setattr(suite.bytecode, "stale", list)
    return phases


def test_phase_passed_at_this_commit_is_not_repeated(lanes, monkeypatch, capsys):
    lanes += [Phase("good", (), budget_s=1, module="this")]
    lanes += [Phase("bad", ("--no-such-option",), budget_s=1, module="compileall")]
    assert suite.main("full") == 1
    first = capsys.readouterr().out
    assert "good: ended, exit code 0" in first
    assert "bad: failed; its output:" in first and "unrecognized arguments" in first

    assert suite.main("full") == 1
    second = capsys.readouterr().out
    assert "good: has passed at this commit, not repeated" in second
    assert "bad: started" in second and "good: started" not in second

    monkeypatch.setattr(suite, "commit", lambda: "")
    suite.main("full")
    assert "good: started" in capsys.readouterr().out, "something is not committed"


def test_passed_phase_is_recorded_during_the_run(lanes, tmp_path):
    good = Phase("good", (), budget_s=1, module="this")
    suite.Run(tmp_path, (), at="abc").phase(good)
    assert suite.passed_at(tmp_path, good) == "abc"

    (tmp_path / "good.code").unlink()
    assert suite.passed_at(tmp_path, good) == "", "without its report it would count as failed"


def test_hanging_phase_is_killed(lanes, capsys):
    lanes += [Phase("endless", ("-s", "import time; time.sleep(60)", "pass"), 1, module="timeit", limit_s=1)]
    assert suite.main("full") == 1
    assert "endless: not done after 1 s" in capsys.readouterr().out


def test_pytest_accepts_the_options_of_rare_phases(tmp_path):
    """Both in one run, since starting pytest takes seconds."""
    few = [phase.arguments for lane in full() for phase in lane if phase.name in ("kernel", "compose")]
    assert len(few) == 2
    phase = Phase("few", (*few[0], *few[1]), budget_s=1)
    done = subprocess.run(
        [*phase.command(tmp_path, ()), "--collect-only"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_progress_dots_are_not_shown():
    assert suite.without_dots("..s.u..F [ 10%]\nE  assert 0\n....\n1 failed") == "E  assert 0\n1 failed"


def test_files_are_compiled_once(tmp_path, monkeypatch):
    """Files of a fresh clone are stale; after `compile_all` they are not until they change."""
    # Plugins take a second to import.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    folder = tmp_path / "tests"
    folder.mkdir()
    paths = [folder / f"test_{name}.py" for name in ("one", "two", "three")]
    for path in paths:
        path.write_text("def test_it():\n    assert True\n")
    assert bytecode.stale(tmp_path) == sorted(paths)
    bytecode.compile_all(bytecode.stale(tmp_path), folders=())
    assert bytecode.stale(tmp_path) == []
    os.utime(paths[0], (time.time() + 5, time.time() + 5))
    assert bytecode.stale(tmp_path) == [paths[0]]
