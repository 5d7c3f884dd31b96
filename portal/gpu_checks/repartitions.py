"""Changes of MIG layouts before a start: the run of one, and what its answer comes to.

A run stays open, and with it its GPU out of placement, until an inventory has shown the instances that its
node says it made. The workspace that waits gets them in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.domain_events import emit
from portal.common.reasons.codes import CheckCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import sentence_of
from portal.common.texts import strip_nul
from portal.fleet.inventory import polling
from portal.fleet.inventory.cordons import cordon_device, display_name
from portal.fleet.inventory.domain_events import NodesChanged
from portal.fleet.inventory.models import AllocatedDevice, Allocation, CordonCause, Device, Pool
from portal.gpu_checks.models import OPEN, CheckCause, CheckKind, CheckVerdict, GpuCheckRun, RunState
from portal.gpu_checks.runs import SILENT_S, change_of, end, make_run, record
from portal.workspaces.lifecycle import DesiredState, State
from portal.workspaces.models import Workspace
from provisioning import messages
from provisioning.check_messages import CheckAnswer, Repartitioned
from provisioning.types import MigRepartition

FIXED_FOR = timedelta(minutes=10)
"""A GPU that has refused a change is not asked for one again before this."""


def begin(changes: Mapping[UUID, Sequence[MigRepartition]], workspaces: Iterable[Workspace]) -> None:
    """Queue the changes that workspaces which have just got their place wait for.

    The caller is a cycle: it holds the workspaces' locks and the right to grant capacity.
    """
    by_key = {each.pk: each for each in workspaces}
    plans = {change.parent_uuid: (key, change) for key, its in changes.items() for change in its}
    rows = (
        Device.objects.select_for_update(of=("self",))
        .select_related("node", "node__pool")
        .filter(uuid__in=plans)
        .order_by("pk")
    )
    for device in rows:
        key, change = plans[device.uuid]
        make_run(
            actor=SYSTEM,
            device=device,
            kind=CheckKind.REPARTITION,
            cause=CheckCause.HAND_OUT,
            workspace=by_key[key],
            change=change,
        )


def of(workspace: Workspace) -> QuerySet[GpuCheckRun]:
    """The changes for the workspace's present place."""
    if workspace.placed_at is None:
        return GpuCheckRun.objects.none()
    return GpuCheckRun.objects.filter(
        workspace=workspace, kind=CheckKind.REPARTITION, created_at__gte=workspace.placed_at
    )


def answered(run: GpuCheckRun, answer: CheckAnswer) -> None:
    """Take in what the node says of a locked, open run: it has failed, or an inventory has to show it."""
    if answer.failure is not None:
        _failed(run, answer.failure.message)
        return
    try:
        said = messages.load(answer.report, Repartitioned)
    except ValueError as error:
        _failed(run, sentence_of(Reason(CheckCode.REPORT_UNSOUND, {"kind": run.kind, "problem": str(error)})))
        return
    change = change_of(run)
    assert change is not None
    if not said.unclean and len(said.created) != len(change.create):
        problem = f"{len(said.created)} instances instead of {len(change.create)}"
        _failed(run, sentence_of(Reason(CheckCode.REPORT_UNSOUND, {"kind": run.kind, "problem": problem})))
        return
    now = timezone.now()
    run.state, run.report = RunState.RUNNING, messages.dump(said)
    run.started_at = run.started_at or now
    # Whoever takes no stock until then is asked once more; the node finds it done already.
    run.lease_expires_at = now + timedelta(seconds=SILENT_S)
    run.save(update_fields=["state", "report", "started_at", "lease_expires_at"])
    transaction.on_commit(partial(_ask, run.device.node.pool_id))


def _ask(pool_id: UUID) -> None:
    pool = Pool.objects.filter(pk=pool_id).first()
    if pool is not None:
        polling.ask(pool)


def conclude(run: GpuCheckRun, workspace: Workspace | None) -> bool:
    """End a locked run if the last inventory shows what its node said; whether it has ended.

    `workspace` is the locked one that waits, if any does: it gets the new instances.
    """
    if not run.open or not run.report:
        return False
    said, change = messages.load(run.report, Repartitioned), change_of(run)
    assert change is not None
    named = said.unclean or said.created
    there = {
        device.uuid: device
        for device in Device.objects.select_for_update(of=("self",))
        .filter(uuid__in=named, parent_uuid=run.device.uuid, node=run.device.node_id, present=True)
        .order_by("pk")
    }
    if set(there) != set(named):
        return False
    if said.unclean:
        _failed(run, said.text)
        for device in there.values():
            cordon_device(
                actor=SYSTEM,
                device_id=device.pk,
                reason=said.text,
                cause=CordonCause.SCRUB,
                recovery="retry",
            )
        return True
    for uuid, piece in zip(said.created, change.create, strict=True):
        if (there[uuid].mig_profile, there[uuid].mig_start) != (piece.profile, piece.start):
            # Whoever reads it again finds the same: what was asked for is not what came.
            _failed(run, f"{uuid} is {there[uuid].mig_profile}, not {piece.profile}.")
            return True
    name = display_name(run.device)
    end(
        run,
        RunState.DONE,
        verdict=CheckVerdict.PASS,
        summary=f"{len(change.destroy)} instances destroyed, {len(change.create)} created.",
    )
    record(run, run.device, "passed", f"changes the MIG layout of {name}")
    if workspace is not None and _still_waits(workspace, run):
        allocation = Allocation.objects.get(workspace=workspace, node=run.device.node_id, released_at=None)
        AllocatedDevice.objects.bulk_create(
            AllocatedDevice(allocation=allocation, device=there[uuid]) for uuid in said.created
        )
        emit(NodesChanged((run.device.node_id,)))
    return True


def _still_waits(workspace: Workspace, run: GpuCheckRun) -> bool:
    return (
        workspace.state == State.PROVISIONING
        and workspace.desired_state == DesiredState.RUNNING
        and workspace.waits_for_checks
        and workspace.placed_at is not None
        and run.created_at >= workspace.placed_at
    )


def _failed(run: GpuCheckRun, why: str) -> None:
    summary = strip_nul(why)[:2000]
    _fix(run.device, timezone.now())
    name = display_name(run.device)
    end(run, RunState.DONE, verdict=CheckVerdict.FAIL, summary=summary)
    record(run, run.device, "failed", f"cannot change the MIG layout of {name}: {summary}")


def lost(run: GpuCheckRun) -> None:
    """What follows when a locked run has been given up: what stands there now was not proven clean."""
    _fix(run.device, timezone.now())
    cordon_device(
        actor=SYSTEM,
        device_id=run.device_id,
        reason=sentence_of(Reason(CheckCode.LAYOUT_CHANGE_LOST)),
        cause=CordonCause.OPERATOR,
    )


def _fix(device: Device, now: datetime) -> None:
    device.layout_fixed_until = now + FIXED_FOR
    device.save(update_fields=["layout_fixed_until"])


def to_conclude(pool: Pool) -> list[UUID]:
    """The open runs of a pool of which a node has said that they are done."""
    found = GpuCheckRun.objects.filter(
        kind=CheckKind.REPARTITION, state__in=OPEN, device__node__pool=pool
    ).exclude(report={})
    return list(found.order_by("pk").values_list("pk", flat=True))
