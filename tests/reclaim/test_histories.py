"""Recorded sessions get the expected verdict under the default and a strict policy."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from portal.reclaim.engine.activity import WAITING_S
from portal.reclaim.engine.ladder import Policy
from tests.reclaim.histories import FOLDER, History, recorded
from tests.reclaim.recording.session import FALSELY_KEPT, KEPT, STOPPED, WAITS
from tests.reclaim.recording.sessions import BY_NAME, VARIANTS
from tests.reclaim.walking import walk
from tests.suite.choice import THOROUGH, quick_of

HOUR = 3600
POLICIES = {
    "default": Policy(gpu_idle_s=None, idle_s=2 * HOUR, notice_s=1800),
    "strict": Policy(gpu_idle_s=None, idle_s=900, notice_s=300),
}
SLACK_S = 300
"""Looks, passes and what is still going on when a recording ends."""
HISTORIES = recorded()
WALKED_FOR_LONG = [
    history
    for expected in (STOPPED, KEPT, WAITS, FALSELY_KEPT)
    for history in [each for each in HISTORIES if each.expected == expected and not each.jump_s][
        :: 1 if THOROUGH in os.environ else 4
    ]
]
"""Recordings that are walked for hours: all of them, or a quarter of each kind in `make test`."""
DOCS = Path(__file__).parents[2] / "docs" / "reclaim.md"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("history", HISTORIES, ids=lambda each: each.name)
def test_recorded_session_gets_the_expected_verdict(history: History, policy: str) -> None:
    rules = POLICIES[policy]
    limit_s = rules.idle_s or 0
    end_s = history.reports[-1][0]
    found = walk(history, rules, until_s=end_s + 2 * limit_s + SLACK_S)
    if history.expected == STOPPED:
        assert found.stopped_s is not None, f"kept by {sorted(found.signals)}"
        assert limit_s <= found.stopped_s - found.active_s <= limit_s + SLACK_S
        assert found.stopped_s - found.warned_s[-1] >= rules.notice_s
    else:
        assert history.expected in (KEPT, WAITS, FALSELY_KEPT)
        assert found.stopped_s is None, "stopped although it works"
        assert found.warned_s == []


@pytest.mark.slow("walks over many recordings for hours")
@pytest.mark.parametrize("policy", quick_of(POLICIES, ["strict"], "the strict one waits as long"))
def test_only_waiting_commands_stop_after_hours_without_other_work(policy: str) -> None:
    rules = POLICIES[policy]
    limit_s = WAITING_S + (rules.idle_s or 0)
    stopped, waiting = set(), set()
    for history in WALKED_FOR_LONG:
        if history.expected not in (KEPT, WAITS):
            continue
        found = walk(history, rules, until_s=history.reports[-1][0] + limit_s + SLACK_S)
        if found.stopped_s is not None:
            assert limit_s <= found.stopped_s
            stopped.add(history.name)
        if history.expected == WAITS and "jobs_cpu_seconds" in history.reports[-1][1]:
            waiting.add(history.name)
    # Older agents did not measure the usage of commands.
    assert stopped == waiting
    assert len(waiting) >= (10 if THOROUGH in os.environ else 3)


@pytest.mark.slow("walks over all recordings")
@pytest.mark.parametrize(
    ("pause_s", "stops"),
    quick_of(
        [(300, True), (900, False)], [(300, True)], "bounds have quick tests of the engine", several=True
    ),
)
def test_hourly_pauses_of_a_node_change_no_verdict(pause_s: int, stops: bool) -> None:
    """The node is silent before the 50th minute of each hour. Active work is kept in any case."""
    rules = POLICIES["default"]
    verdicts: dict[str, set[bool]] = {}
    for history in WALKED_FOR_LONG:
        found = walk(
            history,
            rules,
            until_s=4 * HOUR,
            lost=lambda at_s: 3000 - pause_s <= at_s % HOUR < 3000,
        )
        verdicts.setdefault(history.expected, set()).add(found.stopped_s is not None)
        assert history.expected == STOPPED or found.warned_s == [], history.name
    assert verdicts == {STOPPED: {stops}, KEPT: {False}, WAITS: {False}, FALSELY_KEPT: {False}}


def test_recordings_are_complete_and_name_their_test_doubles() -> None:
    names = {each.name for each in HISTORIES}
    assert len(names) >= 40
    assert {each.template for each in HISTORIES} == {"jupyterlab", "marimo", "vscode"}
    assert names <= {*BY_NAME, *(each.name for each in VARIANTS)}
    for path in FOLDER.glob("*.jsonl"):
        head = path.read_text().partition("\n")[0]
        assert "Stood in: GPU utilisation" in head
        assert '"software": {"' in head
    assert sum(path.stat().st_size for path in FOLDER.glob("*.jsonl")) < 1_000_000


def test_false_keeps_are_listed_in_the_documentation() -> None:
    listed = set(re.findall(r"`([a-z-]+)`", DOCS.read_text()))
    assert {each.name for each in HISTORIES if each.expected == FALSELY_KEPT} <= listed


@pytest.mark.parametrize("name", ["traffic-upload", "traffic-download"])
def test_file_transfer_shows_only_as_traffic(name: str) -> None:
    (history,) = (each for each in HISTORIES if each.name == name)
    found = walk(history, POLICIES["strict"], until_s=HOUR)
    assert found.signals == {"traffic"}
    # Without that figure, for example from an older agent, this would not be detected.
    uncounted = replace(
        history,
        reports=[
            (at, {key: value for key, value in figures.items() if key != "traffic_bytes"})
            for at, figures in history.reports
        ],
    )
    assert walk(uncounted, POLICIES["strict"], until_s=HOUR).stopped_s is not None


def test_open_tabs_and_connections_are_recorded_with_their_traffic() -> None:
    quiet = [each for each in HISTORIES if each.name.startswith("traffic-") and each.expected == STOPPED]
    assert {each.template for each in quiet} == {"jupyterlab", "marimo", "vscode"}
    for each in quiet:
        assert isinstance(each.reports[-1][1]["traffic_bytes"], int)
        assert each.reports[-1][1]["connections"] is not None
