"""Recorded histories of real sessions, and how the portal's own code reads them.

A history contains the reports of one workspace's agent as stored by the portal. Each report keeps only what
has changed since the previous one.

Two parts are simulated, as each file states: the utilisation of a GPU, which the recording machine did not
have, and the time after the end of the recording, which repeats its last minute. A source that was silent at
the end stays silent. `jump_s` changes the portal's clock in the middle.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("recorded")
NOTE = (
    "Figures are as the portal stored them. Stood in: GPU utilisation (gpu_percent, in every report), and "
    "what follows the recording, which is its last minute again."
)
ACTIVITIES = {"jupyterlab": "jupyter", "marimo": "marimo", "vscode": "code-server"}
TAIL_S = 60.0
SILENT_S = 30.0
"""A source that has sent nothing for this long at the end of the recording sends nothing more."""
STAMPED = ("kernels", "terminals")
COUNTED = (
    *("cpu_seconds", "traffic_bytes"),
    *("jobs_cpu_seconds", "jobs_io_bytes", "kernels_cpu_seconds", "kernels_io_bytes"),
    *("monitors_cpu_seconds", "editor_cpu_seconds"),
)
Figures = dict[str, Any]


@dataclass(frozen=True)
class History:
    """`reports` are (seconds since the first, figures); recorded for `lasted_s`."""

    name: str
    done: str
    template: str
    software: dict[str, str]
    recorded_at: str
    gpu_percent: int
    expected: str
    lasted_s: float
    reports: list[tuple[float, Figures]] = field(repr=False)
    jump_s: int = 0

    @property
    def activity(self) -> str:
        return ACTIVITIES[self.template]

    @property
    def began_at(self) -> datetime:
        return datetime.fromisoformat(self.recorded_at)

    def with_jump(self, name: str, done: str, jump_s: int) -> History:
        return replace(self, name=name, done=done, jump_s=jump_s)

    def write(self, folder: Path) -> None:
        head = {key: value for key, value in asdict(self).items() if key != "reports"}
        lines = [json.dumps({**head, "note": NOTE, "jump_is_stood_in": bool(self.jump_s)})]
        before: Figures = {}
        for at, figures in self.reports:
            changed = {
                key: value for key, value in figures.items() if key not in before or before[key] != value
            }
            lines.append(json.dumps([at, changed], separators=(",", ":")))
            before = figures
        (folder / f"{self.name}.jsonl").write_text("\n".join(lines) + "\n")

    @classmethod
    def read(cls, path: Path) -> History:
        first, *rest = path.read_text().splitlines()
        head = json.loads(first)
        reports: list[tuple[float, Figures]] = []
        figures: Figures = {}
        for line in rest:
            at, changed = json.loads(line)
            figures = {**figures, **changed}
            reports.append((at, figures))
        fields = {key: head[key] for key in cls.__dataclass_fields__ if key != "reports"}
        return cls(reports=reports, **fields)

    def prolonged(self, until_s: float) -> Iterator[tuple[float, Figures]]:
        """Return the reports, with the last minute repeated until then: counters and times continue."""
        yield from self.reports
        last_s = self.reports[-1][0]
        if self.lasted_s - last_s > SILENT_S:
            return
        begin = max(index for index, (at, _figures) in enumerate(self.reports) if at <= last_s - TAIL_S)
        (base_s, base), tail = self.reports[begin], self.reports[begin + 1 :]
        used = {name: _grown(name, base, tail[-1][1]) for name in COUNTED}
        repetition_start = self.began_at + timedelta(seconds=base_s)
        stamps = {name: (tail[-1][1].get(name) or {}).get("last_activity") for name in STAMPED}
        for repetition in range(1, int(until_s / TAIL_S) + 1):
            for at, figures in tail:
                shift_s = repetition * (last_s - base_s)
                if at + shift_s > until_s:
                    return
                yield (
                    at + shift_s,
                    _shifted(figures, last_s - base_s, repetition, used, repetition_start, stamps),
                )


def _grown(name: str, before: Figures, after: Figures) -> float:
    """Return the growth of a counter, or nothing if it was not measured."""
    first, last = before.get(name), after.get(name)
    return 0 if first is None or last is None else last - first


def _shifted(
    figures: Figures,
    by_s: float,
    repetition: int,
    used: dict[str, float],
    repetition_start: datetime,
    stamps: dict[str, str | None],
) -> Figures:
    """Return the figures shifted by that many repetitions.

    Times within the repeated minute move on with it; older ones are those of the previous repetition
    (`stamps`, at the end) or stay.
    """
    shifted = dict(figures)
    for name, grown in used.items():
        if shifted.get(name) is not None:
            shifted[name] = round(shifted[name] + repetition * grown, 2)
    for name in STAMPED:
        stamp, times = (shifted.get(name) or {}).get("last_activity"), repetition
        if stamp and datetime.fromisoformat(stamp) < repetition_start:
            stamp, times = stamps[name], repetition - 1
        if stamp and datetime.fromisoformat(stamp) >= repetition_start:
            later = datetime.fromisoformat(stamp) + timedelta(seconds=times * by_s)
            shifted[name] = {**shifted[name], "last_activity": later.isoformat()}
    edited = shifted.get("edited_at")
    if edited and datetime.fromisoformat(edited) >= repetition_start:
        shifted["edited_at"] = (
            datetime.fromisoformat(edited) + timedelta(seconds=repetition * by_s)
        ).isoformat()
    return shifted


def recorded() -> list[History]:
    return [History.read(path) for path in sorted(FOLDER.glob("*.jsonl"))]
