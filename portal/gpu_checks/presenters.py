"""Presenters of checks and scrubs: texts, measured values with their limits, and trends."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from portal.common.formatting import format_number
from portal.common.svg import Sparkline, sparkline
from portal.fleet.inventory.cordons import display_name
from portal.fleet.inventory.models import CheckLevel, Device
from portal.gpu_checks import resets, selectors
from portal.gpu_checks.kinds.looks import RepeatForm, StateBadge
from portal.gpu_checks.kinds.registry import handler_of
from portal.gpu_checks.models import CheckVerdict, GpuCheckRun, RunState
from portal.people.accounts.models import User
from provisioning.gpu.check import joint_load
from provisioning.gpu.check.thresholds import ALL_PAIRS, JOINT
from provisioning.gpu.check.types import Status

RUNS_SHOWN = 8

RECOVERY: Mapping[str, str | Promise] = {
    "retry": _("Check the device again. The problem may be temporary."),
    "inspect": _("Check the machine as described in the report below."),
    "reset": _("Stop all work on the GPU, then reset it on its page. A check follows."),
    "drain_and_reset": _("Drain the node, then reset the GPU on its page. A check follows."),
    "reboot": _("Drain and reboot the node, then check the device again."),
    "replace": _("Replace the device. It stays out of service until then."),
}
"""How to recover a device, by `provisioning.gpu.check.Action`."""

_LOOKS: Mapping[str, tuple[str | Promise, str, str]] = {
    CheckVerdict.PASS: (_("Passed"), "circle-check", "ok"),
    CheckVerdict.DEGRADED: (_("Degraded"), "alert-triangle", "wait"),
    CheckVerdict.FAIL: (_("Failed"), "circle-x", "bad"),
    CheckVerdict.INCONCLUSIVE: (_("Inconclusive"), "circle-dashed", "wait"),
    CheckVerdict.HUNG: (_("Hung"), "alert-circle", "bad"),
    RunState.QUEUED: (_("Queued"), "hourglass", "wait"),
    RunState.RUNNING: (_("Running"), "loader-2", "busy"),
    RunState.LOST: (_("Not finished"), "circle-off", ""),
}
_STATUS_LOOKS: Mapping[str, tuple[str | Promise, str, str]] = {
    "passed": (_("Passed"), "circle-check", "ok"),
    "warned": (_("Low"), "alert-triangle", "wait"),
    "failed": (_("Failed"), "circle-x", "bad"),
    "measured": (_("Measured"), "circle-dashed", ""),
    "skipped": (_("Not run"), "circle-off", "wait"),
    "hung": (_("Hung"), "alert-circle", "bad"),
}
_SEVERITY_LOOKS: Mapping[str, tuple[str | Promise, str, str]] = {
    "info": (_("Note"), "info-circle", ""),
    "degraded": (_("Warning"), "alert-triangle", "wait"),
    "inconclusive": (_("Inconclusive"), "circle-dashed", "wait"),
    "fail": (_("Failed"), "circle-x", "bad"),
    "hung": (_("Hung"), "alert-circle", "bad"),
}
_TESTS: Mapping[str, str | Promise] = {
    "canary": _("Canary: detection of planted errors"),
    "residue": _("Leftover data, cleared and verified"),
    "address": _("Address test of all memory"),
    "copy": _("Memory copy"),
    "pcie": _("PCIe under load"),
    "inversions": _("Moving inversions"),
    "bandwidth": _("Memory bandwidth"),
    "peers": _("Links to other GPUs"),
    "all_pairs": _("All links of these GPUs at once"),
    "joint_burn": _("Full load on all of these GPUs"),
    "two_nodes": _("Sums with another node, compared bit by bit"),
    "modulo20": _("Modulo-20 patterns"),
    "bit_fade": _("Bit fade"),
    "steady": _("Steady full load"),
    "power_steps": _("Power steps, idle to full"),
    "all_reduce": _("Sums over several GPUs"),
    "functions": _("Special functions"),
    "atomics": _("Atomic operations"),
    "shared_memory": _("Shared memory"),
    "caches": _("L1 and L2 caches"),
}
_METRICS: Mapping[str, str | Promise] = {
    "copy_gb_s": _("Memory copy"),
    "read_gb_s": _("Memory read"),
    "write_gb_s": _("Memory write"),
    "to_device_gb_s": _("PCIe to the device"),
    "to_host_gb_s": _("PCIe to the host"),
    "both_ways_gb_s": _("PCIe both ways at once"),
    "between_nodes_gb_s": _("Link between the nodes"),
    "free_mib": _("Free memory"),
    "nvlinks_up": _("NVLinks up"),
    "retired_memory": _("Retired memory pages or rows"),
    "coverage_per_mille": _("Memory covered"),
    "functions_gop_s": _("Special functions"),
    "atomics_gop_s": _("Atomic operations"),
    "shared_gb_s": _("Shared memory"),
    "l2_gb_s": _("L2 cache"),
}
_SUMS = re.compile(r"all_reduce_bus_gb_s:(\d+):(\d+(?:\.\d+)*)")
_BY_PATTERN = re.compile(
    rf"gemm_[a-z0-9]+(_own|_burst)?_(tflops|tops)|{ALL_PAIRS}\d+|{JOINT}\d+|{_SUMS.pattern}"
)
_AGAINST: Mapping[str, str | Promise] = {
    "datasheet": _("datasheet"),
    "baseline": _("other devices of this model"),
    "node_median": _("neighbouring devices"),
    "link": _("its link"),
    "alone": _("its speed alone"),
}


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in a list."""

    run: GpuCheckRun
    title: str
    look: StateBadge
    summary: str


