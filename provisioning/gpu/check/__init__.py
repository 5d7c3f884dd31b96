"""The CUDA validation workload: is this GPU worth handing out?

`run_check(uuid, level)` returns a `Report` whatever happens. See docs/gpu-check.md.
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
