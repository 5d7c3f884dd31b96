"""The pytest plugin of this suite: marks with reasons, `--thorough`, processor time of each test, progress.

`--thorough` runs the tests marked `thorough` and those of `redundant.txt`, too; without it they are
deselected. Each test's processor time, its own and that of the processes that it waited for, goes into
the JUnit report as the property `cpu_s`. Fixtures that tests share, as those that start a server or a
browser, do not count for the test that happens to start or end them: their processor time stands in the
properties `shared NAME`. `--progress-file=PATH` keeps a JSON file up to date: `{"total": int, "done": int,
"failed": [node id, ...]}`.
"""

from __future__ import annotations

import json
import os
import re
import resource
import time
from collections import Counter
from collections.abc import Collection, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from tests.suite.choice import THOROUGH
from tests.suite.redundancy import LIST, function_of, listed

WRITE_EVERY_S = 1.0
MARKS_WITH_REASON = ("slow", "thorough")
SHARED = "shared "
"""Prefix of the property with the processor time of a shared fixture."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="run the tests marked thorough, too")
    parser.addoption("--progress-file", metavar="PATH", help="write how many tests are done to this file")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("thorough"):
        # Before tests are imported; workers of pytest-xdist inherit it.
        os.environ[THOROUGH] = "1"
    path = config.getoption("progress_file")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(Path(path)), "suite-progress")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    remember_closures(session._fixturemanager)
    return (yield)


def remember_closures(manager: Any) -> None:
    """Calculate the fixtures of adjacent tests with equal names once.

    Otherwise pytest calculates them for each test, which takes a fifth of the collection time.
    """
    calculate = manager.getfixtureclosure
    closures: dict[object, tuple[list[str], dict[str, Any]]] = {}

    def getfixtureclosure(
        parentnode: pytest.Item, initialnames: tuple[str, ...], ignore_args: Collection[str]
    ) -> tuple[list[str], dict[str, Any]]:
        key = parentnode.parent, initialnames, frozenset(ignore_args)
        if key not in closures:
            closures[key] = calculate(parentnode, initialnames, ignore_args)
        names, definitions = closures[key]
        # pytest modifies both if a test has parameters.
        return list(names), dict(definitions)

    manager.getfixtureclosure = getfixtureclosure


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str) -> list[pytest.Item] | None:
    """In a run of the suite, skip the collection of redundant tests.

    By hand they are collected and deselected.
    """
    config = collector.config
    if config.getoption("thorough") or not config.getoption("progress_file"):
        return None
    return [] if f"{collector.nodeid}::{name}" in redundant() else None


@cache
def redundant() -> frozenset[str]:
    """Return the test functions of `redundant.txt`."""
    return listed(LIST.read_text())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect thorough tests unless they are asked for. Raises `UsageError` for a mark without a reason."""
    left_out = []
    for item in items:
        for name in MARKS_WITH_REASON:
            for mark in item.iter_markers(name):
                if not (mark.args and isinstance(mark.args[0], str) and mark.args[0]):
                    raise pytest.UsageError(f"{item.nodeid}: the mark {name} needs a reason")
                if name == "slow":
                    item.user_properties.append(("slow", mark.args[0]))
        thorough = item.get_closest_marker("thorough") or function_of(item.nodeid) in redundant()
        if thorough and not config.getoption("thorough"):
            left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        excluded = set(left_out)
        items[:] = [item for item in items if item not in excluded]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    """With `--dist loadfile`, a file goes to one process, with two exceptions.

    Files of one `xdist_group` go to the same process, as if they were one file. They take the longest, so
    they start first. Tests of a file marked `apart` go one by one to the process that is free. xdist starts
    units with more tests first, so these are the last, and no process waits for another at the end.
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return group_of(config.rootpath / file) or (nodeid if is_apart(config.rootpath / file) else file)

        def _assign_work_unit(self, node: object) -> None:
            groups = [unit for unit in self.workqueue if ".py" not in unit]
            if groups:
                self.workqueue.move_to_end(groups[0], last=False)
            super()._assign_work_unit(node)

    return Scheduling(config, log)


@cache
def group_of(file: Path) -> str:
    """Return the group of a test file, or an empty text.

    The file is read as text, since the scheduling process has no items.
    """
    match = re.search(r'mark\.xdist_group\("([^"]+)"\)', file.read_text())
    return match[1] if match else ""


@cache
def is_apart(file: Path) -> bool:
    """Return whether the tests of a file are marked `apart`."""
    return "mark.apart" in file.read_text()


def processor_time_s() -> float:
    """Return processor time in seconds of this process and its ended children."""
    usages = (resource.getrusage(scope) for scope in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Costs:
    """Processor time of the running test, without that of shared fixtures."""

    MIN_REPORTED_S = 0.05
    """Minimum processor time for which a shared fixture is named in the report."""

    def __init__(self) -> None:
        self.shared: Counter[str] = Counter()
        self._began_s = 0.0
        self._fixtures: list[tuple[str, float]] = []

    def begin(self) -> None:
        self.shared.clear()
        self._began_s = processor_time_s()

    def begin_fixture(self, name: str) -> None:
        self._fixtures.append((name, processor_time_s()))

    def end_fixture(self) -> None:
        """Time of fixtures set up by another fixture counts for the outer one."""
        name, began_s = self._fixtures.pop()
        if not self._fixtures:
            self.shared[name] += processor_time_s() - began_s  # type: ignore[assignment]

    def properties(self) -> list[tuple[str, object]]:
        own_s = processor_time_s() - self._began_s - self.shared.total()
        shared = {name: used_s for name, used_s in self.shared.items() if used_s >= self.MIN_REPORTED_S}
        return [
            ("cpu_s", f"{own_s:.3f}"),
            *((f"{SHARED}{name}", f"{used_s:.3f}") for name, used_s in shared.items()),
        ]


_costs = Costs()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _costs.begin()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
    if fixturedef.scope == "function":
        return (yield)
    _costs.begin_fixture(fixturedef.argname)
    try:
        return (yield)
    finally:
        _costs.end_fixture()
        # Finalizers run in reverse order: this one is the first.
        fixturedef.addfinalizer(partial(_costs.begin_fixture, fixturedef.argname))


def pytest_fixture_post_finalizer(fixturedef: pytest.FixtureDef[object]) -> None:
    if fixturedef.scope != "function":
        _costs.end_fixture()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """The report of the teardown is the last, and its properties are in the JUnit report."""
    try:
        result = yield
        if nextitem is not None and _group(item) and _group(item) != _group(nextitem):
            _end_shared(item, SERVERS_OF_GROUPS.get(_group(item), ""))
        return result
    finally:
        item.user_properties.extend(_costs.properties())


SERVERS_OF_GROUPS = {"e2e": "shared_berth"}
"""Session fixtures that end with the last test of their group, since idle servers take processor time."""


def _group(item: pytest.Item) -> str:
    marker = item.get_closest_marker("xdist_group")
    return str(marker.args[0]) if marker and marker.args else ""


def _end_shared(item: pytest.Item, name: str) -> None:
    """Tear the fixture down; a later test would set it up again."""
    for fixture in item.session._fixturemanager.getfixturedefs(name, item) or ():
        if fixture.cached_result is not None:
            fixture.finish(item._request)  # type: ignore[attr-defined]


class Progress:
    """Counts ended tests in the reporting process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.total = self.done = 0
        self.failed: list[str] = []
        self._next = 0.0

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self.total = len(ids)
        self._write()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.total = max(self.total, len(session.items))
        self._write()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)
        if report.when == "teardown":
            self.done += 1
        if time.monotonic() >= self._next or report.failed:
            self._write()

    def pytest_sessionfinish(self) -> None:
        self._write()

    def _write(self) -> None:
        self._next = time.monotonic() + WRITE_EVERY_S
        content = {"total": self.total, "done": self.done, "failed": self.failed}
        beside = self.path.with_name(self.path.name + ".new")
        beside.write_text(json.dumps(content))
        beside.replace(self.path)
