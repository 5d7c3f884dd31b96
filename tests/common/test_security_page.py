"""The pages about security name existing tests in each section."""

from __future__ import annotations

import re

import pytest

from tests.common.test_asvs import ROOT, TEST, names_in

PAGES = ("security", "threats")
NAME = re.compile(r"`((?:tests/[\w/]+/)?test_\w+\.py)(?:::(\w+))?`")
SECTIONS = dict(
    part.split("\n", 1)
    for page in PAGES
    for part in re.split(r"^## ", (ROOT / "docs" / f"{page}.md").read_text(), flags=re.MULTILINE)[1:]
)


@pytest.mark.parametrize("title", SECTIONS)
def test_each_section_names_its_tests(title: str) -> None:
    assert NAME.search(SECTIONS[title]) or re.search(r"`tests/\w+`", SECTIONS[title])


@pytest.mark.parametrize("title", SECTIONS)
def test_each_named_test_exists(title: str) -> None:
    """A name without a folder refers to the folder of the previous name."""
    folder = ""
    for name, function in NAME.findall(SECTIONS[title]):
        if "/" in name:
            folder = name.rpartition("/")[0]
        path = name if "/" in name else f"{folder}/{name}"
        assert (ROOT / path).is_file(), f"{path}, in “{title}”"
        assert not function or function in names_in(path), f"{path}::{function}"
    for path, function in TEST.findall(SECTIONS[title]):
        assert function in names_in(path), f"{path}::{function}"
