"""Replay a recorded history through the portal's observation and reclaim decisions, without a database.

`observing.report_of` and `observing.next_activity` read the reports once a minute, including their rows.
Every 30 seconds `decide` returns due actions, and notices are stored as by a pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from portal.reclaim.engine.ladder import Notice, Policy, RunState, Step, decide
from portal.reclaim.observing import (
    INTERVAL_S,
    ActivityRecord,
    HeartbeatFigures,
    ObservedActivity,
    is_fresh,
    next_activity,
    report_of,
)
from portal.reclaim.passes import MIN_OUTAGE_S
from portal.workspaces.results import gpus_idle
from tests.reclaim.histories import Figures, History

PASS_S = 30.0
WORKSPACE = UUID(int=1)


@dataclass
class Outcome:
    """Seconds since the first report in real time, not by a changed clock.

    `active_s` is the last time a signal was active or unobserved; `signals` are those active in the second
    half of the walk.
    """

    warned_s: list[float] = field(default_factory=list)
    stopped_s: float | None = None
    active_s: float = 0.0
    signals: set[str] = field(default_factory=set)


@dataclass
class Portal:
    """The portal's state of one workspace."""

    heartbeat_at: datetime | None = None
    gpu_idle_since: datetime | None = None
    seen: HeartbeatFigures = field(default_factory=HeartbeatFigures)
    row: ObservedActivity | None = None

    def receive(self, figures: Figures, now: datetime) -> None:
        """As in `results.agent_heartbeat`."""
        self.heartbeat_at = now
        self.seen = msgspec.json.decode(json.dumps(figures), type=HeartbeatFigures)
        since = self.gpu_idle_since
        self.gpu_idle_since = (min(since or now, now)) if gpus_idle(figures) else None

    def look(self, activity: str) -> None:
        """As in `observing.run`."""
        if self.heartbeat_at is None:
            return
        record = None
        if self.row is not None:
            row = self.row
            record = ActivityRecord(row.generation, row.idle_s, row.gpu_idle_s, row.active, row.report)
        report = report_of(True, activity, self.heartbeat_at, self.seen, self.gpu_idle_since)
        self.row = next_activity(WORKSPACE, 1, record, report) or self.row

    def run_state(self, now: datetime) -> RunState:
        """As in `passes.run_state_of`, for a workspace without an end."""
        row = self.row
        if row is None or not is_fresh(row.observed_at, now):
            return RunState()
        return RunState(idle_s=row.idle_s, gpu_idle_s=row.gpu_idle_s)


def walk(
    history: History, policy: Policy, *, until_s: float, lost: Callable[[float], bool] = lambda _at_s: False
) -> Outcome:
    """Return the portal's decisions on a workspace with that history and one GPU.

    `lost` selects reports that do not arrive, by time.
    """
    outcome, portal, notice = Outcome(), Portal(), None
    reports = (report for report in with_gpu(history, until_s) if not lost(report[0]))
    following = next(reports, None)
    last_pass: datetime | None = None
    jump_at_s = history.reports[-1][0] / 2
    elapsed_s = 0.0
    while elapsed_s <= until_s:
        while following is not None and following[0] <= elapsed_s:
            portal.receive(following[1], _clock(history, following[0], jump_at_s))
            following = next(reports, None)
        now = _clock(history, elapsed_s, jump_at_s)
        if elapsed_s % INTERVAL_S == 0:
            portal.look(history.activity)
            if portal.row is None or portal.row.idle_s == 0:
                outcome.active_s = elapsed_s
            if portal.row is not None and portal.row.active and elapsed_s > until_s / 2:
                outcome.signals.update(portal.row.active.split(","))
        away = now - last_pass if last_pass is not None else timedelta(0)
        if notice is not None and not 0 <= away.total_seconds() <= MIN_OUTAGE_S:
            notice = replace(notice, due_at_s=notice.due_at_s + away.total_seconds())
        last_pass = now
        verdict = decide(portal.run_state(now), policy, notice, now.timestamp())
        if verdict.step is Step.WARN:
            assert verdict.cause is not None
            assert verdict.due_at_s is not None
            notice = Notice(verdict.cause, now.timestamp(), verdict.due_at_s)
            outcome.warned_s.append(elapsed_s)
        elif verdict.step is Step.WITHDRAW:
            notice = None
        elif verdict.step is Step.STOP:
            outcome.stopped_s = elapsed_s
            return outcome
        elapsed_s += PASS_S
    return outcome


def with_gpu(history: History, until_s: float) -> Iterator[tuple[float, Figures]]:
    """Return the reports with the utilisation of a simulated GPU. A report without figures is unchanged."""
    gpus = [{"uuid": "GPU-simulated", "utilization_percent": history.gpu_percent}]
    for at_s, figures in history.prolonged(until_s):
        yield at_s, {**figures, "gpus": gpus} if figures else figures


def _clock(history: History, elapsed_s: float, jump_at_s: float) -> datetime:
    """Return the time shown by the portal clock."""
    jump_s = history.jump_s if elapsed_s >= jump_at_s else 0
    return history.began_at.astimezone(UTC) + timedelta(seconds=elapsed_s + jump_s)
