"""Compares what is wanted of a workspace with what is so, and takes the one next step.

`step` runs under the row's lock and inside a transaction, and only ever writes the database and
sends one command; answers come back through `results.py`.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.errors import StateConflict
from portal.common.texts import storable
from portal.events import services as events
from portal.inventory.models import Device, Node, Pool
from portal.workspaces import admission, dispatch
from portal.workspaces.lifecycle import Reason, State, Trigger, Wanted, advance
from portal.workspaces.models import AllocatedDevice, Allocation, Workspace
from provisioning.types import Op, Placement

log = logging.getLogger(__name__)

QUEUE_RECHECK_S = 5
SIMULATED_OBSERVE_S = 1
STARTING_OBSERVE_S = 5
STOPPING_OBSERVE_S = 0.5
HEARTBEATS_MISSED = 3
MAX_BACKOFF_S = 30
SWEEP_BATCH = 200


def backoff(attempts: int) -> timedelta:
    """1, 2, 4, … up to 30 seconds."""
    return timedelta(seconds=min(2 ** min(attempts, 10), MAX_BACKOFF_S))


def reconcile(workspace_id: UUID) -> None:
    """Take the next step of one workspace, if it is due. Safe to call at any time, any number of times."""
    from portal.workspaces.services import locked

    with transaction.atomic():
        workspace = locked(workspace_id)
        if workspace.due_at is None or workspace.due_at > timezone.now():
            return
        step(workspace)


def sweep() -> int:
    """Reconcile every row that is due, oldest first; returns how many were looked at."""
    due = list(
        Workspace.objects.due(timezone.now())
        .order_by("due_at", "requested_at")
        .values_list("pk", flat=True)[:SWEEP_BATCH]
    )
    for workspace_id in due:
        try:
            reconcile(workspace_id)
        except StateConflict:
            continue
        except Exception:
            # One broken row must not keep the others waiting; it backs off on its own.
            log.exception("reconciling workspace %s failed", workspace_id)
            Workspace.objects.filter(pk=workspace_id).update(
                due_at=timezone.now() + timedelta(seconds=MAX_BACKOFF_S)
            )
    return len(due)


def step(workspace: Workspace) -> None:
    """The next step of a locked workspace; nothing while a command is under way."""
    now = timezone.now()
    if workspace.lease and workspace.lease_expires_at and workspace.lease_expires_at > now:
        return
    match workspace.state:
        case State.PENDING:
            _place_or_wait(workspace, now)
        case State.PROVISIONING:
            _provision(workspace, now)
        case State.RUNNING:
            _watch(workspace, now)
        case State.STOPPING:
            dispatch.send(workspace, Op.STOP)
        case State.TERMINATING:
            dispatch.send(workspace, Op.DELETE)
        case State.STOPPED if workspace.wanted == Wanted.DELETED:
            _delete_stopped(workspace, now)
        case _:
            _rest(workspace)


def _place_or_wait(workspace: Workspace, now: datetime) -> None:
    pools = admission.candidate_pools(workspace.flavor)
    # Placement reads and writes under the locks of the candidate pools, always taken in this order.
    list(Pool.objects.select_for_update().filter(pk__in=[pool.pk for pool in pools]).order_by("pk"))
    verdict = admission.assess(
        template=workspace.template, flavor=workspace.flavor, resources=workspace.resources
    )
    if verdict.pool is None or verdict.placement is None:
        workspace.due_at = now + timedelta(seconds=QUEUE_RECHECK_S)
        workspace.error_code = verdict.outcome.value
        workspace.error_message = verdict.message
        workspace.save(update_fields=["due_at", "error_code", "error_message"])
        return
    generation = workspace.generation + 1
    nodes = ", ".join(item.node for item in verdict.placement.nodes)
    advance(
        workspace,
        Trigger.PLACE,
        actor=SYSTEM,
        message=f"placed it on {nodes}",
        data={"pool": verdict.pool.slug, "generation": generation},
        generation=generation,
        pool=verdict.pool,
        admitted_at=now,
        placed_at=now,
        launched_at=None,
        ready_at=None,
        attempts=0,
        error_code="",
        error_message="",
        endpoint="",
        lease="",
        due_at=now,
    )
    _allocate(workspace, verdict.pool, verdict.placement, now)
    dispatch.send(workspace, Op.START)


def _allocate(workspace: Workspace, pool: Pool, placement: Placement, now: datetime) -> None:
    names = [item.node for item in placement.nodes]
    nodes = {node.name: node for node in Node.objects.filter(pool=pool, name__in=names)}
    uuids = [grant.uuid for item in placement.nodes for grant in item.devices]
    devices = {device.uuid: device for device in Device.objects.filter(uuid__in=uuids)}
    request = admission.request_of(workspace.resources)
    for item in placement.nodes:
        allocation = Allocation.objects.create(
            workspace=workspace,
            node=nodes[item.node],
            generation=workspace.generation,
            cpu_milli=request.cpu_milli,
            memory_mib=request.memory_mib,
            disk_mib=request.disk_mib,
            granted_at=now,
        )
        AllocatedDevice.objects.bulk_create(
            AllocatedDevice(allocation=allocation, device=devices[grant.uuid], milli=grant.milli)
            for grant in item.devices
        )


def release(workspace: Workspace) -> None:
    """Give back what the workspace holds: only after absence has been observed, or before any start."""
    now = timezone.now()
    AllocatedDevice.objects.filter(allocation__workspace=workspace, active=True).update(active=False)
    freed = Allocation.objects.filter(workspace=workspace, released_at=None).update(released_at=now)
    if freed:
        # Whoever waits may fit now: look at the queue at the next sweep instead of in some seconds.
        # Rows that somebody holds are passed over, so that two releases never wait for each other.
        waiting = Workspace.objects.filter(state=State.PENDING, due_at__gt=now)
        free = waiting.select_for_update(skip_locked=True).values_list("pk", flat=True)
        Workspace.objects.filter(pk__in=list(free)).update(due_at=now)


def refused_for_capacity(workspace: Workspace) -> bool:
    """Whether the backend refused this start for lack of room, and the capacity is being given back."""
    return workspace.state == State.PROVISIONING and workspace.error_code == "no_capacity"


def _provision(workspace: Workspace, now: datetime) -> None:
    if refused_for_capacity(workspace):
        dispatch.send(workspace, Op.DELETE)
        return
    placed_at = workspace.placed_at or workspace.state_since
    if now > placed_at + timedelta(seconds=workspace.template.start_timeout_s):
        limit = f"within {workspace.template.start_timeout_s} s"
        fail(
            workspace,
            Reason.START_TIMEOUT,
            code="start_timeout",
            message=(
                f"It could not be started {limit}: {workspace.error_message}"
                if workspace.error_message
                else f"{workspace.template.name} did not answer {limit}. "
                "Look at the log below, then try again."
            ),
        )
        return
    dispatch.send(workspace, Op.OBSERVE if workspace.launched_at else Op.START)


def _watch(workspace: Workspace, now: datetime) -> None:
    """A heartbeat is proof of life; only when it stays away is the backend asked."""
    if workspace.pool is not None and not workspace.pool.simulated and workspace.heartbeat_at:
        fresh_until = workspace.heartbeat_at + heartbeat_patience()
        if now < fresh_until:
            workspace.due_at = fresh_until
            workspace.save(update_fields=["due_at"])
            return
    dispatch.send(workspace, Op.OBSERVE)


def heartbeat_patience() -> timedelta:
    return timedelta(seconds=settings.HEARTBEAT_S * HEARTBEATS_MISSED)


def _delete_stopped(workspace: Workspace, now: datetime) -> None:
    placed = workspace.pool_id is not None
    advance(
        workspace,
        Trigger.TERMINATE if placed else Trigger.CANCEL,
        actor=SYSTEM,
        message="deletes it, now that it has stopped",
        termination_reason=Reason.DELETED,
        due_at=now if placed else None,
    )
    if placed:
        dispatch.send(workspace, Op.DELETE)


def _rest(workspace: Workspace) -> None:
    if workspace.due_at is not None:
        workspace.due_at = None
        workspace.save(update_fields=["due_at"])


def fail(workspace: Workspace, reason: Reason, *, code: str, message: str, log_tail: str = "") -> None:
    """End a workspace that cannot go on: TERMINATING now, FAILED when nothing is left of it."""
    trigger = Trigger.LOST if workspace.state == State.RUNNING else Trigger.FAIL
    advance(
        workspace,
        trigger,
        actor=SYSTEM,
        message=f"ends it: {storable(message)}",
        data={"reason": reason.value, "code": code},
        termination_reason=reason,
        error_code=code,
        error_message=storable(message),
        log_tail=storable(log_tail) or workspace.log_tail,
        lease="",
        attempts=0,
        due_at=timezone.now(),
    )
    dispatch.send(workspace, Op.DELETE)


def note(workspace: Workspace, kind: str, message: str) -> None:
    """Write an event of the system's own about a workspace."""
    events.record(actor=SYSTEM, kind=kind, workspace=workspace, message=message)
