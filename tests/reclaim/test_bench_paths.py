"""The verdict benchmark uses production code: report, observation, pass."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from bench.reclaim import verdicts
from portal.reclaim import observing, passes, tasks
from portal.reclaim.engine import activity, ladder
from portal.workspaces import reports, results, services
from tests.reclaim.histories import recorded

pytestmark = pytest.mark.django_db
DECISION: tuple[Callable[..., Any], ...] = (
    tasks.observe_activity.run,
    tasks.reclaim.run,
    reports.activity_of,
    results.agent_heartbeat,
    observing.run,
    observing.report_of,
    observing.next_activity,
    activity.advance_clock,
    passes.run,
    passes.verdict_of,
    passes.apply_step_if_due,
    ladder.decide,
    services.stop,
)
"""From an agent's report to a stop."""
ENTRIES = {"activity_of", "agent_heartbeat"}
"""What the benchmark calls besides periodic tasks: the same as the agent's API."""


@contextmanager
def recording() -> Iterator[list[tuple[str, str]]]:
    """Yield a list of calls of portal functions: file and name, and the file of the caller."""
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and "/portal/" in code.co_filename and frame.f_back is not None:
            calls.append((f"{code.co_filename}:{code.co_qualname}", frame.f_back.f_code.co_filename))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def named(function: Callable[..., Any]) -> str:
    code = getattr(function, "__wrapped__", function).__code__
    return f"{code.co_filename}:{code.co_qualname}"


def test_bench_verdicts_use_production_functions(settings, sent):
    settings.BERTH_IDLE_GPU_MINUTES, settings.BERTH_RECLAIM_NOTICE_MINUTES = 10, 5
    histories = [each for each in recorded() if each.name in ("jupyter-quiet-kernel", "jupyter-training")]
    with recording() as calls:
        found = verdicts.run(histories, hours=0.3)
    assert {named(function) for function in DECISION} <= {name for name, _caller in calls}
    by_itself = {
        name.rpartition(":")[2]
        for name, caller in calls
        if caller == verdicts.__file__
        and any(room in name for room in ("/reclaim/", "/workspaces/reports", "/workspaces/results"))
        and "<" not in name
    }
    assert by_itself == ENTRIES
    quiet, training = found
    assert (quiet.works, quiet.warned, quiet.is_false) == (False, 1, False)
    assert quiet.stopped_s is not None and quiet.stopped_s >= 600
    assert (training.warned, training.stopped_s) == (0, None)
    text = verdicts.table(found, hours=0.3)
    assert "False warnings and stops: 0." in text
    assert quiet.back_s == 0.3 * 3600 - quiet.stopped_s
