"""The page of GPU faults names its evidence, and every named test exists."""

from __future__ import annotations

import re

import pytest

from tests.common.test_asvs import ROOT, names_in

PAGE = (ROOT / "docs" / "gpu-faults.md").read_text()
NAME = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
LINES = [
    line
    for line in PAGE.partition("## Beside DCGM")[0].splitlines()
    if line.startswith("| ") and not line.startswith("| fault ")
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split("|")[1].strip()[:40])
def test_each_fault_names_its_evidence(line: str) -> None:
    shown = line.rstrip("| ").rpartition("|")[2]
    named = NAME.findall(shown)
    for path, function in named:
        assert (ROOT / path).is_file()
        assert not function or function in names_in(path), f"{path}::{function}"
    # Where there is no test, the page says so.
    assert named or "no fault was planted" in shown or "only on a healthy H100" in shown
