"""Marks with reasons, `--thorough`, costs and progress, in a separate pytest process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.suite import tally
from tests.suite.plugin import remember_closures

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""Other plugins take a second to import."""
SOME = """
import pytest

def test_quick(): pass
def test_wrong(): assert 0
@pytest.mark.slow("counts to a thousand")
def test_slow(): pass
@pytest.mark.thorough("the quick one is enough")
def test_thorough(): pass
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    slow: x\n    thorough: x\n    apart: x\n    xdist_group: x\n"
    )
    options = ("-p", "no:cacheprovider", "-p", "tests.suite.plugin", "--junitxml=one.xml")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--progress-file=one.progress", *arguments],
        cwd=folder, env=ENVIRONMENT, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(("asked", "total"), [((), 3), (("--thorough",), 4)])
def test_thorough_tests_run_on_request(tmp_path, asked, total):
    (tmp_path / "test_some.py").write_text(SOME)
    assert run(tmp_path, *asked).returncode == 1

    progress = json.loads((tmp_path / "one.progress").read_text())
    assert progress == {"total": total, "done": total, "failed": ["test_some.py::test_wrong"]}
    found = list(tally.cases(tmp_path / "one.xml"))
    assert len(found) == total
    assert all(case.cpu_s >= 0 for case in found)
    assert [case.name for case in found if case.explained] == ["test_some::test_slow"]


SERVER = """
import pytest, time

def burn():
    began = time.process_time()
    while time.process_time() - began < 0.2: pass

@pytest.fixture(scope="module")
def server(inner):
    burn()
    yield
    burn()
@pytest.fixture(scope="session")
def inner(request):
    request.getfixturevalue("innermost")
    yield
    burn()
@pytest.fixture(scope="session")
def innermost():
    burn()
@pytest.fixture
def own():
    burn()

def test_first(server): pass
def test_last(server, own): pass
"""


def test_shared_fixtures_are_not_charged_to_a_test(tmp_path):
    (tmp_path / "test_some.py").write_text(SERVER)
    assert run(tmp_path).returncode == 0

    first, last = tally.cases(tmp_path / "one.xml")
    assert first.cpu_s < 0.15 and 0.2 <= last.cpu_s < 0.35
    assert {name: round(used_s, 1) for name, used_s in first.shared.items()} == {"server": 0.2, "inner": 0.2}
    assert {name: round(used_s, 1) for name, used_s in last.shared.items()} == {"server": 0.2, "inner": 0.2}


def test_fixture_closures_of_adjacent_tests_are_calculated_once():
    """Results are not shared by tests with parameters or by tests of another class."""
    calculated = []

    def calculate(parentnode, initialnames, ignore_args):
        calculated.append(parentnode.parent)
        return [*initialnames, parentnode.parent], {parentnode.parent: ["a definition"]}

    manager = SimpleNamespace(getfixtureclosure=calculate)
    remember_closures(manager)
    found = [
        manager.getfixtureclosure(SimpleNamespace(parent=parent), ("db",), frozenset(ignored))
        for parent, ignored in (("One", ()), ("One", ()), ("Two", ()), ("One", ("db",)))
    ]
    assert calculated == ["One", "Two", "One"]
    found[0][0].append("more")
    found[0][1].clear()
    assert found[1:3] == [(["db", name], {name: ["a definition"]}) for name in ("One", "Two")]


FILES = {
    "test_apart.py": ("pytestmark = pytest.mark.apart", 6),
    "test_group_1.py": ('pytestmark = pytest.mark.xdist_group("servers")', 1),
    "test_group_2.py": ('pytestmark = pytest.mark.xdist_group("servers")', 1),
    "test_whole_1.py": ("", 3),
    "test_whole_2.py": ("", 5),
}


def test_groups_start_first_and_isolated_tests_last(tmp_path):
    for file, (mark, number) in FILES.items():
        tests = "".join(f"def test_{index}(): pass\n" for index in range(number))
        (tmp_path / file).write_text(f"import pytest\n{mark}\n{tests}")
    done = run(tmp_path, "-p", "xdist.plugin", "-v", "-n", "2", "--dist", "loadfile")
    assert done.returncode == 0, done.stdout

    ran: dict[str, list[str]] = {"gw0": [], "gw1": []}
    for worker, file in re.findall(r"\[(gw\d)\].* PASSED (test_\w+)\.py::", done.stdout):
        ran[worker].append(file)
    grouped, other = sorted(ran.values(), key=lambda files: "test_group_1" not in files)
    assert grouped[:2] == ["test_group_1", "test_group_2"]
    assert other[:5] == ["test_whole_2"] * 5
    for files in (grouped, other):
        assert files == sorted(files, key="test_apart".__eq__)
    assert (grouped + other).count("test_apart") == 6


def test_a_mark_without_a_reason_is_refused(tmp_path):
    (tmp_path / "test_some.py").write_text("import pytest\n@pytest.mark.slow()\ndef test_it(): pass\n")
    done = run(tmp_path)
    assert done.returncode == 4
    assert "test_some.py::test_it: the mark slow needs a reason" in done.stderr


def test_servers_of_a_group_end_with_its_last_test(tmp_path):
    (tmp_path / "conftest.py").write_text(
        "import pytest\n"
        "@pytest.fixture(scope='session')\n"
        "def shared_berth():\n    print('begins')\n    yield 1\n    print('ends')\n"
    )
    member = "import pytest\npytestmark = pytest.mark.xdist_group('e2e')\n"
    (tmp_path / "test_a.py").write_text(
        f"{member}def test_a(request): request.getfixturevalue('shared_berth')\n"
    )
    (tmp_path / "test_b.py").write_text(f"{member}def test_b(shared_berth): print('used')\n")
    (tmp_path / "test_c.py").write_text("def test_c(): print('after')\n")
    printed = run(tmp_path, "--capture=no", "--strict-markers", "-W", "ignore").stdout
    words = re.findall("begins|ends|used|after", printed)
    assert words == ["begins", "used", "ends", "after"], printed
