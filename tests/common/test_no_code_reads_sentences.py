"""Code never compares, splits or searches text for people; it uses codes.

The check parses Python and templates. It recognizes text by name (`message`, `summary`, …, as a variable, an
attribute or a key) and by the functions that create it, and follows assignments within one function. Checks
for emptiness and comparisons with codes are allowed.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT_MODULES = re.compile(r"/wording(\.py$|/)|^portal/common/formatting\.py$")
SENTENCES = frozenset(
    {
        "message", "detail", "title", "summary", "note", "sentence", "basis", "next_action", "error_message",
        "state_message", "accelerator_note", "cordon_reason", "eta_basis", "install_hint",
    }
)  # fmt: skip
MAKERS = frozenset({"message_of", "next_action_of", "sentence_of"})
READS = frozenset(
    {
        "split", "rsplit", "splitlines", "partition", "rpartition", "find", "rfind", "index", "rindex",
        "count", "startswith", "endswith", "removeprefix", "removesuffix", "replace", "strip", "lstrip",
        "rstrip",
    }
)  # fmt: skip
SEARCHES = frozenset({"search", "match", "fullmatch", "findall", "finditer", "split", "sub"})
QUERIES = frozenset({"filter", "exclude", "get", "Q", "get_or_create", "update_or_create"})
KEPT_AS = frozenset({"str", "strip_nul", "cast", "lower", "upper", "casefold", "capitalize"})

_TYPED = "what a user has typed into a field of this name"
_SAME = "whether a row is written anew: nothing is read out of the sentence but that it is another one"
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("portal/fleet/announcements/services.py", "strip_nul(row.text).split()"): _TYPED,
    ("portal/quota/requests/presenters.py", "given.get('note', '').strip()"): _TYPED,
    ("portal/people/accounts/user_views.py", "strip_nul(request.POST.get('note', '')).strip()"): _TYPED,
    (
        "portal/cli/client/problems.py",
        "str(sentence) not in (problem.get('next_action'), problem.get('detail'))",
    ): ("what the portal sent twice is printed once"),
    ("portal/cli/client/transport.py", "response.text.strip()"): "the end of a line is not shown",
    ("portal/cli/environments.py", "line != last_line"): "a line that says the same is not shown again",
    ("portal/cli/homes.py", "report['message'].rstrip('.')"): "shown as a part of a longer sentence",
    (
        "portal/cli/requests.py",
        "row['note'].splitlines()",
    ): "the first line of what a user has typed is shown",
    (
        "portal/common/events/services.py",
        "strip_nul(title).split()",
    ): "any white space becomes one space: a subject",
    ("portal/common/events/services.py", "strip_nul(note.title).split()"): "the same, for many",
    ("portal/common/events/services.py", "(notice.user_id, notice.title, notice.url) not in notified"): _SAME,
    (
        "portal/common/events/services.py",
        "Notification.objects.filter(user__in=recipients, kind=kind, title=title, url=url, read_at=None, "
        "at__gte=now - SAME_NOTICE)",
    ): _SAME,
    ("portal/web/fleet/views/gpus.py", "strip_nul(request.POST.get('note', '')).strip()"): _TYPED,
    (
        "portal/gpu_checks/kinds/device_proof.py",
        "(last.verdict, last.summary) == (run.verdict, run.summary)",
    ): _SAME,
    (
        "portal/fleet/inventory/cordons.py",
        "(device.cordoned, device.cordon_reason, device.cordon_cause, device.recovery) == target",
    ): _SAME,
    (
        "portal/fleet/inventory/services.py",
        "Pool.objects.filter(pk=pool.pk).exclude(state=state, state_message=message)",
    ): _SAME,
    ("portal/quota/ledger/services.py", "strip_nul(note).strip()"): _TYPED,
    ("portal/quota/requests/services/grants.py", "strip_nul(note).strip()"): _TYPED,
    ("portal/quota/requests/services/requests.py", "strip_nul(note).strip()"): _TYPED,
    ("portal/quota/reservations/services.py", "strip_nul(note).strip()"): _TYPED,
    ("portal/quota/reservations/services.py", "strip_nul(title).split()"): _TYPED,
    ("portal/people/service_accounts/views.py", "strip_nul(request.POST.get('note', '')).strip()"): _TYPED,
    ("provisioning/gpu/check/report.py", "worst.text.rstrip('.')"): (
        "a finding ends with a full stop or without, a summary with one"
    ),
}
"""Path and source of what may stay, and why."""


_NAMES = "|".join(sorted(SENTENCES))
SIGN = re.compile(rf"\b(?:{_NAMES}|text|{'|'.join(sorted(MAKERS))})(?![^\W_])")
"""Stands wherever a sentence begins, and in some other places."""


class Reader(ast.NodeVisitor):
    """Collects expressions of one module that read text for people.

    Statements are visited only if one of their lines contains `signs` or a variable holds such text.
    """

    def __init__(self, signs: list[int]) -> None:
        self.signs = signs
        self.found: list[ast.AST] = []
        self.aliases: set[str] = set()
        self.mappings: set[str] = set()

    def visit(self, node: ast.AST) -> None:
        if not isinstance(node, ast.stmt) or self.aliases or self._signed(node):
            super().visit(node)

    def _signed(self, node: ast.stmt) -> bool:
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
        place = bisect_left(self.signs, first)
        return place < len(self.signs) and self.signs[place] <= (node.end_lineno or first)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outer = self.aliases, self.mappings
        self.aliases, self.mappings = set(self.aliases), set(self.mappings)
        for argument in (*node.args.args, *node.args.kwonlyargs):
            if argument.annotation is not None and ast.unparse(argument.annotation).startswith("dict["):
                self.mappings.add(argument.arg)
        self.generic_visit(node)
        self.aliases, self.mappings = outer

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._assign(target.id, node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self._assign(node.target.id, node.value)

    def _assign(self, name: str, value: ast.expr) -> None:
        if self.sentence(value):
            self.aliases.add(name)
        else:
            self.aliases.discard(name)

    def sentence(self, node: ast.AST) -> bool:
        """Whether an expression is text for people, possibly shortened or wrapped."""
        match node:
            case ast.Name(id=name):
                return name in self.aliases or (name in SENTENCES and name not in self.mappings)
            case ast.Attribute(attr=name):
                return name in SENTENCES or name == "text"
            case ast.Subscript(slice=ast.Constant(value=str(key))):
                return key in SENTENCES
            case ast.Subscript(value=value, slice=ast.Slice()) | ast.NamedExpr(value=value):
                return self.sentence(value)
            case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(key)), *_]):
                return key in SENTENCES
            case ast.Call(func=ast.Name(id=name), args=args) if name in KEPT_AS:
                return any(self.sentence(arg) for arg in args)
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in KEPT_AS | READS:
                return self.sentence(value)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                return name in MAKERS
            case ast.BoolOp(values=values) | ast.Tuple(elts=values):
                return any(self.sentence(each) for each in values)
            case ast.IfExp(body=one, orelse=other):
                return self.sentence(one) or self.sentence(other)
            case ast.JoinedStr(values=values):
                return any(
                    isinstance(each, ast.FormattedValue) and self.sentence(each.value) for each in values
                )
        return False

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        for operator, left, right in zip(node.ops, sides, sides[1:], strict=False):
            if not isinstance(operator, ast.Eq | ast.NotEq | ast.In | ast.NotIn):
                continue
            if (self.sentence(left) and not _harmless(right)) or (
                self.sentence(right) and not _harmless(left)
            ):
                self.found.append(node)
                break
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        match node.func:
            case ast.Attribute(value=value, attr=name) if name in READS and self.sentence(value):
                self.found.append(node)
            case ast.Attribute(attr=name) if name in SEARCHES and any(map(self.sentence, arguments)):
                self.found.append(node)
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in QUERIES:
                if any((keyword.arg or "").split("__")[0] in SENTENCES for keyword in node.keywords):
                    self.found.append(node)
        self.generic_visit(node)

    def visit_Match(self, node: ast.Match) -> None:
        if self.sentence(node.subject):
            self.found.append(node.subject)
        self.generic_visit(node)


def _harmless(node: ast.AST) -> bool:
    """Whether a comparison is with nothing, an empty value or a member of an enumeration."""
    match node:
        case ast.Constant(value=None | "" | 0):
            return True
        case ast.Attribute(value=ast.Name(id=name), attr=member):
            return name[:1].isupper() and member.isupper()
        case ast.Set(elts=elements) | ast.Tuple(elts=elements) | ast.List(elts=elements):
            return bool(elements) and all(map(_harmless, elements))
    return False


def readings(source: str) -> list[tuple[int, str]]:
    """Line and source of each expression that reads text for people."""
    signs = [number for number, line in enumerate(source.split("\n"), 1) if SIGN.search(line)]
    if not signs:
        return []
    reader = Reader(signs)
    reader.visit(ast.parse(source))
    return [(node.lineno, ast.unparse(node)) for node in reader.found]  # type: ignore[attr-defined]


def sources() -> Iterator[tuple[str, str]]:
    for room in ("portal", "provisioning"):
        for path in sorted((ROOT / room).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if not TEXT_MODULES.search(name) and "/migrations/" not in name:
                yield name, path.read_text()


COMPARES = re.compile(
    rf"""{{%\s*(?:el)?if\b[^%]*(?:\b(?:{_NAMES})\s*(?:==|!=|in)\s*["']|["']\s*(?:==|!=|in)\s*[\w.]*\b(?:{_NAMES})\b)"""
)
CUTS = re.compile(rf"\b(?:{_NAMES})\s*\|\s*(?:cut|slice|first|last|wordcount)\b")


def read_by_template(source: str) -> list[str]:
    """The positions where a template compares or cuts text for people."""
    return [found.group() for pattern in (COMPARES, CUTS) for found in pattern.finditer(source)]


def test_no_template_compares_sentences() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {code}"
        for path in sorted((ROOT / "templates").rglob("*"))
        if path.is_file()
        for code in read_by_template(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('{% if error.message == "No room." %}', 1),
        ('{% if a %}x{% elif verdict.summary != "Lost." %}', 1),
        ('{% if "room" in error.message %}', 1),
        ('{{ event.message|cut:": " }}', 1),
        ("{% if error.message %}{{ error.message }}{% endif %}", 0),
        ('{% if error.code == "no_room" %}', 0),
        ("{{ workspace.note|default:'–' }}", 0),
    ],
)
def test_check_finds_templates_that_compare_sentences(source: str, count: int) -> None:
    assert len(read_by_template(source)) == count


def test_no_code_compares_sentences() -> None:
    found = [(name, line, code) for name, source in sources() for line, code in readings(source)]
    unexcused = [f"{name}:{line}: {code}" for name, line, code in found if (name, code) not in EXCEPTIONS]
    assert unexcused == []
    unused = set(EXCEPTIONS) - {(name, code) for name, _, code in found}
    assert unused == set(), "exceptions that nothing needs any more"


@pytest.mark.parametrize(
    "source",
    [
        "if error.message == 'No capacity.': pass",
        "if 'no room' in verdict.message: pass",
        "if title != other.title: pass",
        "if run.summary in seen: pass",
        "what, _, why = event.message.partition(': ')",
        "words = event.message.split()",
        "error.detail.startswith('Not')",
        "note.endswith('.')",
        "verdict.sentence.strip('.')",
        "workspace.error_message.removeprefix('Ends: ')",
        "re.search('[0-9]+', error.message)",
        "PATTERN.match(basis)",
        "re.sub('a', 'b', string=error.message)",
        "if message_of(reason) == 'No capacity.': pass",
        "message_of(reason).split(':')",
        "wording.next_action_of(reason).find('wait')",
        "problem['detail'].startswith('Not')",
        "if problem.get('message', '') == 'Not found.': pass",
        "Event.objects.filter(message__icontains='stopped')",
        "Q(summary='Lost.')",
        "def f(event):\n    text = event.message\n    return text.split(': ')",
        "def f(event):\n    if (text := str(event.message)[:10]) == 'Ends': pass",
        "f'{error.message}'.startswith('No')",
        "(error.message or '').lower() == 'no'",
        "match error.message:\n    case 'No.': pass",
        "if event.message.lower().startswith('x'): pass",
        "if (run.verdict, run.summary) == (last.verdict, last.summary): pass",
    ],
)
def test_check_finds_code_that_compares_sentences(source: str) -> None:
    assert len(readings(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "if error.message: pass",
        "if error.message == '': pass",
        "if verdict.basis == WaitBasis.RUNNING: pass",
        "if verdict.basis in (WaitBasis.RUNNING, WaitBasis.BOOKED): pass",
        "if reason.code == WorkspaceCode.LOST: pass",
        "print(error.message)",
        "text = error.message[:500]",
        "def f(event):\n    text = event.message\n    text = event.kind\n    return text.split('.')",
        "Event.objects.create(message='stopped it')",
        "name.strip()",
        "def f(message: dict[str, str]):\n    return 'nonce' in message",
    ],
)
def test_displaying_text_or_deciding_by_code_is_accepted(source: str) -> None:
    assert readings(source) == []
