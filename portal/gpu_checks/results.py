"""Applies nodes' reports about checks and scrubs. Each valid answer is applied once."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from portal.common.domain_events import emit
from portal.common.errors import NotFound
from portal.common.events import live
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import sentence_of
from portal.common.texts import strip_nul
from portal.fleet.inventory import node_messages
from portal.fleet.inventory.cordons import display_name
from portal.fleet.inventory.domain_events import InventoryApplied
from portal.gpu_checks import repartitions
from portal.gpu_checks.codes import CheckCode
from portal.gpu_checks.domain_events import PreflightCheckEnded
from portal.gpu_checks.kinds import repartition
from portal.gpu_checks.kinds.registry import handler_of
from portal.gpu_checks.models import CheckCause, GpuCheckRun, RunState
from portal.gpu_checks.runs import (
    MAX_ATTEMPTS,
    SILENT_S,
    close,
    hard_limit,
    locked_run,
    record,
    send_on_commit,
)
from portal.workspaces.models import Workspace
from portal.workspaces.transitions import lock_workspace
from provisioning.check_messages import CheckAnswer

MAX_PROGRESS_LENGTH = 500


def is_from_run_node(run: str, lease: str) -> bool:
    """Return whether the message comes from the node that was asked, under the run's current lease."""
    try:
        rows = GpuCheckRun.objects.filter(pk=UUID(run), lease=lease).select_related("device__node__pool")
    except ValueError:
        return False
    row = rows.first() if lease else None
    return row is not None and node_messages.is_from_asked_node(row.device.node.pool, row.device.node.name)


def apply_progress(*, run_id: UUID, lease: str, progress: dict[str, Any]) -> bool:
    """Store the progress of a run and renew its lease. Returns `False` if it is stale and was dropped."""
    if not lease:
        return False
    now = timezone.now()
    fields: dict[str, Any] = {
        "state": RunState.RUNNING,
        "lease_expires_at": now + timedelta(seconds=SILENT_S),
        "progress": _progress(progress),
    }
    rows = GpuCheckRun.objects.filter(pk=run_id, lease=lease)
    if rows.filter(state=RunState.QUEUED).update(**fields, started_at=now):
        live.publish_check(run_id)
        return True
    run = rows.filter(state=RunState.RUNNING).only("kind", "level", "started_at").first()
    if run is None or _exceeds_limit(run, now):
        # Also give up a run that reports progress forever, once its lease has expired.
        return False
    if not rows.filter(state=RunState.RUNNING).update(**fields):
        return False
    live.publish_check(run_id)
    return True


def _exceeds_limit(run: GpuCheckRun, now: datetime) -> bool:
    return run.started_at is not None and now - run.started_at > hard_limit(run)


def _progress(sent: dict[str, Any]) -> dict[str, Any]:
    cleaned: dict[str, Any] = {}
    for name in ("phase", "test", "text"):
        cleaned[name] = strip_nul(str(sent.get(name, "")))[:MAX_PROGRESS_LENGTH]
    for name in ("done", "total", "elapsed_ms"):
        value = sent.get(name, 0)
        is_count = isinstance(value, int) and not isinstance(value, bool)
        cleaned[name] = min(max(value, 0), 2**31) if is_count else 0
    return cleaned


def apply_answer(answer: CheckAnswer) -> bool:
    """Apply the answer to a run. Returns `False` if it is stale or does not match, and was dropped."""
    try:
        run_id = UUID(answer.run)
    except ValueError:
        return False
    with transaction.atomic():
        workspace = _lock_waiting(run_id)
        try:
            run = locked_run(run_id)
        except NotFound:
            return False
        if not answer.lease or run.lease != answer.lease or not run.open or run.kind != answer.kind:
            return False
        handler_of(run.kind).apply_answer(run, answer, workspace)
        if not run.open:
            _hand_out(run, workspace)
    return True


def inventory_applied(event: InventoryApplied) -> None:
    """End the changes of MIG layouts that the inventory confirms, in one transaction each."""
    for run_id in repartitions.runs_to_conclude(event.pool):
        conclude_change(run_id)


@transaction.atomic
def conclude_change(run_id: UUID) -> bool:
    """End a change of a MIG layout if the inventory confirms it, and return whether it has ended."""
    workspace = _lock_waiting(run_id)
    try:
        run = locked_run(run_id)
    except NotFound:
        return True
    if not run.open:
        return True
    repartition.conclude(run, workspace)
    if run.open:
        return False
    _hand_out(run, workspace)
    return True


def handle_missing_answer(run_id: UUID) -> bool:
    """Resend an open run that got no answer, or give up on it. Returns whether it was given up."""
    now = timezone.now()
    with transaction.atomic():
        workspace = _lock_waiting(run_id)
        try:
            run = locked_run(run_id)
        except NotFound:
            return False
        if not run.open or (run.lease and run.lease_expires_at and run.lease_expires_at > now):
            return False
        repeatable = handler_of(run.kind).repeatable(run)
        if repeatable and run.attempts < MAX_ATTEMPTS and not _exceeds_limit(run, now):
            # Messages under the old lease are dropped from now on.
            run.state, run.lease = RunState.QUEUED, ""
            run.lease_expires_at = run.started_at = None
            run.save(update_fields=["state", "lease", "lease_expires_at", "started_at"])
            send_on_commit(run.device.node_id)
            return False
        give_up(run, Reason(CheckCode.NODE_NOT_ANSWERING, {"node": run.device.node.name}))
        _hand_out(run, workspace)
    return True


def give_up(run: GpuCheckRun, reason: Reason) -> None:
    """Close a locked run without a result, which is never a pass."""
    handler, text = handler_of(run.kind), sentence_of(reason)
    close(run, RunState.LOST, summary=text)
    name = display_name(run.device)
    record(run, run.device, "lost", f"received no result of the {handler.noun} of {name}: {text}")
    handler.handle_loss(run, text)


# --- waiting workspaces ----------------------------------------------------------------------------


def _lock_waiting(run_id: UUID) -> Workspace | None:
    """Lock and return the workspace that waits for this run, or return `None`."""
    waits = GpuCheckRun.objects.filter(pk=run_id).values_list("workspace_id", flat=True).first()
    if waits is None:
        return None
    try:
        return lock_workspace(waits)
    except NotFound:
        return None


def _hand_out(run: GpuCheckRun, workspace: Workspace | None) -> None:
    if workspace is not None and run.cause == CheckCause.HAND_OUT:
        emit(PreflightCheckEnded(workspace))
