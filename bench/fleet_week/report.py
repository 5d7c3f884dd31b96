"""What the portal did about each fault, read from its own audit log."""

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
    """A device out of placement, and what took it out."""

    uuid: str
    from_s: float
    channel: str
    until_s: float | None = None
    case: Case | None = None


def outages(week: Week) -> list[Outage]:
    """In the order of their beginnings; that of a device which is out already is the same one."""
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
    found: list[Outage] = []
    open_: dict[str, Outage] = {}
    rows = Event.objects.filter(kind__in=[*OUT, *IN]).order_by("pk").values_list("kind", "at", "data")
    for kind, at, data in rows:
        for uuid in data.get("devices") or [data["device"]]:
            seconds = _since(at)
            if kind in IN:
                # A device that is in the inventory again is out until its check has passed.
                if uuid in open_ and (
                    kind == AuditKind.DEVICE_UNCORDONED or open_[uuid].channel == INVENTORY
                ):
                    open_.pop(uuid).until_s = seconds
                continue
            if uuid in open_:
                continue
            channel = INVENTORY if kind == AuditKind.DEVICE_DISAPPEARED else by_run.get((uuid, at), WATCHER)
            outage = open_[uuid] = Outage(uuid, seconds, channel)
            outage.case = next((each for each in cases[uuid] if _lasts(each, seconds)), None)
            found.append(outage)
    return found


def _since(at: datetime) -> float:
    return (at - START).total_seconds()


def _lasts(case: Case, at_s: float) -> bool:
    return case.at_s <= at_s and (case.ended_s is None or at_s <= case.ended_s)


def summary(week: Week) -> dict[str, Any]:
    """The figures of a week, plain enough for JSON."""
    outs = outages(week)
    first: dict[int, Outage] = {}
    for out in outs:
        if out.case is not None:
            first.setdefault(id(out.case), out)
    end_s = week.days * 24 * HOUR_S
    gpu_h = week.devices * week.days * 24
    wrong = [out for out in outs if out.case is None]
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
        "wrong_by_channel": dict(Counter(out.channel for out in wrong)),
        "missed": len(week.cases) - len(first),
        "classes": [_of_class(each.name, week, first) for each in CLASSES],
        "all_hours": _hours((first[id(c)].from_s - c.at_s) for c in week.cases if id(c) in first),
        "checks": dict(week.checks),
        "degraded_reports": len(degraded),
        "gpu_hours": round(gpu_h),
        "gpu_hours_of_checks": round(checked_h, 1),
        "checks_percent": round(100 * checked_h / gpu_h, 4),
        "scrubs_percent": round(100 * week.check_s["scrub"] / HOUR_S / gpu_h, 4),
        "gpu_hours_lost_to_wrong_cordons": round(
            sum((out.until_s or end_s) - out.from_s for out in wrong) / HOUR_S, 1
        ),
        "gpu_hours_of_work": round(week.work_gpu_s / HOUR_S),
        "gpu_hours_of_work_on_bad_devices": round(sum(week.bad_work_gpu_s.values()) / HOUR_S, 1),
    }


def _of_class(name: str, week: Week, first: dict[int, Outage]) -> dict[str, Any]:
    its = [case for case in week.cases if case.what == name]
    found = [first[id(case)] for case in its if id(case) in first]
    return {
        "class": name,
        "faults": len(its),
        "found": len(found),
        "channels": dict(Counter(out.channel for out in found).most_common()),
        "hours": _hours((first[id(case)].from_s - case.at_s) for case in its if id(case) in first),
        "bad_work_gpu_hours": round(week.bad_work_gpu_s[name] / HOUR_S, 1),
    }


def _hours(seconds: Iterable[float]) -> dict[str, float] | None:
    """Median, 90 % and longest, in hours."""
    ranked = sorted(each / HOUR_S for each in seconds)
    if not ranked:
        return None
    at = lambda part: round(ranked[min(len(ranked) - 1, int(part * len(ranked)))], 3)  # noqa: E731
    return {"median": at(0.5), "p90": at(0.9), "longest": round(ranked[-1], 3)}


def table(found: dict[str, Any]) -> str:
    """For people, in the style of docs/measurements.md."""
    lines = [
        f"{found['devices']} devices, {found['days']:g} days, {found['sessions']} sessions, "
        f"{found['faults']} faults: {found['cordoned_rightly']} cordoned rightly, "
        f"{found['cordoned_wrongly']} wrongly {found['wrong_by_channel'] or ''}, {found['missed']} not found",
        "",
        "| fault | faults | found | by | hours: median | 90 % | longest | GPU-hours of work on it |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in found["classes"]:
        by = ", ".join(f"{name} {count}" for name, count in each["channels"].items())
        lines.append(
            f"| {each['class']} | {each['faults']} | {each['found']} | {by} | {_cells(each['hours'])} | "
            f"{each['bad_work_gpu_hours']} |"
        )
    lines += [
        "",
        f"checks {found['checks']}: {found['gpu_hours_of_checks']} GPU-hours, "
        f"{found['checks_percent']} % (scrubs besides: {found['scrubs_percent']} %)",
        f"lost to wrong cordons: {found['gpu_hours_lost_to_wrong_cordons']} GPU-hours; of "
        f"{found['gpu_hours_of_work']} GPU-hours of work {found['gpu_hours_of_work_on_bad_devices']} on bad "
        f"devices; {found['application_xids']} XIDs of applications; {found['degraded_reports']} reports of "
        "degraded devices",
    ]
    return "\n".join(lines)


def _cells(hours: dict[str, float] | None) -> str:
    names: Sequence[str] = ("median", "p90", "longest")
    return " | ".join("–" if hours is None else f"{hours[name]:g}" for name in names)
