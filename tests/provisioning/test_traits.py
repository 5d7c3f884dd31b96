"""Traits of drivers: plain data, and the only thing by which code outside drivers decides about a driver."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning.errors import UnknownDriver
from provisioning.registry import DRIVERS, driver_class, drivers_with, traits_of
from provisioning.traits import Plane

ROOT = Path(__file__).parents[2]
MAKES_POOLS = {"portal/embedded/management/commands/bootstrap.py": "makes the pool of this machine"}
"""Files that may look for a driver by its name, and why."""


@pytest.mark.parametrize("name", DRIVERS)
def test_class_and_registry_have_the_same_traits(name):
    assert driver_class(name).traits is traits_of(name)


def test_traits_are_read_without_loading_a_driver():
    code = (
        "import sys; from provisioning.registry import DRIVERS, traits_of\n"
        "for name in DRIVERS: traits_of(name)\n"
        "print([name for name in sys.modules if name.endswith('.driver') and '.drivers.' in name])"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_unknown_driver_has_no_traits():
    with pytest.raises(UnknownDriver):
        traits_of("abacus")


def test_drivers_are_found_by_a_trait():
    assert drivers_with(lambda traits: traits.plane is Plane.NODE) == ["local"]


def test_nothing_outside_a_driver_decides_by_its_name_or_class():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for top in ("portal", "provisioning")
        for path in sorted((ROOT / top).rglob("*.py"))
        if "drivers" not in path.relative_to(ROOT / top).parts[:1]
        and "migrations" not in path.parts
        and str(path.relative_to(ROOT)) not in MAKES_POOLS
        for line, what in decisions(ast.parse(path.read_text()))
    ]
    assert not found, "\n".join(["ask the traits of the pool instead:", *found])


@pytest.mark.parametrize(
    "code",
    [
        "if pool.driver == 'local': pass",
        "if pool.driver in ('local', 'docker'): pass",
        "Node.objects.filter(pool__driver='local')",
        "isinstance(driver, LocalDriver)",
    ],
)
def test_decision_by_name_or_class_is_found(code):
    assert len(list(decisions(ast.parse(code)))) == 1


def decisions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Return comparisons with the name of a driver, queries for one, and tests of a driver's class."""
    classes = {path.rpartition(":")[2] for path in DRIVERS.values()}
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=ast.Attribute(attr="driver"), comparators=[other]) if _constants(other):
                yield node.lineno, "compares the name of a driver"
            case ast.Call(func=ast.Attribute(attr="filter" | "exclude" | "get"), keywords=keywords):
                for keyword in keywords:
                    if (keyword.arg or "").endswith("driver") and _constants(keyword.value):
                        yield node.lineno, "looks for the name of a driver"
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, ast.Name(id=name)]) if name in classes:
                yield node.lineno, f"tests for {name}"


def _constants(node: ast.expr) -> bool:
    return any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in ast.walk(node))
