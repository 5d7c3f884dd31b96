"""What `make test` says at its end, which CI reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import tally

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
