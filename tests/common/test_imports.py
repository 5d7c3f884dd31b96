"""Imports inside functions have a reason, which a comment says (ADR 0010)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from provisioning.service.environ import ROOT

INDENTED = re.compile(r"^[ ]+(?:from \S+ )?import ", re.MULTILINE)
DIRECTIVE = re.compile(r"# (?:type: ignore\S*|noqa: \S+)")
LATE = ROOT / "provisioning/agent/program"
"""The agent imports late what the app does not wait for; its docstring says so once."""


def imports_inside(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of the first import of each group inside a function."""
    text = path.read_text(encoding="utf-8")
    if not INDENTED.search(text):
        return
    lines = text.splitlines()
    functions = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    found = {
        node.lineno
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    for number in sorted(found):
        if number - 1 not in found:
            yield number, f"{lines[number - 2]}\n{lines[number - 1]}"


def test_imports_inside_functions_have_a_comment() -> None:
    modules = [path for top in ("portal", "provisioning") for path in (ROOT / top).rglob("*.py")]
    assert len(modules) > 500
    silent = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in modules
        if LATE not in path.parents
        for number, lines in imports_inside(path)
        if "#" not in DIRECTIVE.sub("", lines)
    ]
    assert not silent, "move these imports to the top, or say why they are inside"
