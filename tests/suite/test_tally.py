"""The final report of `make test`, which CI reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.suite import tally

REPORT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"><skipped message="no Chromium"/></testcase>{more}
</testsuite></testsuites>"""


@dataclass(frozen=True)
class Budget:
    name: str
    budget_s: int = 100


def report(folder: Path, *names: str, budget_s: int = 100) -> int:
    return tally.report(folder, [Budget(name, budget_s) for name in names], seconds=1.0)


def phase(folder: Path, name: str, code: str, more: str = "") -> None:
    (folder / f"{name}.xml").write_text(REPORT.format(more=more))
    (folder / f"{name}.code").write_text(code)


def test_phases_are_summed_with_skip_reasons(tmp_path, capsys):
    phase(tmp_path, "one", "0\n")
    phase(tmp_path, "two", "0\n")

    assert report(tmp_path, "one", "two") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "2 passed, 0 failed, 2 skipped"
    assert "  skipped 2 × no Chromium" in lines


@pytest.mark.parametrize("outcome", ["failure", "error"])
def test_failures_and_errors_are_failed(tmp_path, capsys, outcome):
    phase(tmp_path, "one", "1\n", f"<testcase name='c'><{outcome}/></testcase>")

    assert report(tmp_path, "one") == 1
    assert "1 passed, 1 failed, 1 skipped" in capsys.readouterr().out


@pytest.mark.parametrize("code", ["1", "2", "3", "124"])
def test_interrupted_phase_is_failed(tmp_path, capsys, code):
    phase(tmp_path, "one", code)

    assert report(tmp_path, "one") == 1
    assert "1 passed, 1 failed, 1 skipped" in capsys.readouterr().out


def test_phase_without_results_is_failed(tmp_path, capsys):
    phase(tmp_path, "one", "0")

    assert report(tmp_path, "one", "two") == 1
    assert "1 passed, 1 failed, 1 skipped" in capsys.readouterr().out


def test_no_passed_test_is_a_failure(tmp_path):
    (tmp_path / "one.code").write_text("5")

    assert report(tmp_path, "one") == 1


def timed(name: str, cpu_s: float, slow: str = "") -> str:
    mark = f"<property name='slow' value='{slow}'/>" if slow else ""
    cost = f"<property name='cpu_s' value='{cpu_s}'/>"
    properties = f"<properties>{mark}{cost}</properties>"
    return f"<testcase classname='tests.quota.test_x' name='{name}'>{properties}</testcase>"


def test_costs_are_summed_by_room_and_slow_tests_without_reason_named(tmp_path, capsys):
    phase(
        tmp_path,
        "one",
        "0",
        timed("dear", 4.5) + timed("known", 6.0, "starts a server") + timed("cheap", 0.5),
    )

    assert report(tmp_path, "one", budget_s=10) == 0
    printed = capsys.readouterr().out
    assert "by room:\n  quota 11" in printed
    assert printed.index("6.0 s  tests.quota.test_x::known") < printed.index(
        "4.5 s  tests.quota.test_x::dear"
    )
    assert [line for line in printed.splitlines() if line.startswith("  !")] == [
        "  ! 4.5 s, and no mark `slow` says why: tests.quota.test_x::dear",
        "  ! one used 11 s of processor time; its budget is 10 s",
    ]


def test_shared_fixtures_count_for_the_phase_only(tmp_path, capsys):
    started = timed("first", 0.5).replace(
        "</properties>", "<property name='shared berth' value='9.1'/></properties>"
    )
    phase(tmp_path, "one", "0", started)

    assert report(tmp_path, "one", budget_s=9) == 0
    printed = capsys.readouterr().out
    assert "by room:\n  quota 10" in printed
    assert "Of that, shared fixtures: berth 9" in printed
    assert "     0.5 s  tests.quota.test_x::first" in printed
    assert [line for line in printed.splitlines() if line.startswith("  !")] == [
        "  ! one used 10 s of processor time; its budget is 9 s"
    ]


def test_only_a_phase_without_failures_has_passed(tmp_path):
    phase(tmp_path, "good", "0")
    phase(tmp_path, "bad", "1", "<testcase name='c'><failure/></testcase>")
    phase(tmp_path, "cut", "124")

    phase(tmp_path, "skipped", "0")
    (tmp_path / "skipped.xml").write_text("<t><testcase name='a'><skipped message='no qemu'/></testcase></t>")

    names = ("good", "bad", "cut", "never", "skipped")
    assert [name for name in names if tally.passed(tmp_path, name)] == ["good"]
