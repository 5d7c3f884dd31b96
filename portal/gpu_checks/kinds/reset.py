"""Resets of a GPU by the vendor's tool."""

from __future__ import annotations

from portal.gpu_checks.kinds.handler import KindHandler
from portal.gpu_checks.models import CheckKind, GpuCheckRun

DEADLINE_S = 120.0
"""Nobody on the node reads the driver's library for as long."""


class ResetHandler(KindHandler):
    """A reset of one whole GPU."""

    kind = CheckKind.RESET
    noun = "reset"
    alone_on_node = True

    def deadline_s(self, run: GpuCheckRun) -> float:
        return DEADLINE_S

    def repeatable(self, run: GpuCheckRun) -> bool:
        # Of one that has begun nobody knows how far it has come.
        return run.started_at is None
