"""Notices can be translated: their titles and texts come from gettext, not from strings in the call."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CALLS = {"notify": (2, 3), "Note": (1, 2)}
"""Positions of title and body in the calls that write notices."""
NAMES = ("title", "body")


def _texts(call: ast.Call, positions: tuple[int, int]) -> Iterator[ast.expr]:
    yield from (call.args[at] for at in positions if at < len(call.args))
    yield from (keyword.value for keyword in call.keywords if keyword.arg in NAMES)


def _is_untranslated(node: ast.expr) -> bool:
    """Return whether the expression is a text with letters that no gettext function has seen."""
    match node:
        case ast.Constant(value=str(text)):
            return any(letter.isalpha() for letter in text)
        case ast.JoinedStr():
            return any(_is_untranslated(part) for part in node.values)
        case ast.BinOp():
            return _is_untranslated(node.left)
        case ast.IfExp():
            return _is_untranslated(node.body) or _is_untranslated(node.orelse)
    return False


def test_titles_and_texts_of_notices_come_from_gettext() -> None:
    calls, untranslated = 0, []
    for path in sorted((ROOT / "portal").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name not in CALLS:
                continue
            calls += 1
            for text in _texts(node, CALLS[name]):
                if _is_untranslated(text):
                    untranslated.append(f"{path.relative_to(ROOT)}:{text.lineno} {ast.unparse(text)}")
    assert calls > 40
    assert untranslated == []
