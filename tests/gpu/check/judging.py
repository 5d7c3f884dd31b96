"""Values for tests of the rules: an H200, a copy, and ends of tests."""

from __future__ import annotations

from typing import Any

from provisioning.gpu.check.assess import assess
from provisioning.gpu.check.plan import Test
from provisioning.gpu.check.types import Action, Facts, Finding, Raw, Severity, Status

H200 = Facts("GPU-1", name="NVIDIA H200", pcie_max_gen=5, pcie_max_width=16, compute_capability=(9, 0))
COPY = Test("copy", "copy", 15.0)


def done(**measures: float) -> Raw:
    return Raw("x", "done", errors=0, measures=measures)


def status_of(test: Test, raw: Raw | None, facts: Facts = H200, **more: Any) -> tuple[Status, str]:
    result = assess(test, raw, facts, **more)
    return result.status, result.text


def found(findings: list[Finding]) -> list[tuple[str, Severity, Action]]:
    return [(f.code, f.severity, f.action) for f in findings]
