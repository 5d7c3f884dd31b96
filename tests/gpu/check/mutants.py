"""Mutation test of the check's rules: `python -m tests.gpu.check.mutants [--write FILE]`

Mutates every comparison, number, `and`, `or` and `not` of the rules, one at a time, and runs their tests
against each mutant. A mutant that no test fails on survives. Takes 1 to 2 minutes; exit code 1 if one
survives.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib.abc
import importlib.machinery
import inspect
import io
import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = "provisioning.gpu"
MODULES = (
    "check.thresholds",
    "check.health",
    "check.verdict",
    "check.plan",
    "check.assess",
    "check.types",
    "check.second_look",
    "check.hardware_state",
    "check.consequences",
    "check.wrong_pairs",
    "check.joint_load",
    "counters",
)
TESTS = (
    "tests.gpu.check.test_rules_assessment",
    "tests.gpu.check.test_rules_crowd",
    "tests.gpu.check.test_rules_health",
    "tests.gpu.check.test_rules_joint",
    "tests.gpu.check.test_rules_links",
    "tests.gpu.check.test_rules_plan",
    "tests.gpu.check.test_rules_software",
    "tests.gpu.check.test_rules_sums",
    "tests.gpu.check.test_rules_thresholds",
    "tests.gpu.check.test_rules_verdict",
    "tests.gpu.check.test_second_look",
    "tests.gpu.check.test_hardware_state",
    "tests.gpu.check.test_consequences",
    "tests.gpu.check.test_report",
    "tests.gpu.check.test_counters",
    "tests.gpu.check.test_models",
)

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}


@dataclass(frozen=True, slots=True)
class Mutant:
    module: str
    line: int
    what: str
    source: str


def _changes(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Descriptions of mutations of one node, with a function that applies each to a copy."""
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            for other in _COMPARISONS[type(operator)]:

                def compare(n: ast.Compare, place: int = place, other: type[ast.cmpop] = other) -> None:
                    n.ops[place] = other()

                yield f"{type(operator).__name__} → {other.__name__}", compare
    elif isinstance(node, ast.BoolOp):
        other_op = ast.Or if isinstance(node.op, ast.And) else ast.And

        def boolean(n: ast.BoolOp) -> None:
            n.op = other_op()

        yield f"{type(node.op).__name__} → {other_op.__name__}", boolean
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        value = node.value
        for other_value in (value + 1, value - 1) if isinstance(value, int) else (value * 1.02, value * 0.98):

            def constant(n: ast.Constant, other_value: Any = other_value) -> None:
                n.value = other_value

            if other_value != value:
                yield f"{value!r} → {other_value:g}", constant
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):

        def negation(n: ast.UnaryOp) -> None:
            n.operand = ast.UnaryOp(ast.Not(), n.operand)

        yield "not → not not", negation


def _tree(module: str) -> ast.Module:
    return ast.parse(
        (ROOT / Path(*PACKAGE.split("."), *module.split(".")).with_suffix(".py")).read_text(encoding="utf-8")
    )


def mutants(module: str) -> Iterator[Mutant]:
    """Every mutant of one module."""
    tree = _tree(module)
    for number, node in enumerate(ast.walk(tree)):
        for what, change in _changes(node):
            other = copy.deepcopy(tree)
            twin = next(n for i, n in enumerate(ast.walk(other)) if i == number)
            change(twin)
            context = ast.unparse(node) if not isinstance(node, ast.Constant) else ""
            text = f"{what}  in  {context[:60]}" if context else what
            yield Mutant(
                module, getattr(node, "lineno", 0), text, ast.unparse(ast.fix_missing_locations(other))
            )


class _Loader(importlib.abc.Loader):
    def __init__(self, source: str) -> None:
        self.source = source

    def exec_module(self, module: Any) -> None:
        exec(compile(self.source, f"<mutant of {module.__name__}>", "exec"), module.__dict__)


class _Finder(importlib.abc.MetaPathFinder):
    """Imports the mutant in place of the module."""

    def __init__(self, mutant: Mutant) -> None:
        self.name, self.source = f"{PACKAGE}.{mutant.module}", mutant.source

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        return importlib.machinery.ModuleSpec(name, _Loader(self.source))


