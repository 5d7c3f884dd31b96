"""Resets of a GPU with the vendor's tool: their results, and the check that follows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal.common.actors import SYSTEM
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, sentence_of
from portal.common.texts import strip_nul
from portal.fleet.inventory.cordons import cordon_device, display_name
from portal.fleet.inventory.models import CordonCause, Device
from portal.gpu_checks import resets, runs
from portal.gpu_checks.codes import CheckCode
from portal.gpu_checks.kinds.handler import KindHandler
from portal.gpu_checks.kinds.looks import StateBadge
from portal.gpu_checks.models import CheckKind, CheckVerdict, GpuCheckRun, RunState
from portal.workspaces.models import Workspace
from provisioning import messages
from provisioning.check_messages import CheckAnswer
from provisioning.gpu.reset import ResetResult, ResetVerdict

DEADLINE_S = 120.0
"""Seconds during which nothing on the node uses the driver's library."""
REBOOT = "reboot"
RECHECK = "retry"
_VERDICTS: Mapping[ResetVerdict, CheckVerdict] = {
    ResetVerdict.DONE: CheckVerdict.PASS,
    ResetVerdict.REFUSED: CheckVerdict.INCONCLUSIVE,
    ResetVerdict.FAILED: CheckVerdict.FAIL,
    ResetVerdict.HUNG: CheckVerdict.HUNG,
}
_STEPS: Mapping[CheckVerdict, tuple[str, str]] = {
    CheckVerdict.PASS: ("done", "was reset"),
    CheckVerdict.INCONCLUSIVE: ("inconclusive", "was not reset"),
    CheckVerdict.FAIL: ("failed", "could not be reset"),
    CheckVerdict.HUNG: ("hung", "hangs during its reset"),
}


class ResetHandler(KindHandler):
    """A reset of one whole GPU, followed by a check."""

    kind = CheckKind.RESET
    noun = "reset"
    alone_on_node = True
    looks = {
        CheckVerdict.PASS: StateBadge(_("Done"), "circle-check", "ok"),
        CheckVerdict.INCONCLUSIVE: StateBadge(_("Not done"), "circle-dashed", "wait"),
    }
    running_title = _("Resetting")
    open_text = _("Starts when no other check is running on the node. Takes up to 2 minutes.")
    simulated_text = _("This device is simulated. Nothing is reset.")

    def deadline_s(self, run: GpuCheckRun) -> float:
        return DEADLINE_S

    def repeatable(self, run: GpuCheckRun) -> bool:
        # The state of a reset that has begun is unknown.
        return run.started_at is None

    def apply_answer(self, run: GpuCheckRun, answer: CheckAnswer, workspace: Workspace | None) -> None:
        device = run.device
        verdict, summary, report = _read(run, answer)
        summary = strip_nul(summary)[:2000]
        step, text = _STEPS[verdict]
        runs.close(
            run,
            RunState.DONE,
            started_at=run.started_at or timezone.now(),
            verdict=verdict,
            recovery=_recovery(verdict, device),
            summary=summary,
            report=report,
        )
        runs.record(run, device, step, f"reported that {display_name(device)} {text}: {summary}")
        if verdict == CheckVerdict.PASS:
            if device.recovery != RECHECK:
                # The policy checks devices that wait for a check, so a lost check is repeated.
                device.recovery = RECHECK
                device.save(update_fields=["recovery"])
            transaction.on_commit(partial(resets.check_again, device.pk))
        elif verdict in (CheckVerdict.FAIL, CheckVerdict.HUNG):
            _cordon(device, summary, REBOOT)

    def handle_loss(self, run: GpuCheckRun, reason: str) -> None:
        # It is unknown whether the GPU was reset.
        _cordon(run.device, sentence_of(Reason(CheckCode.RESET_LOST)), run.device.recovery or "reset")


def _read(run: GpuCheckRun, answer: CheckAnswer) -> tuple[CheckVerdict, str, dict[str, Any]]:
    """Return the verdict, summary and report in an answer."""
    if answer.failure is not None:
        hung = answer.failure.code == "hung"
        return CheckVerdict.HUNG if hung else CheckVerdict.INCONCLUSIVE, answer.failure.message, {}
    try:
        result = _load_result(run, answer)
    except ValueError as error:
        reason = Reason(CheckCode.REPORT_UNSOUND, {"kind": run.kind, "problem": str(error)[:300]})
        return CheckVerdict.INCONCLUSIVE, message_of(reason), {}
    return _VERDICTS[result.verdict], result.text, messages.dump(result)


def _load_result(run: GpuCheckRun, answer: CheckAnswer) -> ResetResult:
    """Return the result in an answer. Raises `ValueError` if it is not about this run."""
    result = messages.load(answer.report, ResetResult)
    if result.uuid != run.device.uuid or answer.uuid != run.device.uuid:
        raise ValueError("it is about another device")
    if result.simulated != run.device.node.pool.simulated:
        raise ValueError("a simulated result says nothing about a device")
    return result


def _recovery(verdict: CheckVerdict, device: Device) -> str:
    match verdict:
        case CheckVerdict.PASS:
            return RECHECK
        case CheckVerdict.INCONCLUSIVE:
            return device.recovery or "reset"
        case _:
            return REBOOT


def _cordon(device: Device, reason: str, recovery: str) -> None:
    scrubbed = device.cordoned and device.cordon_cause == CordonCause.SCRUB
    cause = CordonCause.SCRUB if scrubbed else CordonCause.CHECK
    cordon_device(actor=SYSTEM, device_id=device.pk, reason=reason, cause=cause, recovery=recovery)