@dataclass(frozen=True, slots=True)
class TestRow:
    """A test of a report."""

    __test__ = False

    title: str
    look: StateBadge
    text: str
    required: bool
    took_s: float


@dataclass(frozen=True, slots=True)
class MeasuredFigure:
    """A judged figure with its required value and trend."""

    title: str
    value: str
    floor: str
    against: str
    look: StateBadge | None
    trend: Sparkline | None


@dataclass(frozen=True, slots=True)
class FindingNote:
    """A finding with its recommended action."""

    look: StateBadge
    text: str
    recovery: str


@dataclass(frozen=True, slots=True)
class DeviceChecks:
    """The checks on a device's page. `may` and `may_reset`: the user can request a check or a reset."""

    rows: tuple[RunRow, ...]
    open: GpuCheckRun | None
    open_label: str
    may: bool
    may_reset: bool
    levels: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PartRow:
    """The result of one GPU in a joint check: speeds in TFLOP/s as text, wrong words, and its state."""

    name: str
    alone_text: str
    group_text: str
    percent: str
    errors: int
    look: StateBadge


@dataclass(frozen=True, slots=True)
class Page:
    """A run's page. `peers` are ids and names of its other devices; `parts` are the results per GPU."""

    row: RunRow
    device_name: str
    recovery: str
    tests: tuple[TestRow, ...]
    measures: tuple[MeasuredFigure, ...]
    notes: tuple[FindingNote, ...]
    fix: str
    health: tuple[tuple[str, str, str], ...]
    software: str
    cancellable: bool
    repeat: RepeatForm | None
    simulated_text: str | Promise
    running_title: str | Promise
    peers: tuple[tuple[UUID, str], ...]
    peers_text: str | Promise
    parts: tuple[PartRow, ...]
    partner: tuple[UUID, str] | None
    now: str | Promise
    took_s: float | None


def look_of(run: GpuCheckRun) -> StateBadge:
    key = run.verdict if run.state == RunState.DONE else run.state
    own = handler_of(run.kind).looks.get(key)
    return own or StateBadge(*_LOOKS.get(key, (str(key), "circle-dashed", "")))


def row_of(run: GpuCheckRun) -> RunRow:
    return RunRow(run, handler_of(run.kind).title(run), look_of(run), format_report_text(run.summary))


def format_report_text(text: str) -> str:
    """Return a sentence from a report with display names of figures."""
    for name, title in _METRICS.items():
        text = text.replace(name, str(title))
    return _BY_PATTERN.sub(lambda match: metric_title(match.group()), text)


