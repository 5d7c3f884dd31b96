"""Recorded sessions through the portal: heartbeats, observations and passes, as production calls them.

Each session of `tests/reclaim/recorded` is one running workspace with one GPU of its own. Once a minute its
newest heartbeat goes through `reports.activity_of` and `results.agent_heartbeat`, as the agent's API does.
The periodic tasks `observe_activity` (every minute) and `reclaim` (every 30 s) run by the site's settings.
The audit log shows the warnings. After its end a recording repeats its last minute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import time_machine

from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event
from portal.reclaim import observing, passes, tasks
from portal.workspaces import reports, results
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests.reclaim.histories import Figures, History
from tests.reclaim.recording.session import KEPT
from tests.reclaim.walking import with_gpu

HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of one session, in seconds since its first report. `stopped_s` is None if it was kept.

    `idle_s` is its idle time by the ground truth, and `back_s` the part in which its GPU was given back.
    """

    name: str
    works: bool
    warned: int
    stopped_s: float | None
    idle_s: float
    back_s: float

    @property
    def is_false(self) -> bool:
        """Whether a session at work was warned or stopped."""
        return self.works and (self.warned > 0 or self.stopped_s is not None)


def run(histories: Sequence[History], *, hours: float) -> list[Result]:
    """Walk through all histories, grouped by their change of the clock. Writes to the database."""
    from bench.admission.site import build

    build(8 * (len(histories) // 8 + 2), len(histories), 0)
    workspaces = list(Workspace.objects.filter(state=State.RUNNING).order_by("name"))
    began_at = max(history.began_at for history in histories)
    ordered = sorted(histories, key=lambda history: history.jump_s)
    results: list[Result] = []
    while ordered:
        jump_s = ordered[0].jump_s
        group = [history for history in ordered if history.jump_s == jump_s]
        ordered = ordered[len(group) :]
        taken, workspaces = workspaces[: len(group)], workspaces[len(group) :]
        results += _walk(dict(zip((row.pk for row in taken), group, strict=True)), began_at, hours * HOUR_S)
        # The next group begins after the last time written by this one.
        began_at += timedelta(hours=2 * hours + 24)
    return sorted(results, key=lambda result: result.name)


def _walk(histories: dict[Any, History], began_at: datetime, until_s: float) -> list[Result]:
    with time_machine.travel(began_at, tick=False) as clock:
        _prepare(histories, began_at)
        streams = {pk: _Stream(with_gpu(history, until_s)) for pk, history in histories.items()}
        stopped: dict[Any, float] = {}
        jump_s = next(iter(histories.values())).jump_s
        jump_at_s = max(history.reports[-1][0] for history in histories.values()) / 2
        for step in range(int(until_s / passes.INTERVAL_S) + 1):
            elapsed_s = step * passes.INTERVAL_S
            clock.move_to(began_at + timedelta(seconds=elapsed_s + (jump_s if elapsed_s >= jump_at_s else 0)))
            if elapsed_s % observing.INTERVAL_S == 0:
                for pk, stream in streams.items():
                    figures = stream.newest(elapsed_s)
                    if pk not in stopped and figures is not None:
                        activity = reports.activity_of({"activity": figures}, workspace_id=pk)
                        results.agent_heartbeat(workspace_id=pk, generation=1, activity=activity)
                tasks.observe_activity()
            tasks.reclaim()
            ended = Workspace.objects.filter(pk__in=histories).exclude(state=State.RUNNING)
            for pk in ended.values_list("pk", flat=True):
                stopped.setdefault(pk, elapsed_s)
    return [_result(pk, history, stopped.get(pk), until_s) for pk, history in histories.items()]


def _prepare(histories: dict[Any, History], began_at: datetime) -> None:
    """Set the recorded app of all these workspaces, ready since `began_at` and without an end time."""
    from portal.catalog.models import Template

    templates = {
        history.template: Template.objects.get_or_create(
            slug=f"recorded-{history.template}",
            defaults={"name": history.template, "argv": ["true"], "activity": history.activity},
        )[0]
        for history in histories.values()
    }
    for pk, history in histories.items():
        Workspace.objects.filter(pk=pk).update(
            name=history.name,
            template=templates[history.template],
            ready_at=began_at,
            ends_at=None,
            lifetime_s=None,
        )


class _Stream:
    """The reports of a workspace, read as time advances."""

    def __init__(self, reports_of: Iterator[tuple[float, Figures]]) -> None:
        self._reports = reports_of
        self._next = next(reports_of, None)

    def newest(self, until_s: float) -> Figures | None:
        """Return the last report up to `until_s` that was not returned before, or None."""
        newest = None
        while self._next is not None and self._next[0] <= until_s:
            newest, self._next = self._next[1], next(self._reports, None)
        return newest


def _result(pk: Any, history: History, stopped_s: float | None, until_s: float) -> Result:
    works = history.expected == KEPT
    idle_s = 0.0 if works else until_s - history.reports[-1][0]
    warned = Event.objects.filter(workspace=pk, kind=AuditKind.WORKSPACE_RECLAIM_WARNED).count()
    back_s = 0.0 if works or stopped_s is None else until_s - stopped_s
    return Result(history.name, works, warned, stopped_s, idle_s, back_s)


def false_stops(results_: Sequence[Result]) -> int:
    """Return how many sessions at work were warned or stopped."""
    return sum(result.is_false for result in results_)


def table(results_: Sequence[Result], *, hours: float) -> str:
    """Return the results as a Markdown table with totals in GPU-hours."""
    lines = ["| session | truth | verdict | idle | given back |", "|---|---|---|---|---|"]
    for result in results_:
        verdict = "kept" if result.stopped_s is None else f"stopped after {result.stopped_s / HOUR_S:.1f} h"
        if result.is_false:
            verdict += ", **false**"
        truth = "work" if result.works else "idle"
        idle, back = (
            f"{seconds / HOUR_S:.1f}" if not result.works else ""
            for seconds in (result.idle_s, result.back_s)
        )
        lines.append(f"| `{result.name}` | {truth} | {verdict} | {idle} | {back} |")
    idle_h = sum(result.idle_s for result in results_) / HOUR_S
    back_h = sum(result.back_s for result in results_) / HOUR_S
    share = f"{100 * back_h / idle_h:.0f} %" if idle_h else "no idle time"
    return "\n".join(
        [
            *lines,
            "",
            f"{len(results_)} sessions, each left open for {hours:g} h, one GPU each, default settings.",
            f"Idle: {idle_h:,.0f} GPU-hours; given back: {back_h:,.0f} ({share}).",
            f"False warnings and stops: {false_stops(results_)}.",
        ]
    )
