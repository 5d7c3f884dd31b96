"""Applies the devices of an inventory: new, changed, missing, returned and replaced ones.

Uses a fixed number of queries, and at most one audit entry of each kind per node. Emits a domain event for
each change that affects placement; the queue listens to these events (`portal.wiring`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db.models import Q

from portal.common.actors import SYSTEM
from portal.common.domain_events import emit
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import TargetKind
from portal.common.events.services import Target
from portal.fleet.inventory import notices
from portal.fleet.inventory.domain_events import CapacityChanged
from portal.fleet.inventory.models import Device, Node, Pool
from provisioning.types import DeviceInfo, DeviceKind, NodeInfo

UNSEEN_STATES = frozenset({"timeout", "error", "no_permission", "driver_mismatch"})
"""Accelerator states in which a device that is not reported may still be present."""
PLACED_BY = ("model", "memory_mib", "kind", "parent_uuid", "mig_profile", "mig_start", "island", "numa")
"""Attributes of a device used by placement, besides its health and partitioning."""
COLUMNS = (
    "index", "model", "memory_mib", "kind", "parent_uuid", "mig_mode", "mig_profile", "mig_start",
    "island", "numa", "compute_capability", "facts", "healthy", "health_note",
)  # fmt: skip
"""Attributes that have the same name in `Device` and `DeviceInfo`."""
MAX_NAMED = 4
FEW = 200
BATCH = 500


@dataclass(slots=True)
class _InventoryChanges:
    """Changes on one node. Rows have the old state, infos the new state."""

    node: Node
    appeared: list[DeviceInfo] = field(default_factory=list)
    returned: list[DeviceInfo] = field(default_factory=list)
    replaced: list[tuple[DeviceInfo, Device]] = field(default_factory=list)
    split: list[tuple[DeviceInfo, list[DeviceInfo], list[Device]]] = field(default_factory=list)
    ill: list[DeviceInfo] = field(default_factory=list)
    well: list[DeviceInfo] = field(default_factory=list)
    other: list[DeviceInfo] = field(default_factory=list)
    missing: list[Device] = field(default_factory=list)
    unseen: list[Device] = field(default_factory=list)
    write: list[DeviceInfo] = field(default_factory=list)
    reported: set[str] = field(default_factory=set)
    """UUIDs covered by another event, which are not reported as appeared or disappeared as well."""

    @property
    def uncovered_devices(self) -> list[Device]:
        """Return the missing devices that no other event covers."""
        return [row for row in self.missing if row.uuid not in self.reported]


def apply_devices(pool: Pool, seen: Sequence[tuple[Node, NodeInfo]]) -> None:
    """Apply the devices of these nodes. Requires a transaction and the lock of the pool."""
    rows: dict[UUID, list[Device]] = defaultdict(list)
    # Filter by node ids only if there are few. A list of thousands is slower than reading all.
    few = Q(node__in=[node.pk for node, _ in seen]) if len(seen) <= FEW else Q(node__pool=pool)
    for row in Device.objects.filter(few).order_by("index", "mig_start", "uuid"):
        rows[row.node_id].append(row)
    all_seen = {info.uuid for _, node_info in seen for info in node_info.devices}
    changes = [_compare(node, info, rows[node.pk], all_seen) for node, info in seen]
    _move_to_returned(changes)
    _write(changes)
    for change in changes:
        _record_changes(pool, change)
    notices.devices_out(pool, "ill", [(change.node, len(change.ill)) for change in changes if change.ill])
    notices.devices_out(
        pool, "unseen", [(change.node, len(change.unseen)) for change in changes if change.unseen]
    )
    missing_from = [
        (change.node, len(change.uncovered_devices)) for change in changes if change.uncovered_devices
    ]
    notices.devices_out(pool, "disappeared", missing_from)


def _compare(node: Node, info: NodeInfo, rows: Sequence[Device], all_seen: set[str]) -> _InventoryChanges:
    changes = _InventoryChanges(node)
    rows_by_uuid = {row.uuid: row for row in rows}
    for device in info.devices:
        row = rows_by_uuid.get(device.uuid)
        facts = facts_of(device)
        if row is None:
            changes.appeared.append(device)
        elif not row.present:
            changes.returned.append(device)
        elif all(getattr(row, name) == value for name, value in facts.items()):
            continue
        elif row.healthy != device.healthy:
            (changes.well if device.healthy else changes.ill).append(device)
        elif any(getattr(row, name) != facts[name] for name in PLACED_BY):
            changes.other.append(device)
        changes.write.append(device)
    present = {device.uuid for device in info.devices}
    missing = [row for row in rows if row.present and row.uuid not in present]
    if missing and info.accelerator_state in UNSEEN_STATES:
        # The driver reported nothing. Devices are marked unhealthy, not missing, until it answers.
        changes.unseen = [row for row in missing if row.healthy]
        return changes
    changes.missing = missing
    _find_replaced(changes, rows, present, all_seen)
    _find_split(changes, rows_by_uuid, info)
    return changes


def _find_replaced(
    changes: _InventoryChanges, rows: Sequence[Device], present: set[str], all_seen: set[str]
) -> None:
    """Find GPUs that replaced another one: at the same PCI slot, or else with the same index and model."""
    fresh = [device for device in changes.appeared if device.kind != DeviceKind.MIG]
    if not fresh:
        return
    # A GPU that moved was not replaced. A GPU that is missing for long was replaced only if the slot matches.
    unreported_rows = [
        row for row in rows if row.uuid not in present | all_seen and row.kind != DeviceKind.MIG
    ]
    unreported_rows.sort(key=lambda row: not row.present)
    for device in fresh:
        slot = device.facts.get("pci_bus_id")
        before = next((row for row in unreported_rows if slot and row.facts.get("pci_bus_id") == slot), None)
        before = before or next(
            (row for row in unreported_rows if row.present and _is_same_slot(row, device)), None
        )
        if before is not None:
            unreported_rows.remove(before)
            changes.replaced.append((device, before))
            changes.reported |= {device.uuid, before.uuid}


def _is_same_slot(row: Device, device: DeviceInfo) -> bool:
    slots = row.facts.get("pci_bus_id"), device.facts.get("pci_bus_id")
    return not all(slots) and (row.index, row.model) == (device.index, device.model)


def _find_split(changes: _InventoryChanges, rows_by_uuid: Mapping[str, Device], info: NodeInfo) -> None:
    """Find GPUs with a changed partitioning, whose MIG instances appear and disappear with it."""
    now: dict[str, list[DeviceInfo]] = defaultdict(list)
    before: dict[str, list[Device]] = defaultdict(list)
    for device in info.devices:
        if device.kind == DeviceKind.MIG:
            now[device.parent_uuid].append(device)
    for row in rows_by_uuid.values():
        if row.kind == DeviceKind.MIG and row.present:
            before[row.parent_uuid].append(row)
    for device in info.devices:
        old = rows_by_uuid.get(device.uuid)
        if old is None or not old.present or device.kind == DeviceKind.MIG:
            continue
        parts, were = now[device.uuid], before[device.uuid]
        layout = {(part.uuid, part.mig_profile, part.mig_start) for part in parts}
        if old.mig_mode != device.mig_mode or layout != {
            (row.uuid, row.mig_profile, row.mig_start) for row in were
        }:
            changes.split.append((device, parts, were))
            changes.reported |= {part.uuid for part in parts} | {row.uuid for row in were}


def _move_to_returned(changes: Sequence[_InventoryChanges]) -> None:
    """Move devices that another node had before from `appeared` to `returned`."""
    fresh = {info.uuid for change in changes for info in change.appeared}
    if not fresh:
        return
    existing = set(Device.objects.filter(uuid__in=fresh).values_list("uuid", flat=True))
    for change in changes:
        change.returned += [info for info in change.appeared if info.uuid in existing]
        change.appeared = [info for info in change.appeared if info.uuid not in existing]


def _write(changes: Sequence[_InventoryChanges]) -> None:
    missing_pks = {row.pk for change in changes for row in change.missing}
    touched = Q(pk__in=missing_pks | {row.pk for change in changes for row in change.unseen})
    touched |= Q(uuid__in=[info.uuid for change in changes for info in change.write])
    if any(change.missing or change.unseen or change.write for change in changes):
        # In the lock order that all code uses for devices.
        list(Device.objects.filter(touched).select_for_update().order_by("pk").values_list("pk"))
    if missing_pks:
        Device.objects.filter(pk__in=missing_pks).update(present=False)
    for change in changes:
        if change.unseen:
            note = change.node.accelerator_note or "The driver did not answer."
            pks = [row.pk for row in change.unseen]
            Device.objects.filter(pk__in=pks).update(healthy=False, health_note=note)
    # Matched by UUID, so a device that moved to another node keeps its row.
    fresh = {
        info.uuid: Device(node=change.node, uuid=info.uuid, present=True, **facts_of(info))
        for change in changes
        for info in change.write
    }
    if fresh:
        Device.objects.bulk_create(
            [fresh[uuid] for uuid in sorted(fresh)],
            batch_size=BATCH,
            update_conflicts=True,
            unique_fields=["uuid"],
            update_fields=["node", "present", *COLUMNS],
        )


def _record_changes(pool: Pool, changes: _InventoryChanges) -> None:
    name = changes.node.name

    def record_change(kind: str, message: str, devices: Iterable[DeviceInfo | Device], **data: Any) -> None:
        uuids = [device.uuid for device in devices]
        emit(CapacityChanged())
        events.record(
            actor=SYSTEM,
            kind=AuditKind(f"device.{kind}"),
            pool=pool,
            message=message,
            targets=[Target(TargetKind.NODE, name), *(Target(TargetKind.DEVICE, uuid) for uuid in uuids)],
            data={"devices": uuids, "node": name, **data},
        )

    appeared = [device for device in changes.appeared if device.uuid not in changes.reported]
    if appeared:
        record_change("appeared", f"found {len(appeared)} × {appeared[0].model} on {name}", appeared)
    if changes.returned:
        devices = _format_devices(changes.returned)
        record_change("returned", f"found {devices} of {name} again", changes.returned)
    if changes.replaced:
        devices = _format_devices([new for new, _ in changes.replaced])
        record_change(
            "replaced",
            f"found different devices as {devices} of {name}"
            if len(changes.replaced) > 1
            else f"found a different device as {devices} of {name}: {changes.replaced[0][0].uuid}, "
            f"previously {changes.replaced[0][1].uuid}",
            [device for pair in changes.replaced for device in pair],
            before={new.uuid: old.uuid for new, old in changes.replaced},
        )
    if changes.split:
        _, parts, were = changes.split[0]
        detail = f": {_layout(parts)}, previously {_layout(were)}" if len(changes.split) == 1 else ""
        gpus = [gpu for gpu, _, _ in changes.split]
        record_change(
            "mig_changed",
            f"found a new MIG layout on {_format_devices(gpus)} of {name}{detail}",
            gpus,
            layouts={gpu.uuid: [part.mig_profile for part in new] for gpu, new, _ in changes.split},
        )
    if changes.ill:
        note = next((device.health_note for device in changes.ill if device.health_note), "")
        record_change(
            "ill",
            f"found {_format_devices(changes.ill)} of {name} unhealthy" + (f": {note}" if note else ""),
            changes.ill,
        )
    if changes.well:
        record_change("well", f"found {_format_devices(changes.well)} of {name} healthy again", changes.well)
    if changes.other:
        record_change(
            "changed", f"found changes of {_format_devices(changes.other)} of {name}", changes.other
        )
    if changes.unseen:
        note = changes.node.accelerator_note or "The driver did not answer."
        record_change(
            "unseen", f"could not query {_count_and_model(changes.unseen)} on {name}: {note}", changes.unseen
        )
    uncovered = changes.uncovered_devices
    if uncovered:
        record_change("disappeared", f"no longer found {_count_and_model(uncovered)} on {name}", uncovered)


def _count_and_model(rows: Sequence[Device]) -> str:
    return f"{len(rows)} × {rows[0].model}"


def _format_devices(devices: Sequence[DeviceInfo]) -> str:
    """Format the devices: “GPU 3”, “GPU 0 and 3”, “12 GPUs”."""
    numbers = sorted({device.index for device in devices})
    if len(numbers) > MAX_NAMED:
        return f"{len(numbers)} GPUs"
    *leading, last = map(str, numbers)
    return f"GPU {', '.join(leading)} and {last}" if leading else f"GPU {last}"


def _layout(parts: Sequence[DeviceInfo | Device]) -> str:
    profiles = sorted(part.mig_profile or "?" for part in parts)
    if not profiles:
        return "whole"
    return " + ".join(f"{profiles.count(profile)} × {profile}" for profile in dict.fromkeys(profiles))


def facts_of(info: DeviceInfo) -> dict[str, Any]:
    """Return the columns of a device from its inventory."""
    columns = {name: getattr(info, name) for name in COLUMNS}
    return {**columns, "kind": info.kind.value, "facts": dict(info.facts)}