def block(actor: User, device: Device) -> DeviceChecks:
    """Return the checks of a device, newest first."""
    runs = list(selectors.runs_of_device(device)[:RUNS_SHOWN])
    under_way = next((run for run in runs if run.open), None)
    return DeviceChecks(
        rows=tuple(map(row_of, runs)),
        open=under_way,
        open_label=handler_of(under_way.kind).label(under_way) if under_way is not None else "",
        may=actor.operates,
        may_reset=actor.operates and resets.can_be_requested(device),
        levels=tuple((level.value, str(level.label)) for level in CheckLevel),
    )


def page(actor: User, run: GpuCheckRun) -> Page:
    """Return the data of a run's page. Shows the readable parts of an invalid report."""
    report = run.report if isinstance(run.report, dict) else {}
    earlier = selectors.runs_up_to(run) if run.measures else []
    unavailable = report.get("unavailable") or {}
    handler, test = handler_of(run.kind), run.progress.get("test")
    findings = [entry for entry in report.get("findings", ()) if not entry["code"].startswith("test_")]
    return Page(
        row=row_of(run),
        device_name=display_name(run.device),
        recovery=str(RECOVERY.get(run.recovery, "")),
        tests=tuple(map(_test, report.get("tests", ()))),
        measures=tuple(_measures(run, earlier)),
        notes=tuple(_note(finding) for finding in findings),
        fix=str(unavailable.get("fix", "")),
        health=_health(report),
        software=", ".join(f"{name} {version}" for name, version in (report.get("software") or {}).items()),
        cancellable=actor.operates and run.state == RunState.QUEUED,
        repeat=handler.repeat(run) if actor.operates and not run.open else None,
        simulated_text=handler.simulated_text,
        running_title=handler.running_title,
        peers=tuple((peer.pk, display_name(peer)) for peer in run.peers.order_by("index")),
        peers_text=handler.peers_open_text if run.open else handler.peers_done_text,
        parts=tuple(_parts(run, report)),
        partner=_partner(run),
        now=handler.open_text or (test_title(str(test)) if test else ""),
        took_s=(run.finished_at - run.started_at).total_seconds()
        if run.finished_at and run.started_at
        else None,
    )


def _parts(run: GpuCheckRun, report: Mapping[str, Any]) -> Iterable[PartRow]:
    """Yield each GPU's result while all were under load; nothing for reports without such a test."""
    parts = [part for test in report.get("tests", ()) for part in joint_load.results_of(test["detail"])]
    if not parts:
        return
    names = {device.uuid: display_name(device) for device in (run.device, *run.peers.select_related("node"))}
    for part in parts:
        status = Status.FAILED if part.errors or part.blind else Status.WARNED if part.slow else Status.PASSED
        yield PartRow(
            name=names.get(part.uuid, part.uuid),
            alone_text=format_number(part.alone_tflops, 1),
            group_text=format_number(part.together_tflops, 1),
            percent=format_number(part.percent, 1),
            errors=part.errors,
            look=StateBadge(*_STATUS_LOOKS[status]),
        )


def _partner(run: GpuCheckRun) -> tuple[UUID, str] | None:
    """Return the id of the run at the other end of a link and its device's name, or `None`."""
    far = run.partner
    return None if far is None else (far.pk, display_name(far.device))


def _test(data: Mapping[str, Any]) -> TestRow:
    name = str(data["name"])
    return TestRow(
        title=test_title(name),
        look=StateBadge(*_STATUS_LOOKS.get(data["status"], (data["status"], "circle-dashed", ""))),
        text=format_report_text(str(data["text"])),
        required=bool(data["required"]),
        took_s=data["duration_ms"] / 1000,
    )


def test_title(name: str) -> str:
    """Return the name of a test for display."""
    if name.startswith("exact_"):
        return gettext("Exact %(type)s product, bit by bit") % {"type": name.removeprefix("exact_").upper()}
    if name.startswith("burn_"):
        return gettext("%(type)s burn") % {"type": name.removeprefix("burn_").upper()}
    return str(_TESTS.get(name) or name.replace("_", " ").capitalize())