def _cases(function: Any) -> Iterator[dict[str, Any]]:
    """The arguments of each case of a test, as `parametrize` creates them."""
    from _pytest.mark import ParameterSet

    axes: list[list[dict[str, Any]]] = []
    for mark in getattr(function, "pytestmark", ()):
        names, values = mark.args[0], mark.args[1]
        names = [names] if isinstance(names, str) else list(names)
        rows = [
            value.values if isinstance(value, ParameterSet) else (value,) if len(names) == 1 else value
            for value in values
        ]
        axes.append([dict(zip(names, row, strict=True)) for row in rows])
    for choice in itertools.product(*axes):
        yield {name: value for part in choice for name, value in part.items()}


def run_tests() -> bool:
    """Whether all tests pass. Has its own runner, as starting pytest per mutant would dominate the time."""
    import pytest

    for name in TESTS:
        module = importlib.import_module(name)
        for function in [f for n, f in vars(module).items() if n.startswith("test_") and callable(f)]:
            parameters = set(inspect.signature(function).parameters)
            for case in _cases(function):
                if not parameters - set(case) <= {"monkeypatch"}:
                    continue
                with pytest.MonkeyPatch.context() as patch:
                    function(**case, **({"monkeypatch": patch} if "monkeypatch" in parameters else {}))
    return True


def killed(mutant: Mutant) -> bool:
    """Whether a test fails. Each mutant has its own process."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(20)
            sys.meta_path.insert(0, _Finder(mutant))
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                code = 0 if run_tests() else 1
        except BaseException:
            code = 1
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return status != 0


PAGE = """\
# Mutation test of the GPU check's rules

Numbers and comparisons decide whether a GPU passes its check. A test guards each of them.

These tests do not prove that a [limit](gpu-check.md#floors) is right for a GPU model.

## Method
The script changes the source in one place and runs the tests of the rules against that mutant. Whole numbers
change by 1, decimal numbers by 2 %. Comparisons are moved, reversed or negated, `and` and `or` exchanged,
`not` removed. A mutant is killed when a test fails or runs for more than 20 s.

`python -m tests.gpu.check.mutants --write docs/gpu-check-mutants.md` repeats the run and writes this page.

## Result
| module of `provisioning/gpu` | mutants | survived |
|---|---|---|
{modules}

## Survivors
{survivors}
"""


def page(rows: list[tuple[Mutant, bool]]) -> str:
    """The Markdown of docs/gpu-check-mutants.md: method, counts by module and survivors."""

    def row(title: str, dead: list[bool]) -> str:
        return f"| {title} | {len(dead)} | {len(dead) - sum(dead)} |"

    modules = list(dict.fromkeys(mutant.module for mutant, _ in rows))
    counts = [
        row(f"`{module.replace('.', '/')}.py`", [dead for mutant, dead in rows if mutant.module == module])
        for module in modules
    ]
    counts.append(row("all", [dead for _, dead in rows]))
    alive = [mutant for mutant, dead in rows if not dead]
    survivors = ["| module | line | change |", "|---|---|---|"]
    for mutant in alive:
        what = mutant.what.replace("|", "\\|").replace("\n", " ")
        survivors.append(f"| `{mutant.module}` | {mutant.line} | `{what}` |")
    return PAGE.format(modules="\n".join(counts), survivors="\n".join(survivors) if alive else "None.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", metavar="FILE", help="write the page of docs/")
    parser.add_argument("--module", choices=MODULES, action="append")
    args = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    # Slow imports outside the rules.
    import jsonschema  # noqa: F401
    import numpy  # noqa: F401
    import pytest  # noqa: F401

    # The control: an unchanged, reassembled module must pass.
    for module in MODULES:
        if killed(Mutant(module, 0, "none", ast.unparse(_tree(module)))):
            print(f"The tests fail without a change in {module}.", file=sys.stderr)
            return 2
    started = time.monotonic()
    rows: list[tuple[Mutant, bool]] = []
    for module in args.module or MODULES:
        for mutant in mutants(module):
            dead = killed(mutant)
            rows.append((mutant, dead))
            print(f"{'killed  ' if dead else 'SURVIVED'}  {module}:{mutant.line}  {mutant.what}", flush=True)
    alive = [mutant for mutant, dead in rows if not dead]
    print(f"{len(rows)} mutants, {len(alive)} survived, {time.monotonic() - started:.0f} s")
    if args.write:
        Path(args.write).write_text(page(rows), encoding="utf-8")
    return 1 if alive else 0


if __name__ == "__main__":
    raise SystemExit(main())
