"""Executes the starts of a cycle: allocations, state transitions, and commands to nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils import timezone

from portal.catalog.models import Flavor
from portal.common.actors import SYSTEM
from portal.fleet.inventory.models import AllocatedDevice, Allocation, Device, Node, Pool
from portal.fleet.inventory.node_commands import config_of
from portal.gpu_checks import preflight, repartitions
from portal.workspaces import dispatch
from portal.workspaces.lifecycle import NO_TROUBLE, NOT_PREPARED, NOT_QUEUED, Trigger
from portal.workspaces.models import Workspace
from portal.workspaces.secrets import effective
from portal.workspaces.transitions import advance_all
from provisioning.traits import Placing
from provisioning.types import WHOLE_DEVICE_MILLI, MigRepartition, Op, Placement

BATCH = 500
FLAVOR_COLUMNS = ("resources", "preemptible", "loses_work", "lifetime_s")
"""Columns of a workspace that depend on its flavor, and which each of its `flavor_choices` has."""


@dataclass(frozen=True, slots=True)
class Start:
    """A locked, pending workspace with its placement and charges.

    `flavor` is the flavor on which the workspace starts, if it lists several. `moves_home`: its home moves
    there first.
    """

    workspace: Workspace
    pool: Pool
    placement: Placement
    amounts: Mapping[str, int]
    flavor: Flavor | None = None
    moves_home: bool = False

    @property
    def changes(self) -> tuple[MigRepartition, ...]:
        """The MIG layouts to change first."""
        return tuple(change for part in self.placement.nodes for change in part.repartitions)

    @property
    def shares(self) -> bool:
        """Whether the workspace gets shares of GPUs that other workspaces may use too."""
        return any(
            grant.milli < WHOLE_DEVICE_MILLI for part in self.placement.nodes for grant in part.devices
        )


def start_workspaces(starts: Sequence[Start], now: datetime) -> None:
    """Place the workspaces and start them. The number of queries hardly depends on that of workspaces.

    Raises `StateConflict`, and changes nothing, if one of them is no longer pending.
    """
    _take_flavors(starts)
    alike: dict[tuple[object, ...], list[Start]] = {}
    for start in starts:
        alike.setdefault((start.pool.pk, start.workspace.generation), []).append(start)
    for group in alike.values():
        first = group[0]
        same_amounts = all(start.amounts == first.amounts for start in group)
        generation = first.workspace.generation + 1
        advance_all(
            [start.workspace for start in group],
            Trigger.PLACE,
            actor=SYSTEM,
            messages=[_message_of(start) for start in group],
            data={"pool": first.pool.slug, "generation": generation},
            generation=generation,
            pool=first.pool,
            **({"amounts": dict(first.amounts)} if same_amounts else {}),
            admitted_at=now,
            placed_at=now,
            launched_at=None,
            began_at=None,
            ready_at=None,
            attempts=0,
            start_refused=False,
            endpoint="",
            **NOT_PREPARED,
            queue=NOT_QUEUED,
            status={**NO_TROUBLE, "engine": {}},
            **dispatch.new_lease(timezone.now()),
        )
        if not same_amounts:
            _write_amounts(group)
    configs = {start.pool.pk: config_of(start.pool) for start in starts}
    allocated = _allocate(starts, now)
    # A start that waits for GPU checks or a home has no command in flight until then.
    changes = {start.workspace.pk: start.changes for start in starts if start.changes}
    changing = [start.workspace for start in starts if start.changes]
    if changing:
        repartitions.begin(changes, changing)
        preflight.wait_for_changes(changing, now)
    held_back = preflight.hold_shares([start.workspace for start in starts if start.shares], now)
    others = [
        start.workspace for start in starts if not start.changes and start.workspace.pk not in held_back
    ]
    homes_first = _wait_for_homes([start.workspace for start in starts if start.moves_home], now)
    waits = preflight.begin(others, now) | set(changes) | held_back | homes_first
    holders = _secret_holders(starts)
    for start, allocations in zip(starts, allocated, strict=True):
        row = start.workspace
        if row.pk in waits:
            _skip_dispatch(row)
        else:
            dispatch.send_leased(
                row,
                Op.START,
                configs[start.pool.pk],
                allocations,
                may_have_secrets=holders.offer(row.owner_id, row.team_id, row.template_id),
            )


def _take_flavors(starts: Sequence[Start]) -> None:
    """Apply the flavor and its options to workspaces that start on another flavor of their list."""
    moved = []
    for start in starts:
        row, flavor = start.workspace, start.flavor
        if flavor is None or flavor.pk == row.flavor_id:
            continue
        choice = next(choice for choice in row.flavor_choices if choice["flavor"] == flavor.slug)
        row.flavor = flavor
        for name in FLAVOR_COLUMNS:
            setattr(row, name, choice[name])
        moved.append(row)
    if moved:
        Workspace.objects.bulk_update(moved, ["flavor", *FLAVOR_COLUMNS], batch_size=BATCH)


def _message_of(start: Start) -> str:
    nodes = ", ".join(item.node for item in start.placement.nodes)
    return f"placed the workspace on {nodes}" + (
        f", on {start.flavor.name}" if start.flavor is not None else ""
    )


def _secret_holders(starts: Sequence[Start]) -> effective.Holders:
    """Return which owners, teams and templates of these starts have secrets. Usually few do."""
    rows = [start.workspace for start in starts]
    return effective.holders_among(
        {row.owner_id for row in rows}, {row.team_id for row in rows}, {row.template_id for row in rows}
    )


def _write_amounts(starts: Sequence[Start]) -> None:
    for start in starts:
        start.workspace.amounts = dict(start.amounts)
    Workspace.objects.bulk_update([start.workspace for start in starts], ["amounts"], batch_size=BATCH)


def _wait_for_homes(workspaces: Sequence[Workspace], now: datetime) -> set[UUID]:
    """Record that these workspaces wait for home moves, and return their keys."""
    keys = {workspace.pk for workspace in workspaces}
    if keys:
        Workspace.objects.filter(pk__in=keys).update(home_move_began_at=now)
    for workspace in workspaces:
        workspace.home_move_began_at = now
    return keys


def _skip_dispatch(workspace: Workspace) -> None:
    workspace.lease, workspace.lease_expires_at = "", None
    # The sweep checks the workspace again, unless the end of its last GPU check or home move starts it
    # earlier.
    workspace.next_reconcile_at = timezone.now()
    workspace.save(update_fields=["lease", "lease_expires_at", "next_reconcile_at"])


def _allocate(starts: Sequence[Start], now: datetime) -> list[list[Allocation]]:
    """Create the allocations of each start, with their devices prefetched."""
    items = [(start, item) for start in starts for item in start.placement.nodes]
    nodes = {
        (node.pool_id, node.name): node
        for node in Node.objects.filter(
            pool__in={start.pool.pk for start in starts}, name__in={item.node for _, item in items}
        ).only("pool", "name")
    }
    uuids = {grant.uuid for _, item in items for grant in item.devices}
    devices = {device.uuid: device for device in Device.objects.filter(uuid__in=uuids).only("uuid", "index")}
    allocations_by_workspace: dict[UUID, list[Allocation]] = {start.workspace.pk: [] for start in starts}
    requests = {start.workspace.pk: start.workspace.request for start in starts}
    granted: list[AllocatedDevice] = []
    allocations = Allocation.objects.bulk_create(
        Allocation(
            workspace=start.workspace,
            node=nodes[start.pool.pk, item.node],
            generation=start.workspace.generation,
            flavor=start.workspace.flavor.slug,
            cpu_milli=requests[start.workspace.pk].cpu_milli,
            memory_mib=requests[start.workspace.pk].memory_mib,
            disk_mib=requests[start.workspace.pk].disk_mib,
            granted_at=None if start.pool.traits.placing is Placing.ENGINE else now,
        )
        for start, item in items
    )
    for allocation, (start, item) in zip(allocations, items, strict=True):
        shares = [
            AllocatedDevice(
                allocation=allocation,
                device=devices[grant.uuid],
                milli=grant.milli,
                memory_mib=grant.memory_mib,
            )
            for grant in item.devices
        ]
        granted += shares
        # Fill the prefetch cache instead of reading the rows just written.
        prefetched: Any = allocation
        prefetched._prefetched_objects_cache = {"devices": shares}
        allocations_by_workspace[start.workspace.pk].append(allocation)
    AllocatedDevice.objects.bulk_create(granted)
    return list(allocations_by_workspace.values())