test_title.__test__ = False  # type: ignore[attr-defined]


def metric_title(name: str) -> str:
    """Return the name of a figure for display."""
    if name.startswith("gemm_"):
        dtype, mode, *_ = name.removeprefix("gemm_").split("_")
        text = gettext("%(type)s matrix product")
        if mode == "own":
            text = gettext("%(type)s matrix product (own kernel)")
        elif mode == "burst":
            text = gettext("%(type)s matrix product (cold)")
        return text % {"type": dtype.upper()}
    if name.startswith("peer_gb_s:"):
        return gettext("Link to %(device)s…") % {"device": name.removeprefix("peer_gb_s:")[:12]}
    if name.startswith("peer_both_ways_gb_s:"):
        device = name.removeprefix("peer_both_ways_gb_s:")[:12]
        return gettext("Link to %(device)s…, both ways at once") % {"device": device}
    if name.startswith(ALL_PAIRS):
        return gettext("All links of %(count)s GPUs at once") % {"count": name.removeprefix(ALL_PAIRS)}
    if name.startswith(JOINT):
        return gettext("Speed while %(count)s GPUs are busy") % {"count": name.removeprefix(JOINT)}
    if summed := _SUMS.fullmatch(name):
        count, version = summed.groups()
        return gettext("Sum over %(count)s GPUs (NCCL %(version)s)") % {"count": count, "version": version}
    return str(_METRICS.get(name) or name.replace("_", " "))


def _note(finding: Mapping[str, Any]) -> FindingNote:
    look = _SEVERITY_LOOKS.get(finding["severity"], (finding["severity"], "circle-dashed", ""))
    return FindingNote(
        StateBadge(*look),
        format_report_text(str(finding["text"])),
        str(RECOVERY.get(finding.get("action", ""), "")),
    )


def _measures(run: GpuCheckRun, earlier: Sequence[GpuCheckRun]) -> Iterable[MeasuredFigure]:
    for name, data in run.measures.items():
        if not isinstance(data, dict) or not isinstance(data.get("value"), int | float):
            continue
        unit = str(data.get("unit", ""))
        fail = data.get("fail_below")
        status = str(data.get("status"))
        yield MeasuredFigure(
            title=metric_title(name),
            value=format_measure(data["value"], unit),
            floor=_floor(fail, unit),
            against=str(_AGAINST.get(data.get("against", ""), "")),
            look=StateBadge(*_STATUS_LOOKS[status]) if status in _STATUS_LOOKS else None,
            trend=_trend(name, unit, fail, earlier),
        )


def _floor(fail_below: float | None, unit: str) -> str:
    if fail_below is None:
        return ""
    return gettext("at least %(value)s") % {"value": format_measure(fail_below, unit)}


def _trend(name: str, unit: str, floor: float | None, earlier: Sequence[GpuCheckRun]) -> Sparkline | None:
    """Return the trend of a figure with at least 2 values, or `None`."""
    measures = [run.measures.get(name) for run in earlier]
    values = [
        float(measure["value"]) for measure in measures if isinstance(measure, dict) and "value" in measure
    ]
    if len(values) < 2:
        return None
    return sparkline(values, floor=floor, unit=unit, name=metric_title(name))


def format_measure(value: float, unit: str) -> str:
    """Return a figure with its unit, to about 3 digits."""
    digits = 0 if abs(value) >= 1000 or float(value).is_integer() else 1 if abs(value) >= 100 else 2
    return f"{format_number(value, digits)} {unit}".strip()


def _health(report: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    """Return the NVML values that changed between the start and the end."""
    before, after = report.get("health_before"), report.get("health_after")
    if not isinstance(before, dict) or not isinstance(after, dict):
        return ()
    names = [name for name in before if before[name] != after.get(name)]
    return tuple(
        (name.replace("_", " "), _format_fact(before[name]), _format_fact(after.get(name))) for name in names
    )


def _format_fact(value: object) -> str:
    return gettext("unknown") if value is None else str(value)[:120]
