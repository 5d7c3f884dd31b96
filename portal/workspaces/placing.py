"""What happens to a workspace when the queue has decided: it gets its place, or is asked to leave it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

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
    "activity": {},
    "log_tail": "",
    **NOT_WAITING,
    **NOT_LEAVING,
}
"""The columns of a workspace that has just been asked for."""


def begin(
    workspace: Workspace, pool: Pool, placement: Placement, amounts: Mapping[str, int], now: datetime
) -> None:
    """Give a locked, waiting workspace its place, and have it started there."""
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
    _allocate(workspace, pool, placement, now)
    dispatch.send(workspace, Op.START)


def _allocate(workspace: Workspace, pool: Pool, placement: Placement, now: datetime) -> None:
    names = [item.node for item in placement.nodes]
    nodes = {node.name: node for node in Node.objects.filter(pool=pool, name__in=names)}
    uuids = [grant.uuid for item in placement.nodes for grant in item.devices]
    devices = Device.objects.in_bulk(uuids, field_name="uuid") if uuids else {}
    request = messages.load(workspace.resources, ResourceRequest)
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
        if item.devices:
            AllocatedDevice.objects.bulk_create(
                AllocatedDevice(
                    allocation=allocation,
                    device=devices[grant.uuid],
                    milli=grant.milli,
                    memory_mib=grant.memory_mib,
                )
                for grant in item.devices
            )
