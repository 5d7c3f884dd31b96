"""References in README and docs/ exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted({path.resolve() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))})
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    words = (re.sub(r"[`*]", "", heading).lower() for heading in HEADING.findall(document.read_text()))
    return {re.sub(r"[^\w\- ]", "", word).replace(" ", "-") for word in words}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_have_existing_targets(document):
    broken = []
    for link in LINK.findall(CODE.sub("", document.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_each_family_of_rest_is_described():
    text = (ROOT / "docs" / "api.md").read_text()
    found = re.findall(r"^  /api/v1/([a-z-]+)", (ROOT / "docs" / "openapi.yaml").read_text(), re.MULTILINE)
    assert len(set(found)) > 30
    assert {each for each in found if f"`{each}" not in text} == set()


def test_each_room_is_documented():
    layers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0][
        "layers"
    ]
    rooms = re.findall(r"portal\.(\w+)", " ".join(layers))
    rooms = [room for room in rooms if (ROOT / "portal" / room).is_dir()]
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text()
        assert {room for room in rooms if not re.search(rf"\b{room}\b", text)} == set(), name
