"""The portal's reaction to each fault, read from its audit log."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bench.fleet_week.faults import CLASSES
from bench.fleet_week.run import HOUR_S, START, Case, Week
from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event
from portal.gpu_checks.models import CheckKind, GpuCheckRun, RunState

OUT = (AuditKind.DEVICE_CORDONED, AuditKind.DEVICE_DISAPPEARED)
IN = (AuditKind.DEVICE_UNCORDONED, AuditKind.DEVICE_RETURNED)
WATCHER, INVENTORY = "watcher", "inventory"


@dataclass(slots=True)
class Outage:
    """A period in which a device was out of placement, and its cause."""

    uuid: str
    from_s: float
    channel: str
    until_s: float | None = None
    case: Case | None = None


def outages(week: Week) -> list[Outage]:
    """Return outages by their beginning. A device that is already out continues its outage."""
    runs = GpuCheckRun.objects.filter(state=RunState.DONE, verdict__in=["fail", "hung", "inconclusive"])
    by_run = {
        (uuid, finished): f"{level if kind == CheckKind.CHECK else 'scrub'} ({cause})"
        for uuid, finished, kind, level, cause in runs.values_list(
            "device__uuid", "finished_at", "kind", "level", "cause"
        )
    }
    cases: dict[str, list[Case]] = defaultdict(list)
    for case in week.cases:
        cases[case.uuid].append(case)
    result: list[Outage] = []
    open_: dict[str, Outage] = {}
    rows = Event.objects.filter(kind__in=[*OUT, *IN]).order_by("pk").values_list("kind", "at", "data")
    for kind, at, data in rows:
        for uuid in data.get("devices") or [data["device"]]:
            seconds = _since(at)
            if kind in IN:
                # A device that returns to the inventory stays out of placement until its check has passed.
                if uuid in open_ and (
                    kind == AuditKind.DEVICE_UNCORDONED or open_[uuid].channel == INVENTORY
                ):
                    open_.pop(uuid).until_s = seconds
                continue
            if uuid in open_:
                continue
            channel = INVENTORY if kind == AuditKind.DEVICE_DISAPPEARED else by_run.get((uuid, at), WATCHER)
            outage = open_[uuid] = Outage(uuid, seconds, channel)
            outage.case = next((case for case in cases[uuid] if _lasts(case, seconds)), None)
            result.append(outage)
    return result


def _since(at: datetime) -> float:
    return (at - START).total_seconds()


def _lasts(case: Case, at_s: float) -> bool:
    return case.at_s <= at_s and (case.ended_s is None or at_s <= case.ended_s)


def summary(week: Week) -> dict[str, Any]:
    """Return the figures of a week as plain values for JSON."""
    outs = outages(week)
    first: dict[int, Outage] = {}
    for outage in outs:
        if outage.case is not None:
            first.setdefault(id(outage.case), outage)
    end_s = week.days * 24 * HOUR_S
    gpu_h = week.devices * week.days * 24
    wrong = [outage for outage in outs if outage.case is None]
    degraded = Event.objects.filter(kind=AuditKind.DEVICE_CHECK_DEGRADED).values_list("data", flat=True)
    checked_h = sum(s for name, s in week.check_s.items() if name != "scrub") / HOUR_S
    return {
        "devices": week.devices,
        "days": week.days,
        "sessions": week.sessions,
        "application_xids": week.application_xids,
        "faults": len(week.cases),
        "cordoned_rightly": len(first),
        "cordoned_wrongly": len(wrong),
        "wrong_by_channel": dict(Counter(outage.channel for outage in wrong)),
        "missed": len(week.cases) - len(first),
        "classes": [_of_class(fault.name, week, first) for fault in CLASSES],
        "all_hours": _hours((first[id(c)].from_s - c.at_s) for c in week.cases if id(c) in first),
        "checks": dict(week.checks),
        "degraded_reports": len(degraded),
        "gpu_hours": round(gpu_h),
        "gpu_hours_of_checks": round(checked_h, 1),
        "checks_percent": round(100 * checked_h / gpu_h, 4),
        "scrubs_percent": round(100 * week.check_s["scrub"] / HOUR_S / gpu_h, 4),
        "gpu_hours_lost_to_wrong_cordons": round(
            sum((outage.until_s or end_s) - outage.from_s for outage in wrong) / HOUR_S, 1
        ),
        "gpu_hours_of_work": round(week.work_gpu_s / HOUR_S),
        "gpu_hours_of_work_on_bad_devices": round(sum(week.bad_work_gpu_s.values()) / HOUR_S, 1),
    }


def _of_class(name: str, week: Week, first: dict[int, Outage]) -> dict[str, Any]:
    cases = [case for case in week.cases if case.fault == name]
    outs = [first[id(case)] for case in cases if id(case) in first]
    return {
        "class": name,
        "faults": len(cases),
        "found": len(outs),
        "channels": dict(Counter(outage.channel for outage in outs).most_common()),
        "hours": _hours((first[id(case)].from_s - case.at_s) for case in cases if id(case) in first),
        "bad_work_gpu_hours": round(week.bad_work_gpu_s[name] / HOUR_S, 1),
    }


def _hours(seconds: Iterable[float]) -> dict[str, float] | None:
    """Return the median, the 90th percentile and the longest, in hours; None without values."""
    ranked = sorted(duration_s / HOUR_S for duration_s in seconds)
    if not ranked:
        return None
    at = lambda part: round(ranked[min(len(ranked) - 1, int(part * len(ranked)))], 3)  # noqa: E731
    return {"median": at(0.5), "p90": at(0.9), "longest": round(ranked[-1], 3)}


def table(facts: dict[str, Any]) -> str:
    """Return the figures as Markdown, in the style of docs/measurements.md."""
    lines = [
        f"{facts['devices']} devices, {facts['days']:g} days, {facts['sessions']} sessions, "
        f"{facts['faults']} faults: {facts['cordoned_rightly']} cordoned rightly, "
        f"{facts['cordoned_wrongly']} wrongly {facts['wrong_by_channel'] or ''}, {facts['missed']} not found",
        "",
        "| fault | faults | found | by | hours: median | 90 % | longest | GPU-hours of work on it |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in facts["classes"]:
        by = ", ".join(f"{name} {count}" for name, count in row["channels"].items())
        lines.append(
            f"| {row['class']} | {row['faults']} | {row['found']} | {by} | {_cells(row['hours'])} | "
            f"{row['bad_work_gpu_hours']} |"
        )
    lines += [
        "",
        f"checks {facts['checks']}: {facts['gpu_hours_of_checks']} GPU-hours, "
        f"{facts['checks_percent']} % (scrubs besides: {facts['scrubs_percent']} %)",
        f"lost to wrong cordons: {facts['gpu_hours_lost_to_wrong_cordons']} GPU-hours; of "
        f"{facts['gpu_hours_of_work']} GPU-hours of work {facts['gpu_hours_of_work_on_bad_devices']} on bad "
        f"devices; {facts['application_xids']} XIDs of applications; {facts['degraded_reports']} reports of "
        "degraded devices",
    ]
    return "\n".join(lines)


def _cells(hours: dict[str, float] | None) -> str:
    names: Sequence[str] = ("median", "p90", "longest")
    return " | ".join("–" if hours is None else f"{hours[name]:g}" for name in names)
