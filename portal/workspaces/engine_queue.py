"""Workspaces of engines that place by themselves: they wait there, begin, and may be queued again.

The quota is held from the hand-over to the engine on. Time counts from when the engine has begun: GPU-hours,
the start timeout, and the lifetime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.domain_events import emit
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.fleet.inventory.domain_events import CapacityFreed
from portal.fleet.inventory.models import AllocatedDevice, Allocation
from portal.workspaces import reconcile
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.domain_events import EngineRequeued, RequestChanged
from portal.workspaces.lifecycle import HOLDING, NO_TROUBLE, State, Trigger
from portal.workspaces.models import Workspace
from portal.workspaces.transitions import advance, set_rows
from provisioning.traits import Placing
from provisioning.types import EngineQueue, Observation, PlacedNode

CLOCK_TOLERANCE_S = 30
"""Difference of clocks up to which two times of a begin are the same."""
SEEN_STEP_S = 15
"""Seconds after which an unchanged wait is recorded again, so that its age is shown."""


@dataclass(frozen=True, slots=True)
class EngineWait:
    """The wait of a workspace at its engine, as the engine has reported it at `seen_at`.

    `position` counts from 1, None if not known. `code` and `message` are the engine's reason. `starts_at` is
    its estimate, None without one or if it has passed.
    """

    position: int | None
    code: str
    message: str
    starts_at: datetime | None
    seen_at: datetime


def places(workspace: Workspace) -> bool:
    """Return whether its engine places the workspace, instead of the portal."""
    return workspace.pool is not None and workspace.pool.traits.placing is Placing.ENGINE


def wait_of(engine: Mapping[str, Any], now: datetime) -> EngineWait | None:
    """Return the wait in a `WorkspaceStatus.engine`, or None if the workspace does not wait at its engine."""
    queue = engine.get("queue")
    if not queue:
        return None
    starts_at = _moment(queue["starts_at"])
    return EngineWait(
        queue["position"] or None,
        queue["code"],
        queue["message"],
        starts_at if starts_at is not None and starts_at > now else None,
        datetime.fromtimestamp(queue["seen_at"], UTC),
    )


def current_wait(workspace: Workspace, now: datetime) -> EngineWait | None:
    """Return the wait of a workspace, or None if it does not wait at its engine."""
    return wait_of(workspace.status.engine, now) if workspace.state == State.PROVISIONING else None


def place_of(workspace: Workspace) -> list[PlacedNode]:
    """Return where the engine has placed a workspace; empty if the engine has not, or no longer holds it."""
    if workspace.state not in HOLDING:
        return []
    return [
        PlacedNode(row["node"], tuple(row["devices"])) for row in workspace.status.engine.get("placed", ())
    ]


def queued_at(workspace: Workspace) -> datetime | None:
    """Return when the workspace joined the queue of its engine: at its hand-over, or when queued again."""
    return requeued_at(workspace) or workspace.placed_at


def requeued_at(workspace: Workspace) -> datetime | None:
    """Return when the engine last preempted the workspace of this start, or None."""
    return _moment(workspace.status.engine.get("requeued_at"))


def is_news(engine: Mapping[str, Any], began_at: datetime | None, seen: Observation) -> bool:
    """Return whether an observation changes what is stored about the workspace's engine."""
    if seen.queue is None:
        return began_at is None or _began_again(began_at, seen)
    stored, queue = engine.get("queue"), as_json(seen.queue)
    if not stored or {**stored, "seen_at": 0} != {**queue, "seen_at": 0}:
        return True
    return bool(queue["seen_at"] - stored["seen_at"] >= SEEN_STEP_S)


def record_wait(workspace: Workspace, seen: Observation) -> None:
    """Record that the engine has accepted the locked workspace, and what it reports about the wait."""
    changes: dict[str, Any] = {"attempts": 0}
    if workspace.launched_at is None:
        changes["launched_at"] = timezone.now()
        reconcile.note(workspace, AuditKind.WORKSPACE_LAUNCHED, "handed the workspace to its engine")
    if workspace.began_at is not None:
        # The engine has preempted it while it started.
        changes["began_at"] = None
        _restart_allocations(workspace)
    for name, value in changes.items():
        setattr(workspace, name, value)
    workspace.save(update_fields=list(changes))
    if len(changes) > 1:
        emit(RequestChanged(workspace))
    engine = {**_requeued(workspace), **_waiting(seen)}
    set_rows([workspace], status={**NO_TROUBLE, "engine": engine})


