"""A pytest plugin of `tests.suite.faults`, copied to a separate folder: it imports neither checkout.

The environment names two JSON files. FAULT_TESTS lists the node ids to run, in order. FAULT_RESULT receives
the number of selected tests, the first failed test and the first collection error.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

AFTER_OTHERS = {"transactional_db", "live_server", "django_db_reset_sequences"}
_result: dict[str, int | str | None] = {"selected": 0, "failed": None, "error": None}


def _note(what: str, value: int | str) -> None:
    if not _result[what]:
        _result[what] = value
        Path(os.environ["FAULT_RESULT"]).write_text(json.dumps(_result))


def _empties_the_database(item: pytest.Item) -> bool:
    mark = item.get_closest_marker("django_db")
    return bool(mark and mark.kwargs.get("transaction")) or not AFTER_OTHERS.isdisjoint(
        getattr(item, "fixturenames", ())
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the listed tests in their order, with those that empty the database last, like pytest-django."""
    order = {
        name: place for place, name in enumerate(json.loads(Path(os.environ["FAULT_TESTS"]).read_text()))
    }
    kept = [item for item in items if item.nodeid in order]
    kept.sort(key=lambda item: (_empties_the_database(item), order[item.nodeid]))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in order])
    items[:] = kept
    _note("selected", len(kept))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _note("error", report.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _note("failed", report.nodeid)
