"""CUDA validation workload that decides whether a GPU is fit for use.

`run_check(uuid, level)` always returns a `Report`. See docs/gpu-check.md.
"""

from __future__ import annotations

from provisioning.gpu.check.report import Report, render, schema
from provisioning.gpu.check.runner import run_check
from provisioning.gpu.check.session import Simulation
from provisioning.gpu.check.types import (
    Action,
    Finding,
    Level,
    Meeting,
    Progress,
    Status,
    TestResult,
    Verdict,
)

__all__ = [
    "Action",
    "Finding",
    "Level",
    "Meeting",
    "Progress",
    "Report",
    "Simulation",
    "Status",
    "TestResult",
    "Verdict",
    "render",
    "run_check",
    "schema",
]
