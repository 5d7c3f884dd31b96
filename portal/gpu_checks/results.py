"""Taking in what nodes say about checks and scrubs, and acting upon it: once, and never on a wrong report."""

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
from portal.gpu_checks.domain_events import HandOutCheckEnded
from portal.gpu_checks.kinds import repartition
from portal.gpu_checks.kinds.registry import handler_of
from portal.gpu_checks.models import CheckCause, GpuCheckRun, RunState
from portal.gpu_checks.runs import (
    MAX_ATTEMPTS,
    SILENT_S,
    end,
    hard_limit,
    locked_run,
    record,
    send_on_commit,
)
from portal.workspaces.models import Workspace
from portal.workspaces.transitions import locked
from provisioning.check_messages import CheckAnswer

MAX_PROGRESS_LENGTH = 500


def of_its_node(run: str, lease: str) -> bool:
    """Whether the message comes from the node that was asked, under the run's present lease."""
    try:
        found = GpuCheckRun.objects.filter(pk=UUID(run), lease=lease).select_related("device__node__pool")
    except ValueError:
        return False
    held = found.first() if lease else None
    return held is not None and node_messages.is_of(held.device.node.pool, held.device.node.name)


def apply_progress(*, run_id: UUID, lease: str, progress: dict[str, Any]) -> bool:
    """Note how far a run has come, and that its node is alive; False when it is stale and was dropped."""
    if not lease:
        return False
    now = timezone.now()
    fields: dict[str, Any] = {
        "state": RunState.RUNNING,
        "lease_expires_at": now + timedelta(seconds=SILENT_S),
        "progress": _progress(progress),
    }
    its = GpuCheckRun.objects.filter(pk=run_id, lease=lease)
    if its.filter(state=RunState.QUEUED).update(**fields, started_at=now):
        live.publish_check(run_id)
        return True
    run = its.filter(state=RunState.RUNNING).only("kind", "level", "started_at").first()
    if run is None or _too_long(run, now):
        # One that tells for ever that it goes on is given up too, when its lease has run out.
        return False
    if not its.filter(state=RunState.RUNNING).update(**fields):
        return False
    live.publish_check(run_id)
    return True


def _too_long(run: GpuCheckRun, now: datetime) -> bool:
    return run.started_at is not None and now - run.started_at > hard_limit(run)


def _progress(sent: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name in ("phase", "test", "text"):
        kept[name] = strip_nul(str(sent.get(name, "")))[:MAX_PROGRESS_LENGTH]
    for name in ("done", "total", "elapsed_ms"):
        value = sent.get(name, 0)
        whole = isinstance(value, int) and not isinstance(value, bool)
        kept[name] = min(max(value, 0), 2**31) if whole else 0
    return kept


def apply_answer(answer: CheckAnswer) -> bool:
    """Take in how a run ended; False when the answer is stale, or about something else, and was dropped."""
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
    """Changes of MIG layouts that the inventory shows are done. Each in a transaction of its own."""
    for run_id in repartitions.to_conclude(event.pool):
        conclude_change(run_id)


@transaction.atomic
def conclude_change(run_id: UUID) -> bool:
    """End a change of a MIG layout if it is seen to be done; whether it has ended by now."""
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


def silent(run_id: UUID) -> bool:
    """Nobody answers for an open run: it is sent again, or it is lost; whether it is lost now."""
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
        if repeatable and run.attempts < MAX_ATTEMPTS and not _too_long(run, now):
            # What comes under the old lease from now on is too late.
            run.state, run.lease = RunState.QUEUED, ""
            run.lease_expires_at = run.started_at = None
            run.save(update_fields=["state", "lease", "lease_expires_at", "started_at"])
            send_on_commit(run.device.node_id)
            return False
        give_up(run, Reason(CheckCode.NODE_NOT_ANSWERING, {"node": run.device.node.name}))
        _hand_out(run, workspace)
    return True


def give_up(run: GpuCheckRun, reason: Reason) -> None:
    """Close a locked run without a result: what is not known is no pass."""
    handler, words = handler_of(run.kind), sentence_of(reason)
    end(run, RunState.LOST, summary=words)
    name = display_name(run.device)
    record(run, run.device, "lost", f"has no result of the {handler.noun} of {name}: {words}")
    handler.lost(run, words)


# --- who waits -------------------------------------------------------------------------------------


def _lock_waiting(run_id: UUID) -> Workspace | None:
    """The workspace that waits for this run, if one does, under its lock."""
    waits = GpuCheckRun.objects.filter(pk=run_id).values_list("workspace_id", flat=True).first()
    if waits is None:
        return None
    try:
        return locked(waits)
    except NotFound:
        return None


def _hand_out(run: GpuCheckRun, workspace: Workspace | None) -> None:
    if workspace is not None and run.cause == CheckCause.HAND_OUT:
        emit(HandOutCheckEnded(workspace))
