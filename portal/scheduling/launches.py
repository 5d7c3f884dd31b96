"""Executes the starts of a cycle: allocations, state transitions, and commands to nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.fleet.inventory.models import AllocatedDevice, Allocation, Device, Node, Pool
from portal.fleet.inventory.node_commands import config_of
from portal.gpu_checks import preflight, repartitions
from portal.workspaces import dispatch
from portal.workspaces.lifecycle import NO_TROUBLE, NOT_CHECKED, NOT_QUEUED, Trigger
from portal.workspaces.models import Workspace
from portal.workspaces.transitions import advance_all
from provisioning.types import WHOLE_DEVICE_MILLI, MigRepartition, Op, Placement


@dataclass(frozen=True, slots=True)
class Start:
    """A locked, pending workspace with its placement and charges."""

    workspace: Workspace
    pool: Pool
    placement: Placement
    amounts: Mapping[str, int]

    @property
    def changes(self) -> tuple[MigRepartition, ...]:
        """The MIG layouts to change first."""
        return tuple(change for part in self.placement.nodes for change in part.repartitions)

    @property
    def shares(self) -> bool:
        """Whether it gets shares of GPUs that others may use too."""
        return any(
            grant.milli < WHOLE_DEVICE_MILLI for part in self.placement.nodes for grant in part.devices
        )


def begin(starts: Sequence[Start], now: datetime) -> None:
    """Place the workspaces and start them. The number of queries hardly depends on their number.

    Raises `StateConflict`, and changes nothing, if one of them is no longer pending.
    """
    alike: dict[tuple[object, ...], list[Start]] = {}
    for each in starts:
        key = (each.pool.pk, each.workspace.generation, *sorted(each.amounts.items()))
        alike.setdefault(key, []).append(each)
    for group in alike.values():
        first = group[0]
        generation = first.workspace.generation + 1
        advance_all(
            [each.workspace for each in group],
            Trigger.PLACE,
            actor=SYSTEM,
            messages=[
                f"placed it on {', '.join(item.node for item in each.placement.nodes)}" for each in group
            ],
            data={"pool": first.pool.slug, "generation": generation},
            generation=generation,
            pool=first.pool,
            amounts=dict(first.amounts),
            admitted_at=now,
            placed_at=now,
            launched_at=None,
            ready_at=None,
            attempts=0,
            start_refused=False,
            endpoint="",
            **NOT_CHECKED,
            queue=NOT_QUEUED,
            status=NO_TROUBLE,
            **dispatch.new_lease(timezone.now()),
        )
    configs = {each.pool.pk: config_of(each.pool) for each in starts}
    allocated = _allocate(starts, now)
    # A start that waits for device checks has no active command until they pass.
    changes = {each.workspace.pk: each.changes for each in starts if each.changes}
    changing = [each.workspace for each in starts if each.changes]
    if changing:
        repartitions.begin(changes, changing)
        preflight.wait_for_changes(changing, now)
    held_back = preflight.hold_shares([each.workspace for each in starts if each.shares], now)
    others = [each.workspace for each in starts if not each.changes and each.workspace.pk not in held_back]
    checked_first = preflight.begin(others, now) | set(changes) | held_back
    for each, allocations in zip(starts, allocated, strict=True):
        if each.workspace.pk in checked_first:
            _wait_for_checks(each.workspace)
        else:
            dispatch.send_leased(each.workspace, Op.START, configs[each.pool.pk], allocations)


def _wait_for_checks(workspace: Workspace) -> None:
    workspace.lease, workspace.lease_expires_at = "", None
    # The sweep retries it; the end of its last check starts it at once.
    workspace.next_reconcile_at = timezone.now()
    workspace.save(update_fields=["lease", "lease_expires_at", "next_reconcile_at"])


def _allocate(starts: Sequence[Start], now: datetime) -> list[list[Allocation]]:
    """Create the allocations of each start, with their devices prefetched."""
    items = [(each, item) for each in starts for item in each.placement.nodes]
    nodes = {
        (node.pool_id, node.name): node
        for node in Node.objects.filter(
            pool__in={each.pool.pk for each in starts}, name__in={item.node for _, item in items}
        ).only("pool", "name")
    }
    uuids = {grant.uuid for _, item in items for grant in item.devices}
    devices = {each.uuid: each for each in Device.objects.filter(uuid__in=uuids).only("uuid", "index")}
    found: dict[UUID, list[Allocation]] = {each.workspace.pk: [] for each in starts}
    requests = {each.workspace.pk: each.workspace.request for each in starts}
    granted: list[AllocatedDevice] = []
    made = Allocation.objects.bulk_create(
        Allocation(
            workspace=each.workspace,
            node=nodes[each.pool.pk, item.node],
            generation=each.workspace.generation,
            flavor=each.workspace.flavor.slug,
            cpu_milli=requests[each.workspace.pk].cpu_milli,
            memory_mib=requests[each.workspace.pk].memory_mib,
            disk_mib=requests[each.workspace.pk].disk_mib,
            granted_at=now,
        )
        for each, item in items
    )
    for allocation, (each, item) in zip(made, items, strict=True):
        its = [
            AllocatedDevice(
                allocation=allocation,
                device=devices[grant.uuid],
                milli=grant.milli,
                memory_mib=grant.memory_mib,
            )
            for grant in item.devices
        ]
        granted += its
        # Fill the prefetch cache instead of reading what was just written.
        prefetched: Any = allocation
        prefetched._prefetched_objects_cache = {"devices": its}
        found[each.workspace.pk].append(allocation)
    AllocatedDevice.objects.bulk_create(granted)
    return list(found.values())
