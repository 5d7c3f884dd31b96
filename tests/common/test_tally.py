"""What `make test` says at its end, which CI reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tally

ROOT = Path(__file__).parents[2]

REPORT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"><skipped message="no Chromium"/></testcase>{more}
</testsuite></testsuites>"""


def phase(folder: Path, name: str, code: str, more: str = "") -> None:
    (folder / f"{name}.xml").write_text(REPORT.format(more=more))
    (folder / f"{name}.code").write_text(code)


def test_phases_are_summed_and_skips_have_their_reasons(tmp_path, capsys):
    phase(tmp_path, "one", "0\n")
    phase(tmp_path, "two", "0\n")

    assert tally.main(str(tmp_path), "one", "two") == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "2 passed, 0 failed, 2 skipped",
        "  skipped 2 × no Chromium",
    ]


@pytest.mark.parametrize("outcome", ["failure", "error"])
def test_failures_and_errors_are_failed(tmp_path, capsys, outcome):
    phase(tmp_path, "one", "1\n", f"<testcase name='c'><{outcome}/></testcase>")

    assert tally.main(str(tmp_path), "one") == 1
    assert "1 passed, 1 failed, 1 skipped" in capsys.readouterr().out


@pytest.mark.parametrize("code", ["1", "2", "3", "124"])
def test_a_phase_that_was_cut_short_is_failed(tmp_path, capsys, code):
    phase(tmp_path, "one", code)

    assert tally.main(str(tmp_path), "one") == 1
    assert "1 passed, 1 failed, 1 skipped" in capsys.readouterr().out


def test_a_phase_that_never_began_is_failed(tmp_path, capsys):
    phase(tmp_path, "one", "0")

    assert tally.main(str(tmp_path), "one", "two") == 1
    assert "1 passed, 1 failed, 1 skipped" in capsys.readouterr().out


def test_that_nothing_passed_is_no_success(tmp_path):
    (tmp_path / "one.code").write_text("5")

    assert tally.main(str(tmp_path), "one") == 1


def failing(*names: str) -> str:
    return "".join(f"<testcase name='{name}'><failure/></testcase>" for name in names)


def again(folder: Path, name: str, *, passed: tuple[str, ...], failed: tuple[str, ...] = ()) -> None:
    good = "".join(f"<testcase name='{each}'/>" for each in passed)
    (folder / f"{name}-again.xml").write_text(
        f"<testsuites><testsuite>{good}{failing(*failed)}</testsuite></testsuites>"
    )


def test_what_passes_alone_is_failed_and_named(tmp_path, capsys):
    phase(tmp_path, "one", "1", failing("c", "d"))
    again(tmp_path, "one", passed=("c",), failed=("d",))

    assert tally.main(str(tmp_path), "one") == 1
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "1 passed, 2 failed, 1 skipped",
        "  failed beside others, passes alone: c",
    ]


def test_the_few_that_failed_are_run_again_and_no_others(tmp_path, capsys):
    """A test that fails at its first run only, as pytest's own processes see it."""
    (tmp_path / "test_some.py").write_text(
        """
from pathlib import Path

def test_a():
    Path("a").write_text(Path("a").read_text() + "x" if Path("a").exists() else "x")

def test_b():
    seen = Path("b").exists()
    Path("b").touch()
    assert seen
"""
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    first = ["pytest", "-q", "--junitxml=one.xml", "-o", "cache_dir=one.cache"]
    done = subprocess.run([sys.executable, "-m", *first], cwd=tmp_path, env=environment, capture_output=True)
    (tmp_path / "one.code").write_text(str(done.returncode))
    command = [sys.executable, "-m", "tests.again", str(tmp_path), "one"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)

    assert (tmp_path / "a").read_text() == "x"
    assert tally.main(str(tmp_path), "one") == 1
    assert "failed beside others, passes alone: test_some::test_b" in capsys.readouterr().out
