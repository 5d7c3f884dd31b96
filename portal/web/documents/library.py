"""The documentation files that may be shown, and their contents."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from portal.web.documents import navigation
from provisioning.service.environ import FILES

DOCS = FILES / "docs"
DECISIONS = "adr/"
DECISIONS_INDEX = "adr"
"""Name of the index of decisions, which is the README of its folder."""
CHANGELOG = "changelog"
"""Name of the changelog, a symbolic link in `docs/`. Links in it are relative to the linked file."""
CONTENT_TYPES = {
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".yaml": "text/plain; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}
"""Content types of files that documents show or link to."""
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r"(#{1,6}) ++(.*[^ #\n])")


@dataclass(frozen=True, slots=True)
class Document:
    """One Markdown file. `name` is its path below `/docs/` without `.md`."""

    name: str
    path: Path

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def title(self) -> str:
        return _title(self.path)

    def target(self, link: str) -> str:
        """Return the target of a link as a path below `docs/`."""
        folder = {CHANGELOG: "..", DECISIONS_INDEX: "adr"}.get(self.name, posixpath.dirname(self.name))
        path = posixpath.normpath(posixpath.join(folder, link)).removeprefix("../docs/")
        return path.removesuffix("/README.md")


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading with its anchor, in GitHub's format."""

    level: int
    title: str
    anchor: str


@dataclass(frozen=True, slots=True)
class Section:
    """The text below one heading, up to the next one. `above` are its parent headings."""

    heading: Heading
    above: tuple[str, ...]
    lines: tuple[str, ...]


@lru_cache(maxsize=1)
def documents() -> Mapping[str, Document]:
    """Return all documents by name: those of the navigation, the decisions, and the decisions' index."""
    by_name = {name: Document(name, DOCS / f"{name}.md") for name in navigation.ordered()}
    by_name[DECISIONS_INDEX] = Document(DECISIONS_INDEX, DOCS / DECISIONS / "README.md")
    for path in sorted((DOCS / DECISIONS).glob("[0-9]*.md")):
        name = f"{DECISIONS}{path.stem}"
        by_name[name] = Document(name, path)
    return {name: document for name, document in by_name.items() if document.path.is_file()}


@lru_cache(maxsize=1)
def files() -> Mapping[str, Path]:
    """Return images and other files that may be fetched, by path in `docs/`."""
    paths = (path for path in sorted(DOCS.rglob("*")) if path.suffix in CONTENT_TYPES and path.is_file())
    return {path.relative_to(DOCS).as_posix(): path for path in paths}


def strip_markup(markdown: str) -> str:
    """Return a line of Markdown without markup; links become their texts."""
    text = re.sub(r"!?\[([^\[\]]*)\]\([^()\s]*\)", r"\1", markdown)
    return re.sub(r"\*\*|`|(?<!\w)[*_](?=\w)|(?<=\w)[*_](?!\w)", "", text)


class Anchors:
    """Generates anchors for a document's headings. Repeated titles get `-1`, `-2`, …."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def generate(self, heading: str) -> str:
        base = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = self._seen.get(base, -1) + 1
        self._seen[base] = count
        return f"{base}-{count}" if count else base


def sections(text: str) -> list[Section]:
    """Return the sections of a document. Fenced code contains no headings."""
    result: list[Section] = []
    anchors, fence = Anchors(), ""
    path: list[Heading] = []
    lines: list[str] = []

    def end() -> None:
        if path:
            above = tuple(step.title for step in path[:-1])
            result.append(Section(path[-1], above, tuple(lines)))
        lines.clear()

    for line in text.splitlines():
        if mark := _FENCE.match(line):
            if not fence:
                fence = mark[1]
            elif line.strip() == mark[1] and mark[1].startswith(fence):
                fence = ""
            continue
        if not fence and (heading := _HEADING.match(line)):
            end()
            level, title = len(heading[1]), strip_markup(heading[2])
            path = [step for step in path if step.level < level]
            path.append(Heading(level, title, anchors.generate(title)))
            continue
        lines.append(line)
    end()
    return result


@lru_cache(maxsize=512)
def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if heading := _HEADING.match(line):
                return strip_markup(heading[2])
    return path.stem
