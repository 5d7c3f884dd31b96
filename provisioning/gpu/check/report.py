"""Report of a check, with one format for CLI, REST, database and pages; see `report.schema.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from provisioning.gpu.check import hardware_state
from provisioning.gpu.check.types import (
    EXIT_CODES,
    EXIT_UNAVAILABLE,
    Action,
    Facts,
    Finding,
    Level,
    TestResult,
    Verdict,
)

SCHEMA_ID = "berth.gpu-check/1"
SCHEMA_PATH = Path(__file__).parent / "report.schema.json"


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A missing driver or device, and the next action."""

    text: str
    library: str
    fix: str


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a check observed, and its verdict. Times are in UTC; `to_dict()` is its JSON form."""

    uuid: str
    level: Level
    verdict: Verdict
    action: Action
    summary: str
    findings: tuple[Finding, ...]
    tests: tuple[TestResult, ...]
    started_at: datetime
    finished_at: datetime
    nonce: str
    simulated: bool = False
    abandoned: bool = False
    """A process of the check could not be ended and waits in the kernel for the device."""
    unavailable: Unavailable | None = None
    facts: Facts | None = None
    health_before: Mapping[str, Any] | None = None
    health_after: Mapping[str, Any] | None = None
    samples: Mapping[str, Any] = field(default_factory=dict)
    xids: tuple[int, ...] = ()
    software: Mapping[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        return EXIT_UNAVAILABLE if self.unavailable is not None else EXIT_CODES[self.verdict]

    @property
    def software_key(self) -> str:
        """Key of the software; results with another key cannot serve as baselines."""
        return software_key(self.facts.driver_version if self.facts is not None else "", self.software)

    @property
    def measures(self) -> dict[str, float]:
        """All judged values by name, the free memory and the device's own figures: a baseline."""
        values = {j.metric: j.value for t in self.tests for j in t.judgements}
        for test in self.tests:
            if "free_mib" in test.measures:
                values[self._memory_metric] = test.measures["free_mib"]
        return values | hardware_state.own_figures(self.health_before or {})

    @property
    def _memory_metric(self) -> str:
        ecc = self.facts.ecc if self.facts is not None else None
        return hardware_state.memory_state(ecc, (self.health_before, self.health_after)).metric

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        value = asdict(self)
        value |= {
            "schema": SCHEMA_ID,
            "exit_code": self.exit_code,
            "started_at": _time(self.started_at),
            "finished_at": _time(self.finished_at),
            "duration_ms": round((self.finished_at - self.started_at).total_seconds() * 1000),
        }
        plain: dict[str, Any] = json.loads(json.dumps(value))
        return plain


def software_key(driver_version: str, software: Mapping[str, str]) -> str:
    """Return the software that results depend on: driver, kernels and libraries.

    Empty without a driver version, so nothing can be compared.
    """
    if not driver_version:
        return ""
    return "; ".join((driver_version, software.get("kernels", ""), software.get("blas", "")))


def _time(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def schema() -> dict[str, Any]:
    """Return the published JSON Schema."""
    value: dict[str, Any] = json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))
    return value


def summarise(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return minimum, median and maximum of each sampled value; None is ignored."""
    result: dict[str, Any] = {"count": len(samples)}
    for name in ("power_mw", "temperature_c", "sm_clock_mhz", "memory_clock_mhz", "pcie_gen", "pcie_width"):
        values = sorted(s[name] for s in samples if isinstance(s.get(name), int))
        if values:
            result[name] = {"min": values[0], "median": values[len(values) // 2], "max": values[-1]}
    return result


def summary_of(
    verdict: Verdict, findings: Sequence[Finding], tests: Sequence[TestResult], simulated: bool
) -> str:
    """Return one sentence: the first finding of the worst kind, or how many tests passed."""
    weight = {"hung": 4, "fail": 3, "inconclusive": 2, "degraded": 1, "info": 0}
    weighty = [f for f in findings if weight[f.severity]]
    prefix = "Simulated, not valid for a real device. " if simulated else ""
    if not weighty:
        if verdict == Verdict.PASS:
            return f"All {len(tests)} tests passed."
        return f"{prefix}{len(tests)} tests ran without findings." if tests else f"{prefix}No tests were run."
    worst = max(weighty, key=lambda f: weight[f.severity])
    suffix = f" ({len(weighty) - 1} more)" if len(weighty) > 1 else ""
    return f"{prefix}{worst.text.rstrip('.')}.{suffix}"


def render(report: Report) -> str:
    """Return the report as text for a terminal."""
    lines = [f"{report.uuid}  {report.level}  {report.verdict.upper()}: {report.summary}"]
    if report.unavailable is not None:
        lines += [f"  missing: {report.unavailable.library}", f"  fix: {report.unavailable.fix}"]
    if report.action != Action.NONE:
        lines.append(f"  recovery: {report.action.replace('_', ' ')}")
    for test in report.tests:
        need = "" if test.required else " (optional)"
        lines.append(f"  {test.status:<9} {test.name:<14} {test.duration_ms:>7} ms  {test.text}{need}")
    lines += [f"  {f.severity:<12} {f.text}" for f in report.findings if not f.code.startswith("test_")]
    return "\n".join(lines)
