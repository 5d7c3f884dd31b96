"""Reconciles the desired state of a workspace with its actual state, one step at a time.

`take_next_step` runs in a transaction under the row lock. It only writes to the database and sends at most
one command; answers arrive through `results.py`.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.domain_events import emit
from portal.common.errors import StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.fleet.inventory.domain_events import CapacityFreed
from portal.fleet.inventory.models import AllocatedDevice, Allocation
from portal.workspaces import dispatch
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.domain_events import (
    AllocationsReleased,
    HomeMoveDue,
    PreemptionDue,
    PreflightDue,
    WorkspaceFailed,
    WorkspaceWaits,
)
from portal.workspaces.lifecycle import (
    JUST_REQUESTED,
    NOT_QUEUED,
    NOTHING_SEEN,
    DesiredState,
    State,
    TerminationReason,
    Trigger,
)
from portal.workspaces.models import PoolObservation, Workspace
from portal.workspaces.problems import error_code_of
from portal.workspaces.transitions import advance, lock_workspace
from provisioning.traits import AppReach, Placing, Plane
from provisioning.types import Op

log = logging.getLogger(__name__)

REFUSED_WAIT_S = 5
STOPPING_OBSERVE_S = 0.5
HEARTBEATS_MISSED = 3
MAX_BACKOFF_S = 30
SWEEP_BATCH = 200


def backoff(attempts: int) -> timedelta:
    """Return the retry delay: 1, 2, 4, … up to 30 seconds."""
    return timedelta(seconds=min(2 ** min(attempts, 10), MAX_BACKOFF_S))


def reconcile(workspace_id: UUID) -> None:
    """Take the next step of one workspace, if it is due. Idempotent."""
    with transaction.atomic():
        workspace = lock_workspace(workspace_id)
        if workspace.next_reconcile_at is None or workspace.next_reconcile_at > timezone.now():
            return
        take_next_step(workspace)


def sweep() -> int:
    """Reconcile all rows that are due, oldest first, and return their number."""
    due_ids = list(
        Workspace.objects.due(timezone.now())
        .order_by("next_reconcile_at", "requested_at")
        .values_list("pk", flat=True)[:SWEEP_BATCH]
    )
    for workspace_id in due_ids:
        try:
            reconcile(workspace_id)
        except StateConflict:
            continue
        except Exception:
            # One broken row must not block the others; it is retried later.
            log.exception("reconciling workspace %s failed", workspace_id)
            Workspace.objects.filter(pk=workspace_id).update(
                next_reconcile_at=timezone.now() + timedelta(seconds=MAX_BACKOFF_S)
            )
    _observe_due_pools()
    return len(due_ids)


def _observe_due_pools() -> None:
    """Request the observation of the pools in which workspaces start."""
    now = timezone.now()
    for row in PoolObservation.objects.filter(due_at__lte=now).select_related("pool"):
        with transaction.atomic():
            dispatch.request_observations(row.pool, now)


def take_next_step(workspace: Workspace) -> None:
    """Take the next step of a locked workspace, unless a command is in flight."""
    now = timezone.now()
    if workspace.lease and workspace.lease_expires_at and workspace.lease_expires_at > now:
        return
    match workspace.state:
        case State.PENDING:
            _wait(workspace)
        case State.PROVISIONING:
            _provision(workspace, now)
        case State.RUNNING:
            _watch(workspace, now)
        case State.STOPPING:
            dispatch.send(workspace, Op.STOP)
        case State.TERMINATING:
            _terminate(workspace)
        case State.STOPPED if workspace.desired_state == DesiredState.DELETED:
            _delete_stopped(workspace, now)
        case State.STOPPED if workspace.desired_state == DesiredState.RUNNING:
            requeue(workspace)
        case _:
            _clear_next_reconcile(workspace)


def _terminate(workspace: Workspace) -> None:
    allocations = dispatch.allocations_of(workspace)
    if allocations or dispatch.has_worker(workspace):
        dispatch.send(workspace, Op.DELETE, allocations=allocations)
    else:
        # The workspace holds nothing, and its pool has no machine left where anything of it could run.
        mark_deleted(workspace)


def mark_deleted(workspace: Workspace) -> None:
    """Mark the workspace as deleted, and release its capacity."""
    advance(
        workspace,
        Trigger.GONE,
        actor=SYSTEM,
        message="confirmed that the workspace has ended",
        endpoint="",
        attempts=0,
        next_reconcile_at=None,
    )
    release(workspace)


def _wait(workspace: Workspace) -> None:
    """Leave a queued workspace to the queue."""
    _clear_next_reconcile(workspace)
    emit(WorkspaceWaits(workspace))


def release(workspace: Workspace, *, used: bool = True, only: Q | None = None) -> None:
    """Release the workspace's allocations.

    Call this function only after absence was observed, before any start, or if an operator has given up the
    machine. `only` selects some of the allocations. Real devices that may have been `used` are scrubbed
    before they are allocated again.
    """
    now = timezone.now()
    allocations = Allocation.objects.filter(only or Q(), workspace=workspace, released_at=None)
    shares = AllocatedDevice.objects.filter(allocation__in=list(allocations), active=True)
    devices = list(shares.values_list("device_id", flat=True))
    shares.update(active=False)
    freed = allocations.update(released_at=now)
    if freed:
        emit(AllocationsReleased(workspace, tuple(devices), used))
        emit(CapacityFreed())


def requeue(workspace: Workspace) -> None:
    """Queue a preempted workspace again after it has stopped, with its original age."""
    advance(
        workspace,
        Trigger.START,
        actor=SYSTEM,
        message="queued the workspace again",
        next_reconcile_at=None,
        attempts=0,
        queue=NOT_QUEUED,
        status=NOTHING_SEEN,
        end_preemption=True,
        **JUST_REQUESTED,
    )
    emit(WorkspaceWaits(workspace))


def _provision(workspace: Workspace, now: datetime) -> None:
    if workspace.start_refused:
        dispatch.send(workspace, Op.DELETE)
        return
    if _is_preempted(workspace, now):
        emit(PreemptionDue(workspace))
        return
    if workspace.waits_for_checks:
        emit(PreflightDue(workspace))
        return
    if workspace.waits_for_home:
        emit(HomeMoveDue(workspace))
        return
    if now > _started_at(workspace, now) + timedelta(seconds=workspace.template.start_timeout_s):
        fail(workspace, TerminationReason.START_TIMEOUT, _timeout_reason(workspace))
        return
    if workspace.launched_at:
        _observe(workspace, now, timedelta(seconds=settings.NODE_LEASE_S))
    else:
        dispatch.send(workspace, Op.START)


def _is_preempted(workspace: Workspace, now: datetime) -> bool:
    return workspace.preempting is not None and workspace.preempting.preempt_at <= now


def _timeout_reason(workspace: Workspace) -> Reason:
    limit_s, cause = workspace.template.start_timeout_s, workspace.status.reason
    if cause:
        return Reason(
            WorkspaceCode.NOT_STARTED_IN_TIME, {"limit_s": limit_s, "cause": cause, "code": "start_timeout"}
        )
    return Reason(WorkspaceCode.START_TIMEOUT, {"limit_s": limit_s, "template": workspace.template.name})


def _started_at(workspace: Workspace, now: datetime) -> datetime:
    """Return when the start timeout begins: after GPU checks and the home move, if any."""
    if (
        workspace.pool is not None
        and workspace.pool.traits.placing is Placing.ENGINE
        and workspace.launched_at
    ):
        # The time at the engine's queue does not count.
        return workspace.began_at or now
    began = workspace.placed_at or workspace.state_since
    if now <= began + timedelta(seconds=workspace.template.start_timeout_s):
        return began
    ends = (workspace.checks_ended_at, workspace.home_move_ended_at)
    return max((at for at in ends if at is not None), default=began)


def _watch(workspace: Workspace, now: datetime) -> None:
    """Send an OBSERVE if the heartbeat is overdue."""
    if _is_preempted(workspace, now):
        emit(PreemptionDue(workspace))
        return
    heartbeat_at = workspace.status.heartbeat_at
    if workspace.pool is not None and workspace.pool.traits.reach is not AppReach.NONE and heartbeat_at:
        fresh_until = heartbeat_at + heartbeat_patience()
        if now < fresh_until:
            # No later than its preemption.
            notice = workspace.preempting
            workspace.next_reconcile_at = min(fresh_until, notice.preempt_at) if notice else fresh_until
            workspace.save(update_fields=["next_reconcile_at"])
            return
    _observe(workspace, now, heartbeat_patience())


def _observe(workspace: Workspace, now: datetime, again_after: timedelta) -> None:
    """Request an observation of the workspace, or of its whole pool if the pool belongs to an engine."""
    pool = workspace.pool
    if pool is None or pool.traits.plane is not Plane.ENGINE:
        dispatch.send(workspace, Op.OBSERVE)
        return
    # The answer sets an earlier time for starting workspaces (`pool_observations`).
    workspace.next_reconcile_at = now + again_after
    workspace.save(update_fields=["next_reconcile_at"])
    dispatch.request_observations(pool, now)


def heartbeat_patience() -> timedelta:
    return timedelta(seconds=settings.HEARTBEAT_S * HEARTBEATS_MISSED)


def _delete_stopped(workspace: Workspace, now: datetime) -> None:
    placed = workspace.pool_id is not None
    advance(
        workspace,
        Trigger.TERMINATE if placed else Trigger.CANCEL,
        actor=SYSTEM,
        message="deleted the workspace after it stopped",
        termination_reason=workspace.termination_reason,
        next_reconcile_at=now if placed else None,
    )
    if placed:
        dispatch.send(workspace, Op.DELETE)


def _clear_next_reconcile(workspace: Workspace) -> None:
    if workspace.next_reconcile_at is not None:
        workspace.next_reconcile_at = None
        workspace.save(update_fields=["next_reconcile_at"])


def fail(
    workspace: Workspace, termination_reason: TerminationReason, reason: Reason, *, log_tail: str = ""
) -> None:
    """Fail a workspace: TERMINATING now, FAILED once nothing of it is left."""
    trigger = Trigger.LOST if workspace.state == State.RUNNING else Trigger.FAIL
    status: dict[str, Any] = {"reason": reason.as_json()}
    if log_tail:
        status["log_tail"] = strip_nul(log_tail)
    advance(
        workspace,
        trigger,
        actor=SYSTEM,
        message="ended the workspace",
        cause=reason.as_json(),
        data={"reason": termination_reason.value, "code": error_code_of(reason)},
        termination_reason=termination_reason,
        status=status,
        lease="",
        attempts=0,
        next_reconcile_at=timezone.now(),
    )
    emit(WorkspaceFailed(workspace, termination_reason, reason))
    dispatch.send(workspace, Op.DELETE)


def note(workspace: Workspace, kind: AuditKind, message: str) -> None:
    """Record an audit entry about a workspace, with the system as the actor."""
    events.record(actor=SYSTEM, kind=kind, workspace=workspace, message=message)
