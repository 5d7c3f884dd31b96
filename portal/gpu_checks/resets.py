"""Resets of GPUs that an operator asks for: what is refused, what comes of one, and what follows.

A reset is a run like a check: its device is nobody's meanwhile, and alone among the runs of its node, for
whoever reads the driver's library there has to let go of it. What has begun is never sent a second time.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from portal.common import etags
from portal.common.actors import SYSTEM, SystemActor
from portal.common.errors import PortalError, StateConflict
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.codes import CheckCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, sentence_of
from portal.common.texts import strip_nul
from portal.fleet.inventory.cordons import cordon_device, display_name, locked_device
from portal.fleet.inventory.models import Allocation, CheckLevel, CordonCause, Device, Node, PlacementLock
from portal.gpu_checks import selectors
from portal.gpu_checks.models import OPEN, CheckCause, CheckKind, CheckVerdict, GpuCheckRun, RunState
from portal.gpu_checks.runs import end, make_run, record, request_check, request_scrub
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_operator
from portal.workspaces.models import Workspace
from provisioning import messages
from provisioning.check_messages import CheckAnswer
from provisioning.gpu.reset import ResetResult, ResetVerdict
from provisioning.types import DeviceKind

log = logging.getLogger(__name__)

ADVICE = ("reset", "drain_and_reset")
REBOOT = "reboot"
CHECK_IT = "retry"
_VERDICTS = {
    ResetVerdict.DONE: CheckVerdict.PASS,
    ResetVerdict.REFUSED: CheckVerdict.INCONCLUSIVE,
    ResetVerdict.FAILED: CheckVerdict.FAIL,
    ResetVerdict.HUNG: CheckVerdict.HUNG,
}
_STEPS = {
    CheckVerdict.PASS: ("done", "was reset"),
    CheckVerdict.INCONCLUSIVE: ("inconclusive", "was not reset"),
    CheckVerdict.FAIL: ("failed", "could not be reset"),
    CheckVerdict.HUNG: ("hung", "hangs in its reset"),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What of a device is decided upon: a form that asks for a reset is void when it has changed."""

    version_state: tuple[object, ...]


def seen_of(device: Device) -> Seen:
    return Seen((device.pk, device.cordoned, device.cordon_reason, device.cordon_cause, device.recovery))


@transaction.atomic
def request_reset(
    *, actor: User | SystemActor, device_id: UUID, expected: frozenset[str] = etags.ANY
) -> GpuCheckRun:
    """Have a GPU reset by its node; a check follows when it is done, and lifts its cordon as any other.

    Asking for what is under way already returns that run. Raises `NotAllowed`, `NotFound`,
    `PreconditionFailed`, and `StateConflict` with what stands against it (`refusal`).
    """
    require_operator(actor)
    PlacementLock.hold()
    device = locked_device(device_id)
    under_way = device.checks.filter(state__in=OPEN, kind=CheckKind.RESET).first()
    if under_way is not None:
        return under_way
    etags.require_expected(expected, seen_of(device), name=display_name(device))
    refused = refusal(device)
    if refused is not None:
        raise StateConflict(refused, code=_PROBLEMS.get(refused.code, ProblemCode.CONFLICT))
    if not device.cordoned:
        cordon_device(
            actor=actor,
            device_id=device.pk,
            reason=message_of(Reason(CheckCode.RESET_ASKED)),
            cause=CordonCause.CHECK,
            recovery="reset",
        )
        device.refresh_from_db()
    return make_run(actor=actor, device=device, kind=CheckKind.RESET, cause=CheckCause.OPERATOR)


_PROBLEMS: dict[Any, ProblemCode] = {
    CheckCode.CHECK_UNDER_WAY: ProblemCode.CHECK_UNDER_WAY,
    CheckCode.DEVICE_IN_USE: ProblemCode.DEVICE_IN_USE,
}


def refusal(device: Device) -> Reason | None:
    """Why a GPU cannot be reset now; None where it can."""
    name = display_name(device)
    if device.kind == DeviceKind.MIG:
        return Reason(CheckCode.RESET_OF_INSTANCE, {"device": name})
    if device.mig_mode:
        return Reason(CheckCode.RESET_LOSES_INSTANCES, {"device": name})
    if not device.present:
        return Reason(CheckCode.DEVICE_GONE, {"device": name})
    if not device.node.online:
        return Reason(CheckCode.NODE_NOT_ANSWERING, {"node": device.node.name})
    under_way = selectors.open_run_on(device)
    if under_way is not None:
        return Reason(CheckCode.CHECK_UNDER_WAY, {"kind": under_way.kind, "device": name})
    if device.allocated.filter(active=True).exists():
        return Reason(CheckCode.DEVICE_IN_USE, {"kind": CheckKind.RESET.value, "device": name})
    if not is_called_for(device):
        return Reason(CheckCode.RESET_NOT_ADVISED, {"device": name})
    return None


