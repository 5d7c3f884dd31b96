"""Ends of a check of the link between two nodes."""

from __future__ import annotations

from dataclasses import replace

from portal.gpu_checks.kinds.handler import KindHandler
from portal.gpu_checks.models import CheckKind, GpuCheckRun
from provisioning import messages
from provisioning.check_messages import CheckCommand
from provisioning.gpu.check.plan import PAIR_DEADLINE_S
from provisioning.gpu.check.types import Meeting


class PairHandler(KindHandler):
    """One of two runs that meet; its `partner` is the other, on the other node."""

    kind = CheckKind.PAIR
    noun = "check of a link"

    def deadline_s(self, run: GpuCheckRun) -> float:
        return PAIR_DEADLINE_S

    def complete(self, command: CheckCommand, run: GpuCheckRun) -> CheckCommand:
        return replace(command, meeting=messages.load(run.plan["meeting"], Meeting))

    def repeatable(self, run: GpuCheckRun) -> bool:
        # By then nobody waits at the other end.
        return False
