"""Checks of a device by the CUDA validation workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from portal.fleet.inventory.models import CheckLevel, Device
from portal.gpu_checks import baselines, peers
from portal.gpu_checks.kinds.handler import KindHandler
from portal.gpu_checks.models import CheckKind, GpuCheckRun
from provisioning.check_messages import CheckCommand

DEADLINES_S: Mapping[str, float] = {
    CheckLevel.QUICK: 60.0,
    CheckLevel.STANDARD: 300.0,
    CheckLevel.EXTENDED: 2400.0,
}


class CheckHandler(KindHandler):
    """A check of one device at one of three levels; it can measure the links to two idle devices."""

    kind = CheckKind.CHECK
    noun = "check"

    def described(self, level: str) -> str:
        return f"a {level} {self.noun}"

    def choose_peers(self, device: Device, level: str) -> list[Device]:
        return [] if level == CheckLevel.QUICK else peers.choose(device)

    def deadline_s(self, run: GpuCheckRun) -> float:
        return DEADLINES_S[run.level]

    def complete(self, command: CheckCommand, run: GpuCheckRun) -> CheckCommand:
        known = baselines.of(run.device)
        return replace(command, baseline=known.fleet, node_median=known.node, baseline_of=known.software)