def is_called_for(device: Device) -> bool:
    """Whether a reset may be asked for at all: it is out already, or its last check says so."""
    if device.kind == DeviceKind.MIG:
        return False
    if device.cordoned or device.recovery in ADVICE:
        return True
    checks = device.checks.filter(state=RunState.DONE, kind__in=[CheckKind.CHECK, CheckKind.SCRUB])
    return checks.order_by("-created_at").values_list("recovery", flat=True).first() in ADVICE


def siblings(device: Device) -> QuerySet[Device]:
    """The GPUs that it is linked with: on some machines they are reset with it, or not at all."""
    if not device.island:
        return Device.objects.none()
    its = Device.objects.filter(node=device.node_id, island=device.island, present=True)
    return its.exclude(Q(pk=device.pk) | Q(kind=DeviceKind.MIG.value)).order_by("index")


def workspaces_on(node: Node) -> QuerySet[Workspace]:
    """Whom a reboot of the node would end."""
    held = Allocation.objects.filter(node=node, released_at=None)
    return Workspace.objects.filter(pk__in=held.values("workspace")).select_related("owner").order_by("name")


def holders_of(device: Device) -> QuerySet[Workspace]:
    held = device.allocated.filter(active=True)
    its = Workspace.objects.filter(pk__in=held.values("allocation__workspace"))
    return its.select_related("owner").order_by("name")


# --- what comes of it ------------------------------------------------------------------------------


def answered(run: GpuCheckRun, answer: CheckAnswer) -> None:
    """Take in what the node says of a locked, open run."""
    device = run.device
    report: dict[str, Any] = {}
    if answer.failure is not None:
        hung = answer.failure.code == "hung"
        verdict = CheckVerdict.HUNG if hung else CheckVerdict.INCONCLUSIVE
        summary = answer.failure.message
    else:
        try:
            said = _sound(run, answer)
        except ValueError as error:
            verdict = CheckVerdict.INCONCLUSIVE
            summary = message_of(
                Reason(CheckCode.REPORT_UNSOUND, {"kind": run.kind, "problem": str(error)[:300]})
            )
        else:
            verdict, summary, report = _VERDICTS[said.verdict], said.text, messages.dump(said)
    summary = strip_nul(summary)[:2000]
    step, words = _STEPS[verdict]
    end(
        run,
        RunState.DONE,
        started_at=run.started_at or timezone.now(),
        verdict=verdict,
        recovery=_recovery(verdict, device),
        summary=summary,
        report=report,
    )
    record(run, device, step, f"tells that {display_name(device)} {words}: {summary}")
    if verdict == CheckVerdict.PASS:
        if device.recovery != CHECK_IT:
            # Also where what follows is lost: the policy looks again at what waits for a check.
            device.recovery = CHECK_IT
            device.save(update_fields=["recovery"])
        transaction.on_commit(partial(check_again, device.pk))
    elif verdict in (CheckVerdict.FAIL, CheckVerdict.HUNG):
        _keep_out(device, summary, REBOOT)


def _sound(run: GpuCheckRun, answer: CheckAnswer) -> ResetResult:
    """Raises `ValueError` for what says nothing about this run."""
    said = messages.load(answer.report, ResetResult)
    if said.uuid != run.device.uuid or answer.uuid != run.device.uuid:
        raise ValueError("it is about another device")
    if said.simulated != run.device.node.pool.simulated:
        raise ValueError("a simulated result says nothing about a device")
    return said


def _recovery(verdict: CheckVerdict, device: Device) -> str:
    match verdict:
        case CheckVerdict.PASS:
            return CHECK_IT
        case CheckVerdict.INCONCLUSIVE:
            return device.recovery or "reset"
        case _:
            return REBOOT


def lost(run: GpuCheckRun) -> None:
    """What follows when a locked run has been given up: nobody knows whether the GPU was reset."""
    _keep_out(run.device, sentence_of(Reason(CheckCode.RESET_LOST)), run.device.recovery or "reset")


def _keep_out(device: Device, reason: str, recovery: str) -> None:
    scrubbed = device.cordoned and device.cordon_cause == CordonCause.SCRUB
    cause = CordonCause.SCRUB if scrubbed else CordonCause.CHECK
    cordon_device(actor=SYSTEM, device_id=device.pk, reason=reason, cause=cause, recovery=recovery)


def check_again(device_id: UUID) -> None:
    """Check a GPU that was reset; one that a scrub took out is scrubbed. Outside of the run's transaction."""
    device = Device.objects.filter(pk=device_id).first()
    if device is None:
        return
    try:
        if device.cordoned and device.cordon_cause == CordonCause.SCRUB:
            request_scrub(actor=SYSTEM, device_id=device_id, cause=CheckCause.RECHECK)
        else:
            request_check(
                actor=SYSTEM, device_id=device_id, level=CheckLevel.STANDARD, cause=CheckCause.RECHECK
            )
    except PortalError as error:
        log.info("no check of %s after its reset: %s", device.uuid, error.message)
