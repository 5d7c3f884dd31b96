"""Texts for people avoid phrases that are hard to read: rewrite the sentence, not only the word.

Docstrings are checked where they are shown: in the OpenAPI file and in the generated pages.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PHRASES = (
    *("told", "tells of", "anew", "whoever", "nobody's", "of then", "is let", "are none", "stands in"),
    *("brought before", "as many as there may be"),
)
_PATTERNS = (phrase.replace("'", "['’]").replace(" ", r"\s+") for phrase in PHRASES)
HARD = re.compile(rf"\b(?:{'|'.join(_PATTERNS)})\b", re.IGNORECASE)
FILES = [
    *ROOT.glob("*.md"),
    *(path for path in (ROOT / "docs").rglob("*.md") if not path.is_symlink()),
    *(ROOT / "deploy").rglob("*.example"),
    *(ROOT / name for name in ("Makefile", "deploy.env.example", "packages/berth-cli/README.md")),
]
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK_TARGET = re.compile(r"\]\([^)]*\)")
TEMPLATE_COMMENT = re.compile(r"{%\s*comment.*?endcomment\s*%}|{#.*?#}", re.DOTALL)
TEMPLATE_TAG = re.compile(r"{[%{].*?[%}]}", re.DOTALL)
TRANSLATED = re.compile(r"""(?:\btranslate\s+|\b_\()(?:"([^"]*)"|'([^']*)')""")


def sentences_of_code(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each literal with more than one word. Docstrings are left out."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in docstrings:
            continue
        if isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value.replace("\n", " ")


def text_of_template(source: str) -> str:
    """Return what a template shows, on the same lines: no comments, and of tags only what is translated."""
    source = TEMPLATE_COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), source)
    return TEMPLATE_TAG.sub(_translated, source)


def _translated(tag: re.Match[str]) -> str:
    texts = " ".join(double or single for double, single in TRANSLATED.findall(tag[0]))
    return texts.replace("\n", " ") + "\n" * tag[0].count("\n")


def hits_in(path: Path, text: str, first_line: int = 1) -> Iterator[str]:
    """Yield place and phrase of each hit."""
    for match in HARD.finditer(text):
        line = first_line + text.count("\n", 0, match.start())
        yield f"{path.relative_to(ROOT)}:{line}: {match[0]}"


def test_texts_in_code_are_plain() -> None:
    files = [path for folder in ("portal", "provisioning") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 500
    assert [
        hit
        for path in sorted(files)
        for line, text in sentences_of_code(path.read_text())
        for hit in hits_in(path, text, line)
    ] == []


def test_templates_are_plain() -> None:
    files = [path for path in (ROOT / "templates").rglob("*") if path.suffix in {".html", ".txt", ".xml"}]
    assert len(files) > 100
    assert [hit for path in sorted(files) for hit in hits_in(path, text_of_template(path.read_text()))] == []


def test_rest_descriptions_are_plain() -> None:
    path = ROOT / "docs" / "openapi.yaml"
    assert list(hits_in(path, path.read_text())) == []


@pytest.mark.parametrize("path", sorted(FILES, key=str), ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_are_plain(path: Path) -> None:
    text = CODE.sub(lambda code: "\n" * code[0].count("\n"), path.read_text())
    assert list(hits_in(path, LINK_TARGET.sub("]", text))) == []


def test_check_finds_phrases_in_code_and_templates() -> None:
    code = (
        'def ask():\n    """Whoever asks."""\n'
        '    return _("Read it "\n        "anew.") + f"{name} anew" + urls["told"]\n'
    )
    hard = [text for _line, text in sentences_of_code(code) if HARD.search(text)]
    assert hard == ["Read it anew.", " anew"]
    template = (
        "{% comment %}Told.{% endcomment %}{% url 'begin-anew' %}{# told #}\n"
        '<p>{% translate "You are told." %} {% badge _("are\nnone") %}</p>\n<p>Nobody’s</p>'
    )
    hits = hits_in(ROOT / "x", text_of_template(template))
    assert list(hits) == ["x:2: told", "x:2: are none", "x:4: Nobody’s"]
