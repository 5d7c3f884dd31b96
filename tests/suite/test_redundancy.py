"""The choice of tests left to `make test-all`."""

from __future__ import annotations

from pathlib import Path

from tests.suite.redundancy import LIST, listed, redundant

ROOT = Path(__file__).parents[2]


def lines(*numbers: int) -> frozenset[tuple[str, int]]:
    return frozenset(("a.py", number) for number in numbers)


def test_slow_test_is_redundant_if_quicker_ones_cover_its_lines():
    costs = {"dear": 1.0, "quick": 0.01, "other": 0.01}
    run = {"dear": lines(1, 2), "quick": lines(1, 2), "other": lines(1, 2)}
    assert redundant(costs, run, from_s=0.5, times=2) == ["dear"]
    assert redundant(costs, {**run, "other": lines(1)}, from_s=0.5, times=2) == []
    assert redundant(costs, {**run, "other": lines(1)}, from_s=0.5, times=1) == ["dear"]


def test_slow_test_with_more_lines_per_second_is_kept():
    costs = {"dear": 1.0, "dearer": 3.0}
    assert redundant(costs, dict.fromkeys(costs, lines(1, 2)), from_s=0.5, times=1) == ["dearer"]
    assert redundant(costs, dict.fromkeys(costs, lines(1, 2)), from_s=0.5, times=2) == []


def test_slow_test_with_few_new_lines_is_redundant_if_a_limit_is_set():
    costs = {"dear": 1.0, "quick": 0.01}
    run = {"dear": lines(1, 2), "quick": lines(3)}
    assert redundant(costs, run, from_s=0.5, times=1, lines_per_s=3.0) == ["dear"]
    assert redundant(costs, run, from_s=0.5, times=1, lines_per_s=2.0) == []


def test_tests_without_line_data_are_never_skipped():
    costs = {"tests/quota/test_races.py::test_a": 1.0, "tests/security/test_b.py::test_b": 1.0, "quick": 0.0}
    assert redundant(costs, dict.fromkeys(costs, lines(1)), from_s=0.5, times=1) == []


def test_every_listed_function_exists():
    missing = []
    for name in sorted(listed(LIST.read_text())):
        file, _, rest = name.partition("::")
        path = ROOT / file
        if not path.exists() or f"def {rest.rpartition('::')[2]}(" not in path.read_text():
            missing.append(name)
    assert not missing, "remove these from tests/suite/redundant.txt"
