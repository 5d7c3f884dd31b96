"""Parser and evaluator of SCIM filters (RFC 7644, section 3.4.2.2).

Length, depth and number of comparisons are limited to bound the cost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.scim.codes import ScimCode
from portal.people.scim.errors import ScimRefusal, invalid_filter

MAX_LENGTH = 2000
MAX_DEPTH = 12
MAX_COMPARISONS = 50
OPERATORS = frozenset({"eq", "ne", "co", "sw", "ew", "gt", "ge", "lt", "le", "pr"})
_TOKEN = re.compile(r'\s*(?:("(?:[^"\\]|\\.)*")|([()\[\]])|([^\s()\[\]"]+))')
_ATTRIBUTE = re.compile(r"(?:urn:[\w.:-]+:)?[A-Za-z$][\w$-]*(?:\.[A-Za-z$][\w$-]*)?\Z")
_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,15})?\Z")


@dataclass(frozen=True, slots=True)
class Comparison:
    """`attribute operator value`. The attribute is lower-case and has no schema.

    The value is None for `null`, and with the operator `pr`.
    """

    attribute: str
    operator: str
    value: str | bool | int | float | None


@dataclass(frozen=True, slots=True)
class And:
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Or:
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Not:
    inner: Node


@dataclass(frozen=True, slots=True)
class ValuePath:
    """`attribute[filter]`: any value of a multi-valued attribute matches the filter."""

    attribute: str
    inner: Node


Node = Comparison | And | Or | Not | ValuePath


def parse(text: str) -> Node:
    """Parse a filter into a tree. Raises `ScimRefusal` (invalidFilter)."""
    if len(text) > MAX_LENGTH:
        raise invalid_filter(Reason(ScimCode.FILTER_TOO_LARGE))
    return _Parser(text).parse_all()


def strip_schema(attribute: str) -> str:
    """Return the attribute name in lower case, without the URN of its schema."""
    name = attribute.lower()
    return name.rpartition(":")[2] if name.startswith("urn:") else name


def matches(node: Node, value: Mapping[str, Any]) -> bool:
    """Return whether a value of a multi-valued attribute matches a filter.

    Keys are spelled as in the schema.
    """
    match node:
        case And(left, right):
            return matches(left, value) and matches(right, value)
        case Or(left, right):
            return matches(left, value) or matches(right, value)
        case Not(inner):
            return not matches(inner, value)
        case Comparison(attribute, operator, expected):
            actual = next((item for key, item in value.items() if key.lower() == attribute), None)
            return _compare_values(actual, operator, expected)
        case ValuePath():
            return False


def _compare_values(actual: Any, operator: str, expected: Any) -> bool:
    if operator == "pr":
        return actual not in (None, "")
    if isinstance(actual, str) and isinstance(expected, str):
        text, term = actual.lower(), expected.lower()
        tests = {
            "eq": text == term, "ne": text != term, "co": term in text, "sw": text.startswith(term),
            "ew": text.endswith(term), "gt": text > term, "ge": text >= term, "lt": text < term,
            "le": text <= term,
        }  # fmt: skip
        return tests[operator]
    # Entra ID sends booleans as strings, such as "True".
    if isinstance(actual, bool) and isinstance(expected, str):
        expected = {"true": True, "false": False}.get(expected.lower())
    same = actual == expected and type(actual) is type(expected)
    return same if operator == "eq" else not same if operator == "ne" else False


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, int]] = []
        at = 0
        end = len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._syntax_error(at)
            self._tokens.append((match.group(0).strip(), at))
            at = match.end()
        self._next = 0
        self._comparisons = 0

    def parse_all(self) -> Node:
        node = self._parse_or(0)
        if self._peek():
            raise self._syntax_error()
        return node

    def _parse_or(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise invalid_filter(Reason(ScimCode.FILTER_TOO_LARGE))
        node = self._parse_and(depth)
        while self._peek().lower() == "or":
            self._take()
            node = Or(node, self._parse_and(depth))
        return node

    def _parse_and(self, depth: int) -> Node:
        node = self._parse_term(depth)
        while self._peek().lower() == "and":
            self._take()
            node = And(node, self._parse_term(depth))
        return node

    def _parse_term(self, depth: int) -> Node:
        keyword = self._peek().lower()
        if keyword == "not" and self._peek(1) == "(":
            self._take()
            return Not(self._grouped("(", ")", depth))
        if keyword == "(":
            return self._grouped("(", ")", depth)
        return self._comparison(depth)

    def _grouped(self, opening: str, closing: str, depth: int) -> Node:
        self._expect(opening)
        node = self._parse_or(depth + 1)
        self._expect(closing)
        return node

    def _comparison(self, depth: int) -> Node:
        self._comparisons += 1
        if self._comparisons > MAX_COMPARISONS:
            raise invalid_filter(Reason(ScimCode.FILTER_TOO_LARGE))
        attribute = self._peek()
        if not _ATTRIBUTE.match(attribute):
            raise self._syntax_error()
        self._take()
        if self._peek() == "[":
            return ValuePath(strip_schema(attribute), self._grouped("[", "]", depth))
        operator = self._peek().lower()
        if operator not in OPERATORS:
            raise self._syntax_error()
        self._take()
        return Comparison(strip_schema(attribute), operator, None if operator == "pr" else self._value())

    def _value(self) -> str | bool | int | float | None:
        token = self._peek()
        if token.startswith('"'):
            try:
                value = strip_nul(json.loads(token, strict=False))
            except ValueError:
                raise self._syntax_error() from None
            self._take()
            return value
        constants = {"true": True, "false": False, "null": None}
        if token.lower() in constants:
            self._take()
            return constants[token.lower()]
        if _NUMBER.match(token):
            self._take()
            return float(token) if "." in token else int(token)
        raise self._syntax_error()

    def _peek(self, ahead: int = 0) -> str:
        at = self._next + ahead
        return self._tokens[at][0] if at < len(self._tokens) else ""

    def _take(self) -> None:
        self._next += 1

    def _expect(self, token: str) -> None:
        if self._peek() != token:
            raise self._syntax_error()
        self._take()

    def _syntax_error(self, at: int | None = None) -> ScimRefusal:
        if at is None:
            at = self._tokens[self._next][1] if self._next < len(self._tokens) else len(self._text)
        return invalid_filter(Reason(ScimCode.FILTER_NOT_VALID, {"position": at + 1}))
