"""The index lists every page of docs/adr with its title and status."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "adr"
INDEX = FOLDER / "README.md"
PAGES = sorted(FOLDER.glob("[0-9]*.md"))
ROW = re.compile(r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
STATUS = re.compile(
    r"\*\*Status:\*\* (accepted|superseded by \[(\d{4})\]\((\2-[\w-]+\.md)\)), \d{4}-\d\d-\d\d(?:\.|$)",
    re.MULTILINE,
)


def test_folder_contains_only_decisions_and_their_index() -> None:
    assert set(FOLDER.iterdir()) == {INDEX, *PAGES}
    assert len({page.name[:4] for page in PAGES}) == len(PAGES)


def test_index_lists_every_decision_once_in_order() -> None:
    rows = ROW.findall(INDEX.read_text())
    assert [(number, name) for number, name, *_ in rows] == [(page.name[:4], page.name) for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name[:4])
def test_title_and_status_of_a_decision_match_the_index(page: Path) -> None:
    title, blank, status, *_ = page.read_text().split("\n")
    found = STATUS.match(status)
    assert found and not blank, (
        "The third line is its status: accepted, or superseded by a link; and the date."
    )
    if found[3]:
        assert (FOLDER / found[3]).is_file()
    row = next(row for row in ROW.findall(INDEX.read_text()) if row[0] == page.name[:4])
    assert (title, found[1]) == (f"# {row[0]} {row[2]}", row[4])


@pytest.mark.parametrize("page", [INDEX, *PAGES], ids=lambda page: page.name[:4])
def test_links_between_decisions_have_existing_targets(page: Path) -> None:
    """Link texts contain the number."""
    for text, name in re.findall(r"\[([^\]]+)\]\((\d{4}-[^)#]+\.md)", page.read_text()):
        assert (FOLDER / name).is_file(), name
        number = re.search(r"\d{4}", text)
        assert number is None or number[0] == name[:4], (text, name)


@pytest.mark.django_db
def test_index_is_the_page_of_the_decisions(as_user: Any, alice: Any) -> None:
    page = as_user(alice).get("/docs/adr/").content.decode()
    for path in PAGES:
        assert f'href="/docs/adr/{path.stem}/"' in page
    assert 'href="/docs/adr/0029-front-door/">0029</a>' in page
