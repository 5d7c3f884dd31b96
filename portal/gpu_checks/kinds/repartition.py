"""Changes of a GPU's MIG layout: the command, its answer, and the confirmation by the inventory."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.domain_events import emit
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import sentence_of
from portal.common.texts import strip_nul
from portal.fleet.inventory import polling
from portal.fleet.inventory.cordons import cordon_device, display_name
from portal.fleet.inventory.domain_events import NodesChanged
from portal.fleet.inventory.models import AllocatedDevice, Allocation, CordonCause, Device, Pool
from portal.gpu_checks import runs
from portal.gpu_checks.codes import CheckCode
from portal.gpu_checks.kinds.handler import KindHandler
from portal.gpu_checks.models import CheckKind, CheckVerdict, GpuCheckRun, RunState
from portal.workspaces.lifecycle import DesiredState, State
from portal.workspaces.models import Workspace
from provisioning import messages
from provisioning.check_messages import CheckAnswer, CheckCommand, Repartitioned
from provisioning.types import MigRepartition

DEADLINE_S = 600.0
"""Seconds; enough for two scrubs of each affected instance in sequence, and the change."""
FIXED_FOR = timedelta(minutes=10)
"""Time before a GPU that refused a change gets another one."""


def plan_of(change: MigRepartition) -> dict[str, Any]:
    """Return the change in stored form; the GPU is the run's device."""
    return {"destroy": list(change.destroy), "create": messages.dump(change.create)}


def change_of(run: GpuCheckRun) -> MigRepartition:
    """Return the change of layout of a run."""
    return messages.load({"parent_uuid": run.device.uuid, **run.plan}, MigRepartition)


class RepartitionHandler(KindHandler):
    """A change of the layout of one GPU, for the start of a workspace.

    The run stays open after the answer, until an inventory shows the instances that its node reported.
    """

    kind = CheckKind.REPARTITION
    noun = "MIG layout change"

    def deadline_s(self, run: GpuCheckRun) -> float:
        return DEADLINE_S

    def complete(self, command: CheckCommand, run: GpuCheckRun) -> CheckCommand:
        return replace(command, change=change_of(run))

    def apply_answer(self, run: GpuCheckRun, answer: CheckAnswer, workspace: Workspace | None) -> None:
        _note_answer(run, answer)
        # Before a repeated answer, the inventory may already have confirmed the change.
        conclude(run, workspace)

    def handle_loss(self, run: GpuCheckRun, reason: str) -> None:
        # It is not proven that the current instances are clean.
        _fix(run.device)
        cordon_device(
            actor=SYSTEM,
            device_id=run.device_id,
            reason=sentence_of(Reason(CheckCode.LAYOUT_CHANGE_LOST)),
            cause=CordonCause.OPERATOR,
        )


def _note_answer(run: GpuCheckRun, answer: CheckAnswer) -> None:
    if answer.failure is not None:
        _fail(run, answer.failure.message)
        return
    try:
        result = messages.load(answer.report, Repartitioned)
    except ValueError as error:
        _fail(run, _invalid_report_text(run, str(error)))
        return
    change = change_of(run)
    if not result.unclean and len(result.created) != len(change.create):
        problem = f"{len(result.created)} instances instead of {len(change.create)}"
        _fail(run, _invalid_report_text(run, problem))
        return
    now = timezone.now()
    run.state, run.report = RunState.RUNNING, messages.dump(result)
    run.started_at = run.started_at or now
    # Without an inventory until then, the command is sent again, and the node finds the change done.
    run.lease_expires_at = now + timedelta(seconds=runs.SILENT_S)
    run.save(update_fields=["state", "report", "started_at", "lease_expires_at"])
    transaction.on_commit(partial(_ask_for_inventory, run.device.node.pool_id))


def conclude(run: GpuCheckRun, workspace: Workspace | None) -> None:
    """End a locked run if it is open and the last inventory confirms the node's answer.

    `workspace` is the locked workspace that waits, if any, and gets the new instances.
    """
    if not run.open or not run.report:
        return
    result, change = messages.load(run.report, Repartitioned), change_of(run)
    uuids = result.unclean or result.created
    rows = {
        device.uuid: device
        for device in Device.objects.select_for_update(of=("self",))
        .filter(uuid__in=uuids, parent_uuid=run.device.uuid, node=run.device.node_id, present=True)
        .order_by("pk")
    }
    if set(rows) != set(uuids):
        return
    if result.unclean:
        _fail(run, result.text)
        for device in rows.values():
            cordon_device(
                actor=SYSTEM,
                device_id=device.pk,
                reason=result.text,
                cause=CordonCause.SCRUB,
                recovery="retry",
            )
        return
    for uuid, piece in zip(result.created, change.create, strict=True):
        if (rows[uuid].mig_profile, rows[uuid].mig_start) != (piece.profile, piece.start):
            # A retry would give the same result: the instance is not the requested one.
            _fail(run, f"{uuid} is {rows[uuid].mig_profile}, not {piece.profile}.")
            return
    runs.close(
        run,
        RunState.DONE,
        verdict=CheckVerdict.PASS,
        summary=f"{len(change.destroy)} instances destroyed, {len(change.create)} created.",
    )
    runs.record(run, run.device, "passed", f"changed the MIG layout of {display_name(run.device)}")
    if workspace is not None and _still_waits(workspace, run):
        allocation = Allocation.objects.get(workspace=workspace, node=run.device.node_id, released_at=None)
        AllocatedDevice.objects.bulk_create(
            AllocatedDevice(allocation=allocation, device=rows[uuid]) for uuid in result.created
        )
        emit(NodesChanged((run.device.node_id,)))


def _invalid_report_text(run: GpuCheckRun, problem: str) -> str:
    return sentence_of(Reason(CheckCode.REPORT_UNSOUND, {"kind": run.kind, "problem": problem}))


def _ask_for_inventory(pool_id: UUID) -> None:
    pool = Pool.objects.filter(pk=pool_id).first()
    if pool is not None:
        polling.request_inventory(pool)


def _still_waits(workspace: Workspace, run: GpuCheckRun) -> bool:
    return (
        workspace.state == State.PROVISIONING
        and workspace.desired_state == DesiredState.RUNNING
        and workspace.waits_for_checks
        and workspace.placed_at is not None
        and run.created_at >= workspace.placed_at
    )


def _fail(run: GpuCheckRun, reason: str) -> None:
    summary = strip_nul(reason)[:2000]
    _fix(run.device)
    name = display_name(run.device)
    runs.close(run, RunState.DONE, verdict=CheckVerdict.FAIL, summary=summary)
    runs.record(run, run.device, "failed", f"could not change the MIG layout of {name}: {summary}")


def _fix(device: Device) -> None:
    device.layout_fixed_until = timezone.now() + FIXED_FOR
    device.save(update_fields=["layout_fixed_until"])
