"""Seeded faults: available edits, one change each, and restored files."""

from __future__ import annotations

import os
import random

import pytest

from tests.suite import faults
from tests.suite.fault_edits import changes_the_program, edits

MADE = [
    ("comparison", "a < b", "a <= b"),
    ("comparison", "(a) >= (b)", "(a) > (b)"),
    ("comparison", "a == b", "a != b"),
    ("comparison", "a not in b", "a in b"),
    ("comparison", "a is b", "a is not b"),
    ("number", "a < 3", "a < 4"),
    ("number", "a % 7", "a % 8"),
    ("arithmetic", "a + b", "a - b"),
    ("arithmetic", "a // b", "a * b"),
    ("boolean", "a and (b)", "a or (b)"),
    ("negation", "not (a or b)", "(a or b)"),
    ("arguments", "f(a, [b], c)", "f([b], a, c)"),
    ("arguments", "f(a,\n  b)", "f(b,\n  a)"),
    ("returned", "True", "False"),
]


def in_function(expression: str) -> str:
    return f"def it(a, b):\n    '''ä'''\n    return {expression}\n"


@pytest.mark.parametrize(("kind", "before", "after"), MADE)
def test_each_kind_of_fault_changes_one_place(kind, before, after):
    source = in_function(before).encode()
    made = [edit for edit in edits(source) if edit.kind == kind]
    assert [edit.applied(source).decode() for edit in made] == [in_function(after)]
    assert source[made[0].start : made[0].end].decode() == made[0].before
    assert changes_the_program(source, made[0])
    assert made[0].function == "it"


def test_guard_with_an_exit_is_removed():
    body = ("if self.a and f():", "    return 1", "if b:", "    g()")
    source = "\n".join(["class C:", "    def it(self):", *(f"        {line}" for line in body)]).encode()
    guard, every = [edit for edit in edits(source) if edit.kind == "guard"], edits(source)
    assert [edit.applied(source) for edit in guard] == [source.replace(b"self.a and f()", b"False")]
    assert (guard[0].line, guard[0].end_line, guard[0].function) == (3, 3, "C.it")
    assert {edit.kind for edit in every} == {"guard", "boolean"}


@pytest.mark.parametrize(
    "source",
    [
        "LIMIT = 60 * 5\n",
        "def it():\n    if TYPE_CHECKING:\n        return 1 + a\n",
        "def it():\n    if typing.TYPE_CHECKING:\n        raise f(a, b)\n",
        "@kept(1 < 2)\ndef it(a: 1 + 2 = None) -> 1 + 2:\n    '''1 < 2'''\n    b: 1 + 2 = a\n",
        "def it():\n    log.info(a, b + 1)\n",
        "def it():\n    return 'a' + b + c, f'{a + b}', a < b < c, min(a, b), f(a, a), f(*a, b)\n",
    ],
)
def test_code_without_faults_has_no_edits(source):
    assert edits(source.encode()) == []


def test_edit_without_effect_or_with_a_syntax_error_is_refused():
    source = b"def it(a, b):\n    return a + b\n"
    (edit,) = edits(source)
    for after in ("+ +", "))", "+"):
        changed = faults.dataclasses.replace(edit, after=after)
        assert changes_the_program(source, changed) is (after == "+ +")


def test_faults_per_room_follow_the_square_root_of_candidates():
    assert faults.shares({"a": 900, "b": 100, "c": 1}, 9) == {"a": 6, "b": 2, "c": 1}
    assert sum(faults.shares({"a": 9, "b": 9, "c": 9}, 2).values()) == 2
    assert faults.shares({"a": 1, "b": 2}, 9) == {"a": 1, "b": 2}


def test_faults_are_in_different_functions_and_deterministic():
    source = b"".join(b"def f%d(a):\n    return not a < 1\n" % number for number in range(5))
    found = [("x.py", edit) for edit in edits(source)]
    first, again = (list(faults.chosen(list(found), 5, {"x.py": source}, random.Random(7))) for _ in range(2))
    assert first == again
    assert len({edit.function for _, edit in first}) == 5


def test_moved_statement_is_found():
    source = b"def f(a):\n    return a < 1\n\n\ndef g(a):\n    return a < 1\n"
    edit = [edit for edit in edits(source) if edit.kind == "comparison"][1]
    fault = faults.fault_record("portal/x.py", edit, source)
    assert faults.place_of(fault, source) == edit.start
    assert faults.place_of(fault, b"import sys\n" + source) == edit.start + 11
    assert faults.place_of(fault, b"import sys\n" + source.replace(b"g(", b"h(")) is None


def test_file_is_restored_when_the_run_fails(tmp_path):
    path = tmp_path / "portal" / "x.py"
    path.parent.mkdir()
    path.write_bytes(b"a = 1\n")
    os.utime(path, ns=(5, 1_700_000_000_123_456_789))
    known = path.stat()
    with pytest.raises(RuntimeError), faults.seeded(tmp_path, "portal/x.py", b"a = 2\n"):
        assert path.read_bytes() == b"a = 2\n"
        assert int(path.stat().st_mtime) != int(known.st_mtime)
        raise RuntimeError
    assert path.read_bytes() == b"a = 1\n"
    assert (path.stat().st_mtime_ns, path.stat().st_mode) == (known.st_mtime_ns, known.st_mode)
    assert [child.name for child in tmp_path.rglob("*")] == ["portal", "x.py"]


def test_file_left_by_a_killed_run_is_restored(tmp_path):
    for folder, content in (("portal", b"a = 2\n"), (faults.BACKUPS + "/portal", b"a = 1\n")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.py").write_bytes(content)
    faults.restore(tmp_path)
    assert (tmp_path / "portal" / "x.py").read_bytes() == b"a = 1\n"
    assert not (tmp_path / faults.BACKUPS).exists()
