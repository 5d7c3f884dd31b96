"""The page about OWASP ASVS is whole: each requirement once, each named test there, and its sums right."""

from __future__ import annotations

import ast
import csv
import re
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "asvs.md").read_text()
STATES = ("holds", "partly", "does not hold", "not applicable")
TEST = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")


def requirements() -> dict[str, str]:
    """The level of each requirement, by its number."""
    lines = (Path(__file__).parent / "data" / "asvs_5_0_0.csv").read_text().splitlines()
    return {row["id"]: row["level"] for row in csv.DictReader(line for line in lines if line[0] != "#")}


def rows() -> list[list[str]]:
    """The cells of each line that is about a requirement."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.splitlines()
        if re.match(r"\| V\d+\.\d+\.\d+ \|", line)
    ]


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


def test_each_requirement_is_there_once_with_its_level():
    wanted = requirements()
    assert len(wanted) == 253
    assert [(row[0], row[1]) for row in rows()] == list(wanted.items())


def test_each_line_is_whole():
    for number, _level, asks, state, where in rows():
        assert asks and state in STATES and where, number
        if state == "holds":
            assert TEST.search(where) or re.search(r"\bread\b", where), f"{number} names no test"
        if state == "partly":
            assert "Missing:" in where, f"{number} does not say what is missing"


def test_each_named_test_is_there():
    named = TEST.findall(PAGE)
    assert len(named) > 100
    gone = [
        f"{path}::{name}" for path, name in named if not (ROOT / path).exists() or name not in names_in(path)
    ]
    assert not gone


def test_each_named_file_is_there():
    for path in re.findall(r"`((?:portal|docs|static|templates|requirements)/[\w/.-]+\.\w+)`", PAGE):
        assert (ROOT / path).exists(), path


def test_the_sums_are_right():
    counted = Counter((row[0].split(".")[0], row[3]) for row in rows())
    summary = {
        cells[0].split(" ")[0]: [int(cell) for cell in cells[1:]]
        for line in PAGE.splitlines()
        if re.match(r"\| (V\d+ [^|]*|all) \| \d", line)
        for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
    }
    total = summary.pop("all")
    assert set(summary) == {chapter for chapter, _state in counted}
    for chapter, numbers in summary.items():
        expected = [counted[chapter, state] for state in STATES]
        assert numbers == [*expected, sum(expected)], chapter
    assert total == [sum(column) for column in zip(*summary.values(), strict=True)]
