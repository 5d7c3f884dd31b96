"""Full-text search over the sections of all documents (Okapi BM25). Each process builds its index once."""

from __future__ import annotations

import math
import re
import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from django.utils.safestring import SafeString

from portal.web.documents import library, navigation, words
from portal.web.documents.rendering import address_of, highlight

MAX_QUERY_CHARACTERS = 200
MAX_FOUND = 12
SPLIT_BY_ROW = frozenset({"settings"})
"""Documents with long tables, of which each row is a separate result."""
EXCERPT_CHARACTERS = 220
EXCERPTED_CHARACTERS = 8000
"""Length of the part of a section's text from which the excerpt is taken."""
HEADING_COUNTS = 5.0
ABOVE_COUNTS = 1.5
"""Weights of words in a section's heading and in its parent headings, relative to its text."""
_K1, _B = 1.2, 0.6
_MIN_PREFIX = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """A section in the index."""

    name: str
    section: library.Section
    text: str
    counts: dict[str, float]
    length: float
    weight: float


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A search result. `path` are the titles of the document and its parent sections."""

    name: str
    anchor: str
    title: str
    path: tuple[str, ...]
    url: str
    excerpt: SafeString
    score: float


class Index:
    """All sections, with an inverted index of stems."""

    def __init__(self, documents: dict[str, library.Document]) -> None:
        self.entries = [
            _entry(name, section)
            for name, document in documents.items()
            for section_ in library.sections(document.text)
            for section in (_rows(section_) if name in SPLIT_BY_ROW else (section_,))
        ]
        self._average = sum(item.length for item in self.entries) / max(1, len(self.entries))
        self._with: dict[str, list[int]] = defaultdict(list)
        for at, entry in enumerate(self.entries):
            for term in entry.counts:
                self._with[term].append(at)
        self._terms = sorted(self._with)

    def search(self, query: str, limit: int = MAX_FOUND) -> list[SearchResult]:
        """Return the best matching sections, best first."""
        query = query[:MAX_QUERY_CHARACTERS]
        query_terms = self._complete_prefix(words.query_stems(query))
        scores: dict[int, float] = defaultdict(float)
        covered: dict[int, float] = defaultdict(float)
        total_weight = sum(weight for _, weight in query_terms if weight >= 1) or 1.0
        for term, weight in query_terms:
            positions = self._with.get(term, ())
            rarity = math.log(1 + (len(self.entries) - len(positions) + 0.5) / (len(positions) + 0.5))
            for at in positions:
                entry = self.entries[at]
                count = entry.counts[term]
                longer = _K1 * (1 - _B + _B * entry.length / self._average)
                scores[at] += weight * rarity * count * (_K1 + 1) / (count + longer)
                covered[at] += weight
        for at in scores:
            scores[at] *= self.entries[at].weight * (0.3 + 0.7 * min(1.0, covered[at] / total_weight))
        best = sorted(scores, key=lambda at: (-scores[at], at))[:limit]
        stems = {term for term, _ in query_terms}
        return [self._result(self.entries[at], stems, scores[at]) for at in best]

    def _complete_prefix(self, query_terms: list[tuple[str, float]]) -> list[tuple[str, float]]:
        """Complete the last word as a prefix if it is unknown, for results while typing."""
        if not query_terms or query_terms[-1][0] in self._with or len(query_terms[-1][0]) < _MIN_PREFIX:
            return query_terms
        begun = query_terms[-1][0]
        at = bisect_left(self._terms, begun)
        longer = [term for term in self._terms[at : at + 8] if term.startswith(begun)]
        return [*query_terms[:-1], *((term, 0.8) for term in longer)]

    def _result(self, entry: Entry, stems: set[str], score: float) -> SearchResult:
        heading = entry.section.heading
        anchor = heading.anchor if heading.level > 1 else ""
        return SearchResult(
            entry.name,
            anchor,
            heading.title,
            entry.section.above,
            address_of(entry.name) + (f"#{anchor}" if anchor else ""),
            excerpt(entry.text, stems),
            score,
        )


def excerpt(text: str, stems: set[str]) -> SafeString:
    """Return the part of the text with the most stems, with highlighted matches."""
    hits = [
        (match.start(), match.end())
        for match in words.WORD.finditer(text[:EXCERPTED_CHARACTERS])
        if not stems.isdisjoint(words.stems_of(match[0].lower()))
    ]
    start = max(0, hits[_densest_hit(hits)][0] - 40) if hits else 0
    end = min(len(text), start + EXCERPT_CHARACTERS)
    if start:
        start = text.find(" ", start) + 1 or start
    if end < len(text):
        end = text.rfind(" ", start, end) if " " in text[start:end] else end
    shown = highlight(text[start:end], [(a - start, b - start) for a, b in hits if a >= start and b <= end])
    return SafeString(("… " if start else "") + shown + (" …" if end < len(text) else ""))


def _densest_hit(hits: list[tuple[int, int]]) -> int:
    """Return the index of the hit where the densest part begins."""
    best, most, last = 0, 0, 0
    for first, (begin, _) in enumerate(hits):
        while last < len(hits) and hits[last][1] <= begin + EXCERPT_CHARACTERS - 40:
            last += 1
        if last - first > most:
            best, most = first, last - first
    return best


def _entry(name: str, section: library.Section) -> Entry:
    _, group = navigation.place_of(name)
    text = _readable(section.lines)
    counts: Counter[str] = Counter(words.terms(text))
    length = float(sum(counts.values()))
    weighed: dict[str, float] = dict(counts)
    for title, counted in ((section.heading.title, HEADING_COUNTS), (" ".join(section.above), ABOVE_COUNTS)):
        for term in words.terms(title):
            weighed[term] = weighed.get(term, 0.0) + counted
    return Entry(name, section, text, weighed, length, group.weight)


def _rows(section: library.Section) -> Iterator[library.Section]:
    """Yield each table row as a section; the first cell is its title."""
    rows = [line for line in section.lines if line.startswith("|")]
    yield library.Section(
        section.heading, section.above, tuple(line for line in section.lines if line not in rows)
    )
    for row in rows[2:]:
        title = library.strip_markup(row.strip("| ").split(" | ")[0])
        heading = library.Heading(section.heading.level, title, section.heading.anchor)
        yield library.Section(heading, (*section.above, section.heading.title), (row,))


def _readable(lines: tuple[str, ...]) -> str:
    """Return Markdown lines as one text, with table cells separated by dots."""
    text_lines = [line.strip() for line in lines if not re.fullmatch(r"[|:\- ]*", line.strip())]
    cells = (_joined_cells(line) if line.startswith("|") else line for line in text_lines)
    return " ".join(library.strip_markup(re.sub(r"^(?:[-*>]|\d+\.) +", "", line)) for line in cells)


def _joined_cells(row: str) -> str:
    return " · ".join(cell.strip() for cell in row.strip("| ").split("|"))


_lock = threading.Lock()
_index: Index | None = None


def index() -> Index:
    """Return the index of all documents. Built on first use."""
    global _index
    with _lock:
        if _index is None:
            _index = Index(dict(library.documents()))
        return _index
