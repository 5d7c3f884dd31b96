"""Ends of a check of the link between two nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from django.urls import reverse
from django.utils.translation import gettext

from portal.fleet.inventory.cordons import display_name
from portal.fleet.inventory.models import CordonCause
from portal.gpu_checks import pairs, report_reader, runs
from portal.gpu_checks.kinds.judged import JudgedHandler
from portal.gpu_checks.kinds.looks import Repeat
from portal.gpu_checks.models import CheckKind, CheckVerdict, GpuCheckRun
from portal.gpu_checks.report_reader import Reading
from provisioning import messages
from provisioning.check_messages import CheckAnswer, CheckCommand
from provisioning.gpu.check.plan import PAIR_DEADLINE_S
from provisioning.gpu.check.types import Meeting

_STEPS: Mapping[str, str] = {
    CheckVerdict.PASS: "passed",
    CheckVerdict.DEGRADED: "degraded",
    CheckVerdict.FAIL: "failed",
    CheckVerdict.HUNG: "hung",
}


class PairHandler(JudgedHandler):
    """One of two runs that meet; its `partner` is the other, on the other node.

    It proves no device, and warns of none: two nodes have summed, and the fault may be of either. Only what
    the driver says of the device itself takes it out.
    """

    kind = CheckKind.PAIR
    noun = "check of a link"
    cordon_cause = CordonCause.CHECK
    trend_kind = CheckKind.PAIR

    def deadline_s(self, run: GpuCheckRun) -> float:
        return PAIR_DEADLINE_S

    def complete(self, command: CheckCommand, run: GpuCheckRun) -> CheckCommand:
        return replace(command, meeting=messages.load(run.plan["meeting"], Meeting))

    def repeatable(self, run: GpuCheckRun) -> bool:
        # By then nobody waits at the other end.
        return False

    def read(self, answer: CheckAnswer, run: GpuCheckRun) -> Reading:
        return report_reader.of_check(answer, run)

    def act(self, run: GpuCheckRun, reading: Reading) -> None:
        name, far = display_name(run.device), run.partner.device.node.name if run.partner else "another node"
        step = _STEPS.get(reading.verdict, "inconclusive")
        runs.record(run, run.device, step, f"has checked the link of {name} to {far}: {run.summary}")
        if reading.verdict in (CheckVerdict.FAIL, CheckVerdict.HUNG):
            self.cordon(run.device, run.summary, reading.action)
        pairs.concluded(run)

    def lost(self, run: GpuCheckRun, reason: str) -> None:
        pairs.concluded(run)

    def title(self, run: GpuCheckRun) -> str:
        if run.partner is None:
            return self.label(run)
        return gettext("Link to %(node)s") % {"node": run.partner.device.node.name}

    def repeat(self, run: GpuCheckRun) -> Repeat | None:
        if run.partner is None:
            return None
        return Repeat(
            url=reverse("gpu_checks:node-link", args=[run.device.node_id]),
            name="with_node",
            value=str(run.partner.device.node_id),
            label=gettext("Check again"),
        )
