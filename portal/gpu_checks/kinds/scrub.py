"""Scrubs: the memory of a device is cleared and proven clean."""

from __future__ import annotations

from dataclasses import replace

from portal.gpu_checks import baselines
from portal.gpu_checks.kinds.handler import KindHandler
from portal.gpu_checks.models import CheckKind, GpuCheckRun
from provisioning.check_messages import CheckCommand

DEADLINE_S = 120.0


class ScrubHandler(KindHandler):
    """A scrub of one device. It needs as much free memory as the device had when it was last clean."""

    kind = CheckKind.SCRUB
    noun = "scrub"

    def deadline_s(self, run: GpuCheckRun) -> float:
        return DEADLINE_S

    def complete(self, command: CheckCommand, run: GpuCheckRun) -> CheckCommand:
        return replace(command, baseline_mib=baselines.clean_free_mib(run.device))