def record_begin(workspace: Workspace, seen: Observation) -> None:
    """Record when and where the engine has begun the locked workspace. Idempotent."""
    if workspace.began_at is not None:
        if not _began_again(workspace.began_at, seen):
            return
        # It was preempted and has begun again between two observations.
        _restart_allocations(workspace, until=_moment(seen.began_at))
    now = timezone.now()
    # The engine's clock may differ.
    began_at = min(max(_moment(seen.began_at) or now, queued_at(workspace) or now), now)
    workspace.began_at = began_at
    workspace.save(update_fields=["began_at"])
    waiting = Allocation.objects.filter(workspace=workspace, released_at=None, granted_at=None)
    waiting.update(granted_at=began_at)
    placed = [{"node": part.node, "devices": list(part.devices)} for part in seen.placed]
    engine = {**_requeued(workspace), "placed": placed, "ends_at": seen.ends_at}
    set_rows([workspace], status={"engine": engine})
    emit(RequestChanged(workspace))
    # Another request can be handed over.
    emit(CapacityFreed())


def requeue(workspace: Workspace, seen: Observation) -> None:
    """Record that the engine has preempted a locked running workspace and has queued it again."""
    _restart_allocations(workspace)
    now = timezone.now()
    pool = workspace.pool.name if workspace.pool is not None else ""
    engine = {"requeued_at": now.timestamp(), **_waiting(seen)}
    advance(
        workspace,
        Trigger.ENGINE_REQUEUE,
        actor=SYSTEM,
        message="the engine preempted the workspace and queued it again",
        cause=Reason(WorkspaceCode.ENGINE_REQUEUED, {"pool": pool}).as_json(),
        began_at=None,
        ready_at=None,
        ends_at=None,
        endpoint="",
        attempts=0,
        status={**NO_TROUBLE, "heartbeat_at": None, "gpu_idle_since": None, "engine": engine},
    )
    emit(EngineRequeued(workspace))


def earlier_end(workspace: Workspace, now: datetime) -> datetime | None:
    """Return when a workspace that is ready now ends: by its lifetime or by its engine's time limit."""
    ends = [_moment(workspace.status.engine.get("ends_at"))]
    if workspace.lifetime_s is not None:
        ends.append(now + timedelta(seconds=workspace.lifetime_s))
    return min((end for end in ends if end is not None), default=None)


def waits(workspace: Workspace) -> bool:
    """Return whether the workspace waits at its engine."""
    return workspace.state == State.PROVISIONING and bool(workspace.status.engine.get("queue"))


def as_json(queue: EngineQueue) -> dict[str, Any]:
    """Return the wait as `WorkspaceStatus.engine` stores it."""
    return {
        "position": queue.position,
        "code": strip_nul(queue.code),
        "message": strip_nul(queue.message),
        "starts_at": queue.starts_at,
        "seen_at": queue.seen_at,
    }


def _began_again(began_at: datetime, seen: Observation) -> bool:
    return seen.began_at is not None and seen.began_at - began_at.timestamp() > CLOCK_TOLERANCE_S


def _requeued(workspace: Workspace) -> dict[str, Any]:
    """Return when the engine has queued the workspace again, as stored, or nothing."""
    at = workspace.status.engine.get("requeued_at")
    return {} if at is None else {"requeued_at": at}


def _waiting(seen: Observation) -> dict[str, Any]:
    queue = seen.queue or EngineQueue(seen_at=timezone.now().timestamp())
    return {"queue": as_json(queue)}


def _restart_allocations(workspace: Workspace, until: datetime | None = None) -> None:
    """End the counted time of the allocations, by default now. New ones hold the quota, not counted yet."""
    now = timezone.now()
    ended_at = min(until or now, now)
    active = Allocation.objects.filter(workspace=workspace, released_at=None, granted_at__isnull=False)
    for allocation in active.prefetch_related("devices"):
        devices = list(allocation.devices.all())
        AllocatedDevice.objects.filter(allocation=allocation).update(active=False)
        Allocation.objects.filter(pk=allocation.pk).update(released_at=ended_at)
        allocation.pk = None
        allocation._state.adding = True
        allocation.granted_at, allocation.released_at = None, None
        allocation.save()
        for device in devices:
            device.pk, device._state.adding, device.allocation = None, True, allocation
        AllocatedDevice.objects.bulk_create(devices)


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
