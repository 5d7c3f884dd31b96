"""The pages about OWASP ASVS: every requirement once, existing tests, correct sums."""

from __future__ import annotations

import ast
import csv
import re
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
GAPS = (ROOT / "docs" / "asvs.md").read_text()
EVIDENCE = (ROOT / "docs" / "asvs-evidence.md").read_text()
TEST = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")
NUMBER = r"V\d+\.\d+\.\d+"


def requirements() -> list[str]:
    """The numbers of the requirements of levels 1 and 2."""
    lines = (Path(__file__).parent / "data" / "asvs_5_0_0.csv").read_text().splitlines()
    return [row["id"] for row in csv.DictReader(line for line in lines if line[0] != "#")]


def rows(text: str) -> list[list[str]]:
    """The cells of each row about requirements; the first cell has their numbers."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if re.match(rf"\| {NUMBER}(?:, {NUMBER})* \|", line)
    ]


def section(title: str) -> str:
    """The part of the page of gaps below a heading."""
    [text] = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", GAPS, re.MULTILINE | re.DOTALL)
    return text


def states() -> dict[str, list[str]]:
    """The requirements by state, in the column order of the summary."""
    return {
        "holds": [number for row in rows(EVIDENCE) for number in row[0].split(", ")],
        "partly": [row[0] for row in rows(section("Requirements that hold partly"))],
        "does not hold": [row[0] for row in rows(section("Requirements that do not hold"))],
        "not applicable": re.findall(NUMBER, section("Requirements that do not apply")),
    }


@cache
def names_in(path: str) -> frozenset[str]:
    """Tests and classes of a file, and `Class::test` of what is in them."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, FUNCTIONS)}
    return frozenset(found)


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def test_each_requirement_is_listed_once():
    expected = requirements()
    assert len(expected) == 253
    stated = [each for state in states().values() for each in state]
    assert sorted(stated) == sorted(expected)


def test_evidence_names_a_test_or_a_review():
    for number, requirement, evidence in rows(EVIDENCE):
        assert requirement, number
        assert TEST.search(evidence) or re.search(r"\bread\b", evidence), f"{number} names no test"


def test_gaps_state_what_is_missing():
    for title in ("Requirements that do not hold", "Requirements that hold partly"):
        for number, requirement, holds, missing in rows(section(title)):
            assert requirement and holds and missing, number


def test_each_named_test_exists():
    named = TEST.findall(EVIDENCE + GAPS)
    assert len(named) > 100
    missing = [
        f"{path}::{name}" for path, name in named if not (ROOT / path).exists() or name not in names_in(path)
    ]
    assert not missing


def test_each_named_file_exists():
    named = r"`((?:portal|docs|static|templates|requirements)/[\w/.-]+\.\w+)`"
    for path in re.findall(named, EVIDENCE + GAPS):
        assert (ROOT / path).exists(), path


def test_sums_are_correct():
    counted = Counter((number.split(".")[0], state) for state, each in states().items() for number in each)
    summary = {
        cells[0].split(" ")[0]: [int(cell) for cell in cells[1:]]
        for line in section("Summary").splitlines()
        if re.match(r"\| (V\d+ [^|]*|all) \| \d", line)
        for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
    }
    total = summary.pop("all")
    assert set(summary) == {chapter for chapter, _state in counted}
    for chapter, numbers in summary.items():
        expected = [counted[chapter, state] for state in states()]
        assert numbers == [*expected, sum(expected)], chapter
    assert total == [sum(column) for column in zip(*summary.values(), strict=True)]
