"""Source edits that seed a fault: each changes one place."""

from __future__ import annotations

import ast
import dataclasses
import re
from typing import Any

OPERATORS = {
    "<": "<=",
    ">": ">=",
    "==": "!=",
    "in": "not in",
    "is": "is not",
    "and": "or",
    "+": "-",
    "*": "//",
}
OPERATORS |= {after: before for before, after in OPERATORS.items()}
OPERATOR = re.compile(rb"not\s+in|is\s+not|and|or|in|is|<=|>=|==|!=|//|[-+*<>]")
LOGS = {"log", "logger", "logging", "_log", "structlog"}
ORDER_IS_NO_MATTER = {"min", "max", "isinstance", "issubclass", "cast", "getattr", "hasattr"}
"""Functions for which swapping arguments changes nothing, or makes any use fail."""


@dataclasses.dataclass(frozen=True, slots=True)
class Edit:
    """The bytes from `start` to `end` become `after`. Lines count from 1, both included."""

    kind: str
    function: str
    line: int
    end_line: int
    start: int
    end: int
    before: str
    after: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]


class Finder(ast.NodeVisitor):
    """Finds edits in function bodies.

    Import-time code belongs to no specific test. Python 3.11 gives no positions within f-strings, so these
    are left out.
    """

    def __init__(self, source: bytes) -> None:
        self.source, self.found = source, list[Edit]()
        self._starts = [0, *(match.end() for match in re.finditer(rb"\n", source))]
        self._scope: list[str] = []
        self._functions = 0

    def span(self, first: Any, last: Any = None) -> tuple[int, int]:
        last = last or first
        start = self._starts[first.lineno - 1] + first.col_offset
        return start, self._starts[last.end_lineno - 1] + last.end_col_offset

    def text(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.source[start:end].decode()

    def add(self, kind: str, start: int, end: int, after: str) -> None:
        line, end_line = (self.source.count(b"\n", 0, place) + 1 for place in (start, end))
        before = self.source[start:end].decode()
        if self._functions and before != after:
            self.found.append(Edit(kind, ".".join(self._scope), line, end_line, start, end, before, after))

    def operator(self, kind: str, left: ast.AST, right: ast.AST) -> None:
        """Replace the operator between two operands."""
        start, end = self.span(left)[1], self.span(right)[0]
        match = OPERATOR.search(between := self.source[start:end])
        name = " ".join(match[0].decode().split()) if match else ""
        if match and name in OPERATORS and b"#" not in between:
            self.add(kind, start + match.start(), start + match.end(), OPERATORS[name])

    def number(self, *nodes: ast.AST) -> None:
        for node in nodes:
            if isinstance(node, ast.Constant) and type(node.value) is int:
                self.add("number", *self.span(node), str(node.value + 1))

    def _visit_all(self, *nodes: ast.AST | None) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._visit_all(*node.args.defaults, *node.args.kw_defaults)
        self._scope.append(node.name)
        self._functions += 1
        self._visit_all(*node.body)
        self._functions -= 1
        self._scope.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.append(node.name)
        self._visit_all(*node.body)
        self._scope.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit_all(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...

    def visit_Compare(self, node: ast.Compare) -> None:
        self.number(node.left, *node.comparators)
        if len(node.ops) == 1:
            self.operator("comparison", node.left, node.comparators[0])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if not (is_sequence(node.left) or is_sequence(node.right)):
            self.number(node.left, node.right)
            if isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.FloorDiv):
                self.operator("arithmetic", node.left, node.right)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        if len(node.values) == 2:
            self.operator("boolean", *node.values)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self.add("negation", *self.span(node), self.text(node).removeprefix("not").lstrip())
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if self.text(node.test).rpartition(".")[2] == "TYPE_CHECKING":
            return self._visit_all(*node.orelse)
        leaves = isinstance(node.body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)
        names_something = any(isinstance(part, ast.NamedExpr) for part in ast.walk(node.test))
        if leaves and not node.orelse and not names_something:
            self.add("guard", *self.span(node.test), "False")
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        names = self.text(node.func).split(".")
        if names[0] in LOGS:
            return
        starred = any(isinstance(argument, ast.Starred) for argument in node.args)
        if len(node.args) >= 2 and not starred and names[-1] not in ORDER_IS_NO_MATTER:
            (start, one_end), (two_start, end) = map(self.span, node.args[:2])
            first, second = map(self.text, node.args[:2])
            self.add("arguments", start, end, second + self.source[one_end:two_start].decode() + first)
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool):
            self.add("returned", *self.span(node.value), str(not node.value.value))
        self.generic_visit(node)


def is_sequence(node: ast.AST) -> bool:
    """Return whether an operand is visibly a text or a list."""
    if isinstance(node, ast.BinOp):
        return is_sequence(node.left) or is_sequence(node.right)
    literal = isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp)
    return literal or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def edits(source: bytes) -> list[Edit]:
    finder = Finder(source)
    finder.visit(ast.parse(source))
    return finder.found


def changes_the_program(source: bytes, edit: Edit) -> bool:
    try:
        compile(changed := edit.applied(source), "changed", "exec")
    except (SyntaxError, ValueError):
        return False
    return ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
