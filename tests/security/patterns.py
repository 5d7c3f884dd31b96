"""Time of every regular expression of the code on adversarial text of doubling length.

`python -m tests.security.patterns` prints one line for each pattern whose processor time grows faster than
its text, and last the number of patterns. `python -m tests.security.patterns PATTERN` looks at one only,
`--every N` at the first and each Nth after it.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import itertools
import os
import re
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from re import _constants as code  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

ROOT = Path(__file__).parents[2]
METHODS = frozenset({"match", "search", "fullmatch", "sub", "subn", "split", "findall", "finditer"})
CALLS = frozenset({*METHODS, "compile", "RegexValidator", "RegexField"})
LENGTH = 8192
"""Characters of the longest text."""
SHORTER = (256, 1024)
"""Characters of the texts before that one, which show patterns of a higher degree within seconds."""
QUICK_S = 0.005
"""Processor time of the longest text: above 20 ms for a quadratic pattern, below 1 ms for a linear one."""
MAX_CPU_S = 60
WRITTEN_BY_ADMINISTRATORS = frozenset(
    {
        ("portal/people/identity/config.py", "problems"),
        ("portal/people/identity/config.py", "_bad_pattern"),
        ("portal/people/identity/config.py", "_bad_template"),
        ("portal/people/identity/rules.py", "_matching"),
    }
)
"""Functions that compile a pattern of the configuration file, which `identity.patterns` restricts."""


@dataclass(frozen=True)
class Pattern:
    """A pattern of the code, and the methods that search with it."""

    place: str
    text: str | bytes
    flags: int
    methods: frozenset[str]


def patterns() -> tuple[list[Pattern], list[str]]:
    """Return the patterns of the code, and the places of patterns made at run time."""
    trees = {path: ast.parse(path.read_text()) for path in _sources()}
    uses = {path: _uses(tree) for path, tree in trees.items()}
    everywhere: dict[str, set[str]] = {}
    for used in uses.values():
        for name, methods in used.items():
            everywhere.setdefault(name, set()).update(methods)
    found_patterns, unreadable = [], []
    for path, tree in trees.items():
        for name, function, call in _calls(tree):
            place = f"{path.relative_to(ROOT)}:{call.lineno}"
            if (str(path.relative_to(ROOT)), function) in WRITTEN_BY_ADMINISTRATORS:
                continue
            try:
                text, flags = _evaluated(path, call)
            except Exception as error:
                unreadable.append(f"{place} ({error!r})")
                continue
            methods = {call.func.attr} if isinstance(call.func, ast.Attribute) else {"search"}
            if "compile" in methods:
                used = uses[path] if name.startswith("_") else everywhere
                methods = used.get(name, set()) or set(METHODS)
            found_patterns.append(Pattern(place, text, flags, frozenset(map(_as_slow_as, methods))))
    return found_patterns, unreadable


def _as_slow_as(method: str) -> str:
    """Return the representative method: those that try every position take equally long."""
    return method if method in ("match", "fullmatch") else "findall"


def _sources() -> list[Path]:
    return sorted(
        path
        for folder in ("portal", "provisioning")
        for path in (ROOT / folder).rglob("*.py")
        if "migrations" not in path.parts and ("re." in (text := path.read_text()) or "Regex" in text)
    )


def _calls(tree: ast.AST) -> Iterator[tuple[str, str, ast.Call]]:
    """Yield each call that makes or uses a pattern, with the name assigned and the function around it."""

    def walk(node: ast.AST, name: str, function: str) -> Iterator[tuple[str, str, ast.Call]]:
        for child in ast.iter_child_nodes(node):
            named, within = name, function
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                within = child.name
            if isinstance(child, ast.Assign) and isinstance(child.targets[0], ast.Name):
                named = child.targets[0].id
            if isinstance(child, ast.Call) and _makes_a_pattern(child.func):
                yield named, within, child
            yield from walk(child, named, within)

    yield from walk(tree, "", "")


def _makes_a_pattern(called: ast.expr) -> bool:
    if isinstance(called, ast.Attribute):
        return isinstance(called.value, ast.Name) and called.value.id == "re" and called.attr in CALLS
    return isinstance(called, ast.Name) and called.id in CALLS - METHODS - {"compile"}


def _uses(tree: ast.AST) -> dict[str, set[str]]:
    """Return the methods called on each name."""
    methods_by_name: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in METHODS:
            value = node.value
            name = value.id if isinstance(value, ast.Name) else getattr(value, "attr", "")
            methods_by_name.setdefault(name, set()).add(node.attr)
    return methods_by_name


def _evaluated(path: Path, call: ast.Call) -> tuple[str | bytes, int]:
    """Return the pattern and its flags, evaluated in its module."""
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    pattern = call.args[0] if call.args else named["regex"]
    number = {"sub": 3, "subn": 3, "split": 2, "compile": 1}.get(getattr(call.func, "attr", ""), 2)
    flags = named.get("flags") or (call.args[number] if len(call.args) > number else None)
    if not isinstance(call.func, ast.Attribute):
        flags = None

    def value(node: ast.expr) -> Any:
        return eval(compile(ast.Expression(node), str(path), "eval"), dict(vars(module)))

    return value(pattern), int(value(flags)) if flags is not None else 0


def attacks(text: str | bytes, flags: int) -> Iterator[tuple[str, str, str]]:
    """Yield beginnings, parts to repeat, and ends: texts that nearly match."""
    plain = text.decode("latin-1") if isinstance(text, bytes) else text
    parsed = _parser.parse(plain, flags & ~re.ASCII if isinstance(text, bytes) else flags)
    heads, pumps = [""], set()
    for head, pump in _repeated(list(parsed), ""):
        heads.append(head)
        pumps.add(pump)
    whole = [_sample([node]) for node in parsed]
    pumps |= {
        "".join(whole[first:last]) for first in range(len(whole)) for last in range(first + 1, len(whole) + 1)
    }
    pumps |= {pump + other for pump, other in itertools.product(list(pumps)[:6], repeat=2)}
    pumps |= {" ", "a", "0", "-", "/", "\n", "\\"}
    heads = list(dict.fromkeys(heads))[:4]
    for head, pump in itertools.product(heads, sorted(pumps - {""})[:60]):
        for end in ("", "\0", "\n\0"):
            yield head, pump, end


def _repeated(nodes: list[Any], head: str) -> Iterator[tuple[str, str]]:
    """Yield each repeated part with a text that leads to it."""
    for number, (op, value) in enumerate(nodes):
        before = head + _sample(nodes[:number])
        for body in _bodies(op, value):
            if op in _REPEATS and value[1] > 8:
                yield before, _sample(body)
                # The same text followed by the next part, which competes for it.
                yield before, _sample(body) + _sample(nodes[number + 1 : number + 2])
            yield from _repeated(body, before)


_REPEATS = (code.MAX_REPEAT, code.MIN_REPEAT, code.POSSESSIVE_REPEAT)


def _bodies(op: Any, value: Any) -> list[list[Any]]:
    if op in _REPEATS:
        return [list(value[2])]
    if op is code.SUBPATTERN:
        return [list(value[3])]
    if op is code.BRANCH:
        return [list(branch) for branch in value[1]]
    if op is code.ATOMIC_GROUP:
        return [list(value)]
    return []


def _sample(nodes: list[Any]) -> str:
    """Return a short text that matches."""
    sample = ""
    for op, value in nodes:
        if op is code.LITERAL:
            sample += chr(value)
        elif op is code.NOT_LITERAL:
            sample += "b" if value == ord("a") else "a"
        elif op is code.ANY:
            sample += "a"
        elif op is code.IN:
            sample += _of_set(value)
        elif op in _REPEATS:
            sample += _sample(list(value[2])) * min(max(value[0], 1), 64)
        elif bodies := _bodies(op, value):
            sample += _sample(bodies[0])
    return sample


def _of_set(items: list[Any]) -> str:
    members = re.compile("|".join(_item(op, value) for op, value in items if op is not code.NEGATE))
    negated = items[0][0] is code.NEGATE
    letters = (chr(number) for number in (*range(97, 123), *range(33, 127), 32, *range(32), *range(127, 256)))
    return next(letter for letter in letters if bool(members.match(letter)) != negated)


def _item(op: Any, value: Any) -> str:
    if op is code.LITERAL:
        return re.escape(chr(value))
    if op is code.RANGE:
        return f"[{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}]"
    classes = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}
    name = str(value).removeprefix("CATEGORY_").removeprefix("UNI_")
    return classes[name.removeprefix("NOT_")].upper() if name.startswith("NOT_") else classes[name]


def growth(pattern: Pattern) -> str:
    """Return the attack whose time grows faster than its text, or ""."""
    compiled = re.compile(pattern.text, pattern.flags)
    for head, pump, end in attacks(pattern.text, pattern.flags):
        for method in sorted(pattern.methods):
            if _grows(getattr(compiled, method), head, pump, end, isinstance(pattern.text, bytes)):
                return f"{method} {head!r} + {pump!r} * n + {end!r}"
    return ""


def _grows(call: Any, head: str, pump: str, end: str, is_bytes: bool) -> bool:
    """Return whether time grows by far more than twice, two doublings in a row."""

    def subject_of(length: int) -> Any:
        text = head + pump * (length // len(pump)) + end
        return text.encode() if is_bytes else text

    # Short texts first, since the longest may never finish.
    if all(_seconds(call, subject_of(length)) <= QUICK_S for length in (*SHORTER, LENGTH)):
        return False
    times = []
    length = 16
    while length <= LENGTH:
        subject = subject_of(length)
        times.append(_seconds(call, subject))
        if times[-1] > QUICK_S:
            # Shorter texts take too little time to compare. Use the best of several runs per length.
            times[-1] = min(times[-1], *(_seconds(call, subject) for _ in range(2)))
            if (
                times[-1] > QUICK_S
                and len(times) > 2
                and times[-1] > 2.8 * times[-2]
                and times[-2] > 2.2 * times[-3]
            ):
                return True
        length *= 2
    return False


def _seconds(call: Any, subject: Any) -> float:
    began = time.process_time()
    call(subject)
    return time.process_time() - began


def _matchers() -> Iterator[tuple[str, Any, str]]:
    """Yield functions that match without a single pattern, and texts to repeat."""
    from portal.catalog import rules
    from portal.catalog.models import Template
    from portal.people.service_accounts.exchange.conditions import Condition, check

    def warnings(text: str) -> Any:
        return rules.template_warnings(Template(argv=[text], env={}))

    for text in ("-token", "token=", "a", "a://", "--a-token"):
        yield "template_warnings", warnings, text
    for glob, text in (
        ("x/" + "*a" * 12 + "b", "a"),
        ("**a" * 80 + "b", "a"),
        ("*?" * 60 + "/", "b"),
        ("**?" * 60, "/"),
    ):
        rule = Condition("sub", "glob", glob)
        for head in ("", "x/"):
            yield (
                f"glob {glob[:10]}…",
                lambda seen, rule=rule, head=head: check([rule], {"sub": head + seen}),
                text,
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("pattern", nargs="?")
    parser.add_argument("--every", type=int, default=1, metavar="N")
    options = parser.parse_args()
    limit_s = MAX_CPU_S if options.pattern is None else 2
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    if options.pattern is not None:
        print(growth(Pattern("argument", options.pattern, 0, METHODS & {"fullmatch", "findall"})))
        return
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    sys.path += [str(ROOT / "provisioning/agent" / folder) for folder in ("files", "program")]
    import django

    django.setup()
    all_patterns, unreadable = patterns()
    for place in unreadable:
        print(f"{place}: not readable", flush=True)
    alike = {(pattern.text, pattern.flags, pattern.methods): pattern for pattern in all_patterns}
    for pattern in itertools.islice(alike.values(), 0, None, options.every):
        sys.stderr.write(f"{pattern.place}\n")
        sys.stderr.flush()
        if attack := growth(pattern):
            print(f"{pattern.place}: {attack}", flush=True)
    for name, call, text in _matchers():
        sys.stderr.write(f"{name}\n")
        if _grows(call, "", text, "", False):
            print(f"{name}: {text!r} * n", flush=True)
    print(f"{len(all_patterns)} patterns", flush=True)


if __name__ == "__main__":
    main()
