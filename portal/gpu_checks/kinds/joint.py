"""Runs of joint checks: all GPUs of a node are under load at once, and each is judged separately."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from uuid import UUID

from django.db import transaction
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from portal.common.actors import SYSTEM
from portal.common.errors import NotFound
from portal.fleet.inventory.cordons import cordon_device, display_name, locked_device, notify_operators
from portal.fleet.inventory.models import CordonCause, Device
from portal.gpu_checks import report_reader, runs
from portal.gpu_checks.kinds.device_proof import set_warning
from portal.gpu_checks.kinds.judged import JudgedHandler
from portal.gpu_checks.kinds.looks import RepeatForm
from portal.gpu_checks.models import CheckKind, CheckVerdict, GpuCheckRun
from portal.gpu_checks.report_reader import RunResult
from provisioning.check_messages import CheckAnswer
from provisioning.gpu.check.joint_load import JointResult
from provisioning.gpu.check.plan import JOINT_DEADLINE_S
from provisioning.gpu.check.types import Action

_STEPS: Mapping[str, str] = {
    CheckVerdict.PASS: "passed",
    CheckVerdict.DEGRADED: "degraded",
    CheckVerdict.FAIL: "failed",
    CheckVerdict.HUNG: "hung",
}


class JointHandler(JudgedHandler):
    """The verdict is about the run's own GPU. `apply_result` handles the others from the report.

    A GPU with wrong results is cordoned. A slow GPU gets a warning, because the node's power or cooling may
    be the cause. A pass proves neither memory nor links, so it lifts no cordon.
    """

    kind = CheckKind.JOINT
    noun = "joint check"
    alone_on_node = True
    cordon_cause = CordonCause.CHECK
    trend_kind = CheckKind.JOINT
    peers_open_text = peers_done_text = _("Checked at the same time:")

    def deadline_s(self, run: GpuCheckRun) -> float:
        return JOINT_DEADLINE_S

    def read(self, answer: CheckAnswer, run: GpuCheckRun) -> RunResult:
        return report_reader.read_check(answer, run)

    def apply_result(self, run: GpuCheckRun, reading: RunResult) -> None:
        device, name = run.device, display_name(run.device)
        step = _STEPS.get(reading.verdict, "inconclusive")
        runs.record(run, device, step, f"checked all GPUs of {device.node.name} at once: {run.summary}")
        if reading.verdict in (CheckVerdict.FAIL, CheckVerdict.HUNG):
            self.cordon(device, run.summary, reading.action)
        elif reading.verdict == CheckVerdict.DEGRADED:
            set_warning(device, run.summary)
            notify_operators(device, "device.joint_degraded", f"{name} is degraded", run.summary)
        peers = {peer.uuid: peer for peer in run.peers.select_related("node", "node__pool")}
        for part in reading.parts:
            if part.uuid in peers:
                _judge_peer(run, peers[part.uuid], part)

    def handle_loss(self, run: GpuCheckRun, reason: str) -> None:
        """Change no device, because a lost run says nothing about the GPUs."""

    def title(self, run: GpuCheckRun) -> str:
        return gettext("All GPUs of %(node)s at once") % {"node": run.device.node.name}

    def repeat(self, run: GpuCheckRun) -> RepeatForm | None:
        return RepeatForm(
            url=reverse("gpu_checks:check-joint", args=[run.device.node_id]),
            name="again",
            value="1",
            label=gettext("Check again"),
        )


def _judge_peer(run: GpuCheckRun, peer: Device, part: JointResult) -> None:
    """Record the result of a peer, and cordon it or set a warning after the transaction commits."""
    name = display_name(peer)
    if part.errors or part.blind:
        error = f"{part.errors} wrong words" if part.errors else "a planted error was not detected"
        text = f"{error} while all GPUs of {peer.node.name} were busy"
        runs.record(run, peer, "failed", f"found that the joint check of {name} failed: {text}")
        # Locked one at a time, because others lock them in another order.
        transaction.on_commit(partial(_cordon_peer, peer.pk, text))
    elif part.slow:
        text = (
            f"{part.percent:g} % of its own speed while all GPUs of {peer.node.name} were busy. "
            "Check power and cooling of the node."
        )
        runs.record(run, peer, "degraded", f"found {name} degraded: {text}")
        transaction.on_commit(partial(_warn_peer, peer.pk, text))
        notify_operators(peer, "device.joint_degraded", f"{name} is degraded", text)


def _cordon_peer(device_id: UUID, reason: str) -> None:
    try:
        cordon_device(
            actor=SYSTEM, device_id=device_id, reason=reason, cause=CordonCause.CHECK,
            recovery=Action.REPLACE.value,
        )  # fmt: skip
    except NotFound:
        # The device has been removed meanwhile.
        return


@transaction.atomic
def _warn_peer(device_id: UUID, warning: str) -> None:
    try:
        set_warning(locked_device(device_id), warning)
    except NotFound:
        return
