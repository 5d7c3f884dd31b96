"""What happens to a workspace when the queue has decided: it gets its place, or is asked to leave it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from portal.common.actors import SYSTEM
from portal.inventory.models import Device, Node, Pool
from portal.workspaces import dispatch
from portal.workspaces.lifecycle import Trigger, advance
from portal.workspaces.models import AllocatedDevice, Allocation, Workspace
from provisioning import messages
from provisioning.types import Op, Placement, ResourceRequest

NOT_WAITING: dict[str, Any] = {
    "claimed": False,
    "promised": 0,
    "queue_position": None,
    "eta_at": None,
    "eta_basis": "",
    "blocker": {},
}
"""The columns that only mean something while a workspace waits."""
NOT_LEAVING: dict[str, Any] = {"leave_at": None, "leave_for": "", "leave_reason": ""}
"""The columns that only mean something once it has been asked to leave."""
FROM_THE_START: dict[str, Any] = {
    "pool": None,
    "admitted_at": None,
    "placed_at": None,
    "launched_at": None,
    "ready_at": None,
    "heartbeat_at": None,
    "gpu_idle_since": None,
    "activity": {},
    "log_tail": "",
    **NOT_WAITING,
    **NOT_LEAVING,
}
"""The columns of a workspace that has just been asked for."""


@dataclass(frozen=True, slots=True)
class Known:
    """Rows that several starts need: nodes by pool and name, devices by UUID."""

    nodes: Mapping[tuple[UUID, str], Node]
    devices: Mapping[str, Device]

    @classmethod
    def of(cls, places: Iterable[tuple[Pool, Placement]]) -> Known:
        """What these placements name, in two queries."""
        places = list(places)
        names = {item.node for _, placement in places for item in placement.nodes}
        uuids = [grant.uuid for _, placement in places for item in placement.nodes for grant in item.devices]
        nodes = Node.objects.filter(pool__in={pool.pk for pool, _ in places}, name__in=names)
        return cls(
            {(node.pool_id, node.name): node for node in nodes},
            Device.objects.in_bulk(uuids, field_name="uuid") if uuids else {},
        )


def begin(
    workspace: Workspace,
    pool: Pool,
    placement: Placement,
    amounts: Mapping[str, int],
    now: datetime,
    *,
    known: Known | None = None,
) -> None:
    """Give a locked, waiting workspace its place, and have it started there."""
    known = known or Known.of([(pool, placement)])
    generation = workspace.generation + 1
    nodes = ", ".join(item.node for item in placement.nodes)
    advance(
        workspace,
        Trigger.PLACE,
        actor=SYSTEM,
        message=f"placed it on {nodes}",
        data={"pool": pool.slug, "generation": generation},
        generation=generation,
        pool=pool,
        amounts=dict(amounts),
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
        **NOT_WAITING,
    )
    dispatch.send(workspace, Op.START, allocations=_allocate(workspace, pool, placement, now, known))


def _allocate(
    workspace: Workspace, pool: Pool, placement: Placement, now: datetime, known: Known
) -> list[Allocation]:
    request = messages.load(workspace.resources, ResourceRequest)
    made = []
    for item in placement.nodes:
        allocation = Allocation.objects.create(
            workspace=workspace,
            node=known.nodes[pool.pk, item.node],
            generation=workspace.generation,
            cpu_milli=request.cpu_milli,
            memory_mib=request.memory_mib,
            disk_mib=request.disk_mib,
            granted_at=now,
        )
        devices = [
            AllocatedDevice(
                allocation=allocation,
                device=known.devices[grant.uuid],
                milli=grant.milli,
                memory_mib=grant.memory_mib,
            )
            for grant in item.devices
        ]
        if devices:
            AllocatedDevice.objects.bulk_create(devices)
        # As if it had been prefetched: what has just been written need not be read.
        prefetched: Any = allocation
        prefetched._prefetched_objects_cache = {"devices": devices}
        made.append(allocation)
    return made
